"""Compiled bytes on a GPU target against the formulas that the techniques state, in bf16. No GPU is needed."""

from __future__ import annotations

from functools import cache

import jax
import optax
import pytest
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from brim.hardware.device import named
from brim.models import DecoderSettings
from brim.models.decoder import decoder_program
from brim.techniques import AttentionKernel, Context, Precision, Recipe, Rematerialization, Technique
from brim.training.assemble import ops_from

pytestmark = pytest.mark.plan

MIB = 2**20
ROWS, LENGTH, WIDTH = 4, 1024, 512
RESIDUAL_BYTES = ROWS * LENGTH * WIDTH * 2
FULL, NONE = Rematerialization("full"), Rematerialization()


@cache
def temporaries(layers: int, technique: Technique, *, forward_only: bool = False) -> int:
    """Bytes of temporaries of the compiled gradient (or the loss alone) on an H100 that is not here.

    Parameters are arguments and gradients are outputs, so neither is among them.
    """
    device = named("h100")
    settings = DecoderSettings(layers=layers, width=WIDTH, heads=8, context=LENGTH, vocabulary=256)
    program = decoder_program(settings.resolved(), optax.sgd(1.0), packed=False)
    recipe = Recipe.of(ROWS, Precision("bfloat16"), AttentionKernel("cudnn"), technique)
    ops = ops_from(recipe.points(Context(program, device)))
    trainable, frozen, variables = program.part_specs()

    def loss(trainable, batch):  # type: ignore[no-untyped-def]
        return program.loss(trainable, frozen, variables, batch, None, ops)[0].total

    topology = topologies.get_topology_desc(platform="cuda", target_config=device.target_config(), topology="1x1x1")
    sharding = NamedSharding(topologies.make_mesh(topology, (1,), ("device",)), PartitionSpec())
    function = jax.jit(loss if forward_only else jax.grad(loss), in_shardings=sharding, out_shardings=sharding)
    lowered = function.trace(trainable, program.batch_specs(ROWS)).lower(lowering_platforms=("cuda",))
    return lowered.compile().memory_analysis().temp_size_in_bytes


def test_rm_s2_full_rematerialization_in_bf16_grows_by_one_residual_tensor_per_layer() -> None:
    grown = temporaries(24, FULL) - temporaries(12, FULL)
    assert RESIDUAL_BYTES == 4 * MIB
    assert 12 * RESIDUAL_BYTES <= grown <= 12 * RESIDUAL_BYTES * 1.1
    assert temporaries(24, NONE) - temporaries(12, NONE) > 8 * grown


def test_rm_s2_the_forward_pass_alone_does_not_grow_with_depth() -> None:
    for technique in (NONE, FULL):
        shallow, deep = (temporaries(layers, technique, forward_only=True) for layers in (4, 8))
        assert deep == pytest.approx(shallow, rel=0.01)
