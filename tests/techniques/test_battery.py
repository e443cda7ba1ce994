"""One battery over the registry: every technique, alone and in pairs, gives the plain numbers for its stated price.

For each: the optimized program really differs; loss and gradients equal the plain ones within what its effect allows;
FLOPs rise no more than it states. `test_bytes.py` holds the compiled bytes against the formulas.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from brim.hardware.device import detect
from brim.hardware.flops import count_flops
from brim.models import DecoderSettings
from brim.models.decoder import decoder_program
from brim.program import Program
from brim.techniques import (
    REGISTRY,
    Accumulation,
    AttentionKernel,
    ChunkedLoss,
    LowbitStates,
    Precision,
    Recipe,
    Rematerialization,
    Technique,
)
from brim.techniques.moments import decoded
from brim.techniques.rounding import Compensated
from brim.training.step import Step

ROWS, LENGTH = 8, 64
PLAIN: tuple[Technique, ...] = (AttentionKernel("reference"),)
CASES: dict[str, Technique] = {
    "bf16": Precision("bfloat16"),
    "fp16": Precision("float16"),
    "bf16_parameters": Precision("bfloat16", "bfloat16"),
    "kahan": Precision("bfloat16", "bfloat16", "kahan"),
    "blockwise": AttentionKernel("blockwise"),
    "chunked": ChunkedLoss(tokens=48),
    "full": Rematerialization("full"),
    "dots": Rematerialization("dots"),
    "dots_without_batch": Rematerialization("dots_without_batch"),
    "names": Rematerialization("names", names=("attention_out", "mlp_hidden")),
    "unrolled": Rematerialization(unroll=0),
    "full_unrolled": Rematerialization("full", unroll=2),
    "accumulation": Accumulation(4),
    "lowbit_states": LowbitStates(bits=8),
}
TOLERANCE = {
    "exact": 0.0,
    "noise": 2e-5,  # sums of a few thousand fp32 terms in another order
    "rounding": 5e-2,  # 8 bits of mantissa, a dozen roundings in a row; the largest element of each leaf
    "lossy": 5e-2,  # of parameters in bf16: one rounding more
}


def gradient_as_state() -> optax.GradientTransformation:
    """An optimizer that moves nothing and keeps the gradient it was given."""
    return optax.GradientTransformation(
        lambda params: jax.tree.map(jnp.zeros_like, params),
        lambda grads, state, params: (jax.tree.map(jnp.zeros_like, grads), grads),
    )


@dataclass(frozen=True)
class Result:
    loss: float
    gradient: Any
    text: str
    flops: float


def program() -> Program:
    shape = DecoderSettings(layers=2, width=64, heads=4, context=LENGTH, vocabulary=256).resolved()
    return decoder_program(shape, gradient_as_state())


def batch() -> dict[str, np.ndarray]:
    """Rows of two packed documents each; row r has r + 2 padded positions at its end, so rows weigh unequally."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, 256, (ROWS, LENGTH + 1), dtype=np.int32)
    place = np.arange(LENGTH)
    documents = np.stack([np.where(place < 20, 1, np.where(place < LENGTH - 2 - r, 2, 0)) for r in range(ROWS)])
    ends = np.concatenate([documents[:, 1:] != documents[:, :-1], np.ones((ROWS, 1), bool)], axis=1)
    targets = np.where((documents == 0) | ends, -100, tokens[:, 1:])
    positions = np.broadcast_to(np.where(place < 20, place, place - 20), tokens[:, :-1].shape)
    arrays = {"tokens": tokens[:, :-1], "targets": targets, "documents": documents, "positions": positions}
    return {name: np.ascontiguousarray(array, np.int32) for name, array in arrays.items()}


@cache
def run(*techniques: Technique) -> Result:
    steps = next((t.steps for t in techniques if isinstance(t, Accumulation)), 1)
    given = {technique.name: technique for technique in (*PLAIN, *techniques)}
    # LLVM's own optimization takes most of a compile here, and says nothing about what XLA made of the program.
    quickly = {"xla_backend_optimization_level": "0"}
    step = Step(program(), Recipe.of(ROWS // steps, *given.values(), compiler_options=quickly), detect())
    state, metrics = step(step.init(jax.random.key(1)), batch())
    moments = state.optimizer.inner if isinstance(state.optimizer, Compensated) else state.optimizer
    gradient = jax.tree.map(np.asarray, decoded(moments))
    flops = count_flops(step.assembly.window, step.assembly.state, step.assembly.batch)
    return Result(float(metrics.loss), gradient, step.compiled.as_text(), flops.matmul)


def difference(found: Any, wanted: Any) -> float:
    """Largest over leaves of max |found - wanted| / max |wanted|.

    A leaf far smaller than the largest one is measured against a hundredth of that: the gradient of a key's bias is 0
    but for rounding, since softmax does not see it.
    """
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True))
    floor = max(float(np.abs(b).max()) for _, b in pairs) / 100
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), floor)) for a, b in pairs)


def allowed(*techniques: Technique) -> float:
    return max(TOLERANCE[technique.effect] for technique in techniques)


def allowed_flops(*techniques: Technique) -> float:
    sizes = program().sizes
    assert sizes is not None
    return float(np.prod([technique.flops_ratio(sizes) for technique in techniques]))


def check(*techniques: Technique) -> None:
    plain, found = run(), run(*techniques)
    assert found.text != plain.text, "the compiled programs are the same: nothing was tested"
    assert abs(found.loss - plain.loss) <= allowed(*techniques) * plain.loss
    assert difference(found.gradient, plain.gradient) <= allowed(*techniques)
    assert found.flops <= plain.flops * allowed_flops(*techniques) * 1.001


@pytest.mark.parametrize("name", CASES)
def test_alone(name: str) -> None:
    check(CASES[name])


def test_every_registered_technique_is_in_the_battery() -> None:
    assert {technique.name for technique in CASES.values()} == {kind.name for kind in REGISTRY}


REPRESENTATIVES = ("bf16", "blockwise", "chunked", "full", "accumulation", "lowbit_states")
PAIRS = list(itertools.combinations(REPRESENTATIVES, 2))


def test_the_pairs_hold_every_two_techniques() -> None:
    assert sorted(CASES[name].name for name in REPRESENTATIVES) == sorted(kind.name for kind in REGISTRY)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_in_pairs(first: str, second: str) -> None:
    check(CASES[first], CASES[second])


@pytest.mark.slow
@pytest.mark.parametrize("other", [name for name in REPRESENTATIVES if name != "bf16"])
def test_fp16_in_pairs(other: str) -> None:
    check(CASES["fp16"], CASES[other])


def test_fp16_has_smaller_errors_than_bf16() -> None:
    """11 bits of mantissa instead of 8, if the loss scale keeps small gradients from vanishing."""
    plain = run().gradient
    for others in ((), (CASES["chunked"],)):
        errors = [difference(run(CASES[name], *others).gradient, plain) for name in ("fp16", "bf16")]
        assert errors[0] < errors[1] / 3


def test_a_wrong_gradient_would_be_seen() -> None:
    """The measure itself: one element of one leaf off by 1e-3 of the leaf's largest exceeds the tolerance for noise."""
    plain = run().gradient
    leaves, structure = jax.tree.flatten(plain)
    leaves[3] = leaves[3].copy()
    leaves[3].flat[0] += 1e-3 * np.abs(leaves[3]).max()
    assert difference(jax.tree.unflatten(structure, leaves), plain) > TOLERANCE["noise"]
