"""Layers that share weights: the order of their uses, gradients that are sums over uses, counts, bytes, sampling."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from brim.errors import SettingsError
from brim.hardware.device import detect
from brim.hardware.flops import count_flops
from brim.models import DecoderSettings, DecoderShape
from brim.models.decoder import Decoder, decoder_loss, decoder_program
from brim.models.generation import Cache, extend
from brim.models.ladder import ladder
from brim.models.presets import PRESETS
from brim.models.shape import parameter_count
from brim.ops import Ops, Repeats, row_keys, scan_stack
from brim.techniques import Accumulation, AttentionKernel, Recipe, Rematerialization
from brim.training.step import Step
from brim.tree import tree_bytes, tree_size

MakeModel = Callable[[DecoderShape], Decoder]
MakeShape = Callable[..., DecoderShape]

KINDS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "all": ({"shared_layers": "all"}, [0, 0, 0, 0, 0, 0]),
    "groups": ({"shared_layers": "groups", "distinct_layers": 2}, [0, 0, 0, 1, 1, 1]),
    "cycles": ({"shared_layers": "cycles", "distinct_layers": 2}, [0, 1, 0, 1, 0, 1]),
    "one group each": ({"shared_layers": "groups", "distinct_layers": 6}, [0, 1, 2, 3, 4, 5]),
}


@pytest.mark.parametrize("unroll", [0, 1, 2, 3, 4, 100])
@pytest.mark.parametrize(
    ("repeats", "order"),
    [(Repeats(), "12"), (Repeats(3), "111222"), (Repeats(3, in_cycles=True), "121212")],
)
def test_layers_are_used_in_order_and_uses_are_numbered(repeats: Repeats, order: str, unroll: int) -> None:
    def block(layer: Any, x: Any, context: Any, index: Any, /) -> Any:
        return {"layers": 10 * x["layers"] + layer, "indices": 10 * x["indices"] + index + context}

    start = {"layers": jnp.int32(0), "indices": jnp.int32(0)}
    end = scan_stack(block, jnp.asarray([1, 2], jnp.int32), start, jnp.int32(1), repeats, unroll=unroll)
    assert str(end["layers"]) == order
    assert str(end["indices"]) == "123456"[: len(order)]


def spread(model: Decoder, uses: list[int], shape: DecoderShape) -> Decoder:
    """The model without sharing: a copy of a layer's weights for each of its uses."""
    layers = jax.tree.map(lambda leaf: leaf[jnp.asarray(uses)], model.layers)
    model = eqx.tree_at(lambda found: found.layers, model, layers)
    return replace(model, shape=replace(shape, shared_layers="none", distinct_layers=None))


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        pytest.param("all", "gpt2", marks=pytest.mark.slow),
        ("groups", "llama"),
        ("cycles", "gpt2"),
        pytest.param("one group each", "llama", marks=pytest.mark.slow),
    ],
)
def test_loss_equals_that_of_copies_and_gradients_are_the_sums_over_uses(
    kind: str, family: str, make_shape: MakeShape, make_model: MakeModel, packed_batch: Any
) -> None:
    settings, uses = KINDS[kind]
    shape = make_shape(layers=6, family=family, dropout=0.3, **settings)
    shared = make_model(shape)
    copies = spread(shared, uses, shape)
    keys = row_keys(jax.random.key(3), 3)

    def total(model: Decoder) -> jax.Array:
        return decoder_loss(model, (), (), packed_batch, keys, Ops())[0].total

    def run_quickly(model: Decoder) -> Any:
        lowered = jax.jit(jax.value_and_grad(total)).lower(model)
        return lowered.compile(compiler_options={"xla_backend_optimization_level": "0"})(model)

    (loss, gradient), (expected, of_copies) = run_quickly(shared), run_quickly(copies)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    summed = jax.tree.map(
        lambda leaf: jnp.stack([leaf[np.asarray(uses) == own].sum(0) for own in range(max(uses) + 1)]),
        of_copies.layers,
    )
    wanted = eqx.tree_at(lambda found: found.layers, of_copies, summed)
    for found, right in zip(jax.tree.leaves(gradient), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-4 * float(np.abs(right).max()) + 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_counts_and_bytes_are_those_of_the_weights_there_are(kind: str, make_shape: MakeShape) -> None:
    settings, uses = KINDS[kind]
    shape, plain = make_shape(layers=6, **settings), make_shape(layers=6)
    program = decoder_program(shape, optax.adam(1e-3))
    trainable, _, _ = program.part_specs()
    assert parameter_count(shape) == tree_size(trainable)
    block = (parameter_count(plain) - parameter_count(make_shape(layers=5))) * (6 - len(set(uses)))
    assert parameter_count(shape) == parameter_count(plain) - block
    state, before = (
        Step(decoder_program(each, optax.adam(1e-3)), Recipe.of(2), detect()).assembly.state for each in (shape, plain)
    )
    assert tree_bytes(before) - tree_bytes(state) == 12 * block  # a parameter and two moments in fp32
    assert program.sizes is not None and program.sizes.layers == 6  # activations and FLOPs: of all uses


def run(shape: DecoderShape, *techniques: Any) -> tuple[Step, Any, Any]:
    steps = next((t.steps for t in techniques if isinstance(t, Accumulation)), 1)
    program = decoder_program(shape, optax.sgd(0.1), packed=False)
    recipe = Recipe.of(4 // steps, AttentionKernel("reference"), *techniques,
                       compiler_options={"xla_backend_optimization_level": "0"})  # fmt: skip
    step = Step(program, recipe, detect())
    random = np.random.default_rng(0)
    batch = {name: jnp.asarray(random.integers(0, 32, (4, 12)), jnp.int32) for name in ("tokens", "targets")}
    state, metrics = step(step.init(jax.random.key(1)), batch)
    return step, state, metrics


@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("all", "groups")), "cycles"]
)
def test_rematerialization_and_micro_batches_change_nothing_and_flops_are_those_of_all_uses(
    kind: str, make_shape: MakeShape
) -> None:
    shape = make_shape(layers=6, **KINDS[kind][0])
    step, plain, before = run(shape)
    _, state, after = run(shape, Rematerialization("full"), Accumulation(2))
    assert float(after.loss) == pytest.approx(float(before.loss), rel=1e-5)
    for one, other in zip(jax.tree.leaves(plain.trainable), jax.tree.leaves(state.trainable), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
    unshared = Step(decoder_program(make_shape(layers=6), optax.sgd(0.1), packed=False), step.recipe, detect())
    flops = [count_flops(s.assembly.window, s.assembly.state, s.assembly.batch).matmul for s in (step, unshared)]
    assert flops[0] == flops[1]


@cache
def temporary_bytes(kind: str) -> int:
    settings = KINDS[kind][0] if kind else {}
    sizes = {"layers": 6, "width": 128, "heads": 4, "context": 16, "vocabulary": 64}
    recipe = Recipe.of(2, AttentionKernel("reference"), Rematerialization("full"),
                       compiler_options={"xla_backend_optimization_level": "0"})  # fmt: skip
    shape = DecoderSettings(**sizes, **settings).resolved()
    step = Step(decoder_program(shape, optax.sgd(0.1), packed=False), recipe, detect())
    return step.compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("kind", ["all", "groups", "cycles"])
def test_temporaries_fall_by_the_gradients_that_are_gone(kind: str) -> None:
    """No copy of a layer for each of its uses: neither of weights nor of their gradients."""
    gone, block = 6 - len(set(KINDS[kind][1])), 12 * 128 * 128 * 4
    # In cycles the gradients of one turn stand beside the sum over turns.
    least = gone - (2 if kind == "cycles" else 1)
    assert temporary_bytes("") - temporary_bytes(kind) >= least * block


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_uses_the_layers_as_training_does(kind: str, make_shape: MakeShape, make_model: MakeModel) -> None:
    shape = make_shape(layers=6, **KINDS[kind][0])
    model = make_model(shape)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 32, (2, 12)), jnp.int32)
    expected = model.logits({"tokens": tokens}, Ops())
    cache, start = Cache.create(shape, 2, 12, jnp.float32), 0
    for count in (7, 1, 4):
        logits, cache = jax.jit(extend)(model, cache, tokens[:, start : start + count], jnp.int32(start))
        start += count
        np.testing.assert_allclose(logits, expected[:, start - 1], atol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"shared_layers": "groups"},
        {"shared_layers": "cycles", "distinct_layers": 4},
        {"shared_layers": "groups", "distinct_layers": 0},
        {"shared_layers": "all", "distinct_layers": 1},
        {"distinct_layers": 2},
    ],
)
def test_settings_that_do_not_go_together_are_errors(settings: dict[str, Any], make_shape: MakeShape) -> None:
    with pytest.raises(SettingsError, match="distinct_layers"):
        make_shape(layers=6, **settings)


def test_the_ladder_keeps_the_sharing_and_only_depths_that_it_divides() -> None:
    shape = replace(PRESETS["gpt2"].shape, shared_layers="groups", distinct_layers=4)
    rungs = ladder(shape, "gpt2")
    assert {rung.distinct_layers for rung in rungs} == {4} and len(rungs) > 5
    assert all(rung.layers % 4 == 0 for rung in rungs)
    counts = [parameter_count(rung) for rung in rungs]
    assert all(one < other for one, other in itertools.pairwise(counts))
