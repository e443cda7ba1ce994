"""Estimates against the compiler, where other tools are far from it: states, evaluation, large vocabularies."""

from __future__ import annotations

import jax
import optax
import pytest

from brim.hardware.device import named
from brim.models.decoder import decoder_program
from brim.models.settings import DecoderSettings
from brim.planner import Target
from brim.planner.compile import audit_window, compile_window
from brim.planner.memory import BATCH, GRADIENTS, OPTIMIZER, PARAMETERS
from brim.program import Program
from brim.techniques import Accumulation, AttentionKernel, ChunkedLoss, Precision, Recipe, Rematerialization
from brim.training.assemble import assemble

pytestmark = pytest.mark.plan

H100 = named("h100")
FUSED = Precision("bfloat16"), AttentionKernel("auto")
GPT2_PARAMETERS = 124_439_808


def gpt2() -> Program:
    return decoder_program(DecoderSettings(preset="gpt2").resolved(), optax.adamw(3e-4), clip_norm=1.0, packed=False)


def test_me_s2_what_is_exact_is_exact_and_the_rest_is_the_compilers() -> None:
    recipe = Recipe.of(4, *FUSED, Rematerialization("full"), ChunkedLoss(1024), Accumulation(2))
    memory = compile_window(gpt2(), recipe, H100).memory
    state = sum(memory.owners[name] for name in (PARAMETERS, GRADIENTS, OPTIMIZER))
    counter = 4  # Adam's own count of updates
    assert state - counter == 16 * GPT2_PARAMETERS == 1_991_036_928
    assert memory.owners[BATCH] == 2 * 4 * 8 * 1024
    assert memory.peak_bytes == memory.arguments + memory.outputs - memory.aliased + memory.temporaries


def test_me_s2_evaluation_has_neither_gradients_nor_moments() -> None:
    recipe = Recipe.of(8, *FUSED, ChunkedLoss(1024))
    assembly = assemble(gpt2(), recipe, H100, lambda note: None)
    sharding = Target.of(H100).sharding
    evaluate = jax.jit(assembly.evaluate, in_shardings=sharding, out_shardings=sharding)
    lowered = evaluate.trace(assembly.state, assembly.evaluation_batch).lower(lowering_platforms=("cuda",))
    found = lowered.compile().memory_analysis()
    batch = 2 * 4 * 8 * 1024
    assert found.argument_size_in_bytes == 4 * GPT2_PARAMETERS + batch
    # Beside the parameters: their copy in bf16, and what one layer and one chunk of logits need.
    assert found.temp_size_in_bytes < 4 * GPT2_PARAMETERS


def test_logits_of_a_large_vocabulary_are_six_bytes_each_and_a_chunked_loss_has_only_its_chunk() -> None:
    vocabulary = 262_144
    settings = DecoderSettings(layers=2, width=256, heads=4, context=1024, vocabulary=vocabulary)
    program = decoder_program(settings.resolved(), optax.adamw(3e-4), packed=False)
    tokens, chunk = 4 * 1024, 512

    def logits(*techniques: ChunkedLoss) -> int:
        recipe = Recipe.of(4, *FUSED, Rematerialization("full"), *techniques)
        return audit_window(program, recipe, H100).memory_report(vocabulary=vocabulary).owners["logits and loss"]

    # bf16 logits, and their gradient in fp32.
    assert logits() == pytest.approx((2 + 4) * tokens * vocabulary, rel=0.01)
    assert logits(ChunkedLoss(chunk)) < 1.1 * (2 + 4) * chunk * vocabulary
