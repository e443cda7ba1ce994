"""Compiled bytes against the formulas that the techniques state. Only shapes are compiled; nothing is allocated.

What is measured is the temporaries of the compiled gradient of a scanned stack: gradients are outputs there, so how
temporaries grow from layer to layer is what the layers keep.
"""

from __future__ import annotations

from functools import cache

import jax
import optax
import pytest

from brim.hardware.device import detect
from brim.models import DecoderSettings
from brim.models.decoder import decoder_program
from brim.program import Program
from brim.techniques import AttentionKernel, ChunkedLoss, Context, Recipe, Rematerialization, Technique
from brim.training.assemble import ops_from

MIB = 2**20
REFERENCE = AttentionKernel("reference")


def program(layers: int, width: int, length: int, vocabulary: int) -> Program:
    settings = DecoderSettings(layers=layers, width=width, heads=4, context=length, vocabulary=vocabulary)
    return decoder_program(settings.resolved(), optax.sgd(1.0), packed=False)


@cache
def temporaries(
    layers: int,
    *techniques: Technique,
    rows: int = 2,
    width: int = 128,
    length: int = 256,
    vocabulary: int = 256,
    forward_only: bool = False,
) -> int:
    """Bytes of temporaries of the compiled gradient (or the loss alone) of one micro-batch."""
    subject = program(layers, width, length, vocabulary)
    ops = ops_from(Recipe.of(rows, *techniques).points(Context(subject, detect())))
    trainable, frozen, variables = subject.part_specs()

    def loss(trainable, batch):  # type: ignore[no-untyped-def]
        return subject.loss(trainable, frozen, variables, batch, None, ops)[0].total

    function = loss if forward_only else jax.grad(loss)
    compiled = jax.jit(function).lower(trainable, subject.batch_specs(rows)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def growth(*techniques: Technique) -> float:
    """Bytes that one more layer keeps."""
    return (temporaries(16, *techniques) - temporaries(8, *techniques)) / 8


@pytest.mark.parametrize(
    "technique",
    [
        Rematerialization("full"),
        Rematerialization("dots_without_batch"),
        Rematerialization("names", names=("attention_out", "mlp_hidden")),
    ],
    ids=lambda technique: technique.policy,
)
def test_a_layer_keeps_what_the_formula_says(technique: Rematerialization) -> None:
    one_layer = program(1, 128, 256, 256).sizes
    assert one_layer is not None
    assert growth(technique, REFERENCE) == pytest.approx(technique.predicted_bytes(one_layer, 2, 4), rel=0.02)


@pytest.mark.parametrize("policy", ["none", "dots"])
def test_where_the_formula_is_a_lower_bound_a_layer_keeps_at_least_that(policy: str) -> None:
    technique = Rematerialization(policy)  # type: ignore[arg-type]
    one_layer = program(1, 128, 256, 256).sizes
    assert one_layer is not None
    assert growth(technique, REFERENCE) >= technique.predicted_bytes(one_layer, 2, 4)


def test_policies_are_ordered_by_what_they_keep() -> None:
    kept = [growth(Rematerialization(policy), REFERENCE) for policy in ("full", "dots_without_batch", "dots", "none")]
    assert kept == sorted(kept)
    assert kept[-1] > 30 * kept[0]


def test_rm_s2_full_rematerialization_grows_by_one_residual_tensor_per_layer() -> None:
    """In fp32: XLA's CPU backend holds stacks of bf16 in fp32. `test_plan_bytes.py` has the bf16 case for a GPU."""
    sizes = {"rows": 4, "width": 512, "length": 1024}
    residual_bytes = 4 * 1024 * 512 * 4
    full = (Rematerialization("full"), REFERENCE)
    grown = temporaries(24, *full, **sizes) - temporaries(12, *full, **sizes)
    assert 12 * residual_bytes * 0.95 <= grown <= 12 * residual_bytes * 1.05
    grown_without = temporaries(24, REFERENCE, **sizes) - temporaries(12, REFERENCE, **sizes)
    assert grown_without > 10 * grown


def test_rm_s2_the_forward_pass_alone_does_not_grow_with_depth() -> None:
    for technique in (Rematerialization(), Rematerialization("full")):
        shallow, deep = (temporaries(n, technique, REFERENCE, forward_only=True) for n in (4, 8))
        assert deep == pytest.approx(shallow, rel=0.01)


def test_unrolled_on_a_cpu_recomputation_saves_nothing_and_the_essay_says_so() -> None:
    unrolled = [temporaries(8, Rematerialization(policy, unroll=0), REFERENCE) for policy in ("none", "full")]
    scanned = [temporaries(8, Rematerialization(policy), REFERENCE) for policy in ("none", "full")]
    assert unrolled[1] > 0.5 * unrolled[0]
    assert scanned[1] < 0.5 * scanned[0]


def test_chunked_loss_replaces_the_logits_by_one_chunk() -> None:
    tokens, vocabulary, width, chunk = 16 * 64, 8192, 128, 128
    sizes = {"rows": 16, "length": 64, "vocabulary": vocabulary}
    whole = temporaries(1, Rematerialization("full"), REFERENCE, **sizes)
    chunked = temporaries(1, Rematerialization("full"), REFERENCE, ChunkedLoss(chunk), **sizes)
    logits_bytes, chunk_bytes, head_bytes = (
        4 * n for n in (tokens * vocabulary, chunk * vocabulary, vocabulary * width)
    )
    assert whole >= logits_bytes
    # Two arrays like a chunk; the tied head transposed, and its gradient from the loss and from the embedding; a layer.
    assert chunked <= 2 * chunk_bytes + 3 * head_bytes + 8 * MIB


def test_blockwise_attention_keeps_no_probabilities() -> None:
    probabilities = 2 * 4 * 256 * 256 * 4
    saved = growth(Rematerialization(), REFERENCE) - growth(Rematerialization(), AttentionKernel("blockwise"))
    assert saved >= probabilities
