"""GPT-2 124M, as brim assembles it, compiled for an H100 that is not here: the ledger at the scale it is meant for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax._src.ad_checkpoint import saved_residuals

from brim.compiled import Audit, MemoryReport, audit_compile
from brim.hardware.device import named
from brim.models.decoder import decoder_program
from brim.models.settings import DecoderSettings
from brim.ops import Ops, reference_cross_entropy
from brim.planner import Target
from brim.program import Program
from brim.techniques import Accumulation, AttentionKernel, ChunkedLoss, Context, Precision, Recipe, Rematerialization
from brim.training.assemble import assemble, ops_from
from brim.tree import tree_bytes

pytestmark = pytest.mark.plan

SHAPE = DecoderSettings(preset="gpt2").resolved()
ROWS = 8
PROGRAM = decoder_program(SHAPE, optax.adamw(3e-4), clip_norm=1.0, packed=False)
PARAMETER_BYTES = tree_bytes(PROGRAM.part_specs()[0])
FUSED = Precision("bfloat16"), AttentionKernel("auto")
NANOGPT_FLOPS_PER_ROW = 874_944_921_600
"""nanoGPT's own count for GPT-2 124M, with full attention: transformer_sizing.ipynb."""


def with_fp32_head(program: Program) -> Program:
    """The program with a mistake that people make: logits from fp32 hidden states and fp32 weights."""

    def wide(hidden: Any, head: Any, targets: Any) -> Any:
        return reference_cross_entropy(hidden.astype(jnp.float32), head, targets)

    def loss(trainable: Any, frozen: Any, variables: Any, batch: Any, keys: Any, ops: Ops) -> Any:
        return program.loss(trainable, frozen, variables, batch, keys, replace(ops, cross_entropy=wide))

    return replace(program, loss=loss)


@cache
def audited(
    *techniques: Any, rows: int = ROWS, donate: bool = True, change: Callable[..., Program] | None = None
) -> Audit:
    program = PROGRAM if change is None else change(PROGRAM)
    device = named("h100")
    assembly = assemble(program, Recipe.of(rows, *techniques), device, lambda note: None)
    target = Target.of(device)
    window = jax.jit(
        assembly.window,
        donate_argnums=(0,) if donate else (),
        keep_unused=True,
        in_shardings=target.sharding,
        out_shardings=target.sharding,
    )
    return audit_compile(window.trace(assembly.state, assembly.batch).lower(lowering_platforms=("cuda",)))


def report_of(*techniques: Any, **settings: Any) -> MemoryReport:
    return audited(*FUSED, *techniques, **settings).memory_report(vocabulary=SHAPE.vocabulary)


def residual_bytes(*techniques: Any) -> int:
    """What JAX says the backward pass needs, without arguments, casts of weights, and the logits."""
    context = Context(PROGRAM, named("h100"), lambda note: None)
    ops = ops_from(Recipe.of(ROWS, *FUSED, *techniques).points(context))
    trainable = PROGRAM.part_specs()[0]
    batch = PROGRAM.batch_specs(ROWS)
    found = saved_residuals(
        lambda params, batch: PROGRAM.loss(params, (), (), batch, None, ops)[0].total, trainable, batch
    )
    weights = {leaf.shape for leaf in jax.tree.leaves(trainable)} | {(SHAPE.width, SHAPE.vocabulary)}
    return sum(
        math.prod(kind.shape) * kind.dtype.itemsize
        for kind, why in found
        if "argument" not in why and kind.shape not in weights and SHAPE.vocabulary not in kind.shape
    )


POLICIES = [Rematerialization(policy) for policy in ("none", "dots", "full")]
EACH_POLICY = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.policy)


@EACH_POLICY
def test_every_byte_has_an_owner_and_those_of_the_state_are_exact(policy: Rematerialization) -> None:
    report = report_of(policy)
    owners = report.owners
    assert sum(owners.values()) == report.peak_bytes
    assert owners["parameters"] == owners["optimizer mu"] == owners["optimizer nu"] == PARAMETER_BYTES
    assert owners["batch"] == 2 * 4 * ROWS * SHAPE.context
    assert report.unexplained_share == 0
    assert owners["alignment and gaps"] < 0.01 * report.peak_bytes


@EACH_POLICY
def test_saved_residuals_are_those_that_jax_says(policy: Rematerialization) -> None:
    # JAX tells attention's result from the same array under the name that the model gives it. XLA keeps it once.
    twice = 2 * SHAPE.layers * ROWS * SHAPE.context * SHAPE.width if policy.policy == "none" else 0
    found = report_of(policy).owners["saved residuals"]
    assert found == pytest.approx(residual_bytes(policy) - twice, rel=0.01)


def test_residuals_have_the_names_that_the_model_gave_them() -> None:
    scopes = report_of(Rematerialization("none")).scopes("saved residuals")
    hidden = SHAPE.layers * ROWS * SHAPE.context * SHAPE.hidden * 2
    assert scopes["feed_forward/mlp_hidden"] == hidden
    assert {"attention/query", "attention/key", "attention/value", "feed_forward/mlp_activation"} <= scopes.keys()


def test_an_unrolled_stack_and_accumulation_are_owned_too() -> None:
    unrolled = report_of(Rematerialization("full", unroll=0))
    accumulated = report_of(Rematerialization("full"), ChunkedLoss(1024), Accumulation(2), rows=4)
    for report in (unrolled, accumulated):
        assert report.unexplained_share < 0.02
        assert report.owners["parameters"] == PARAMETER_BYTES
    assert accumulated.owners["gradients"] >= PARAMETER_BYTES  # fp32 sums


SOUND = Rematerialization("full"), ChunkedLoss(1024)


def top(report: MemoryReport) -> str:
    return next(iter(report.owners))


def test_planted_faults_are_on_top() -> None:
    assert top(report_of(*SOUND)) not in ("saved residuals", "logits and loss", "outputs, not aliased")
    assert top(report_of(ChunkedLoss(1024))) == "saved residuals"
    assert top(report_of(Rematerialization("full"))) == "logits and loss"
    assert top(report_of(*SOUND, donate=False)) == "outputs, not aliased"


def test_a_fp32_head_is_flagged_and_on_top() -> None:
    wide = audited(*FUSED, Rematerialization("full"), change=with_fp32_head)
    assert top(wide.memory_report()) == "logits and loss"
    assert {kernel.path for kernel in wide.kernels().wide()} == {"loss/dot_general"}
    assert audited(*FUSED, Rematerialization("full")).kernels().wide() == ()


def test_what_if_the_logits_were_gone_is_a_lower_bound_of_chunking_them() -> None:
    predicted = report_of(Rematerialization("full")).without["logits and loss"]
    chunked = report_of(*SOUND).peak_bytes
    assert 0.9 * chunked < predicted <= chunked


def test_flops_are_those_that_nanogpt_counts() -> None:
    reference = audited(Precision("bfloat16"), AttentionKernel("reference"), Rematerialization("none"), rows=1)
    assert sum(reference.kernels().flops.values()) == pytest.approx(NANOGPT_FLOPS_PER_ROW, rel=0.01)


def test_fused_attention_does_half_of_the_scores() -> None:
    scores = 4 * ROWS * SHAPE.heads * SHAPE.context**2 * SHAPE.head_width * SHAPE.layers
    kernels = audited(*FUSED, Rematerialization("none")).kernels()
    fused = [kernel for kernel in kernels.kernels if kernel.kind == "cudnn"]
    assert sum(kernel.runs * kernel.flops for kernel in fused) == (1 + 2.5) * scores / 2
    assert {kernel.phase for kernel in fused} == {"forward", "backward"}
