"""Optax transformations with moments in 8 bits: what is kept, how near to fp32 it stays, and what is never whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from brim.techniques import moments
from brim.techniques.eight_bit import eight_bit
from brim.techniques.elementwise import is_elementwise
from brim.techniques.moments import Layout, Moment, decoded, is_moment
from brim.tree import tree_bytes

LAYERS, ROWS, WIDTH = 3, 40, 130  # 5200 elements a layer: 20 blocks and a short one
PARAMETERS = {
    "layers": {"matrix": jnp.ones((LAYERS, ROWS, WIDTH)), "bias": jnp.ones((LAYERS, 10))},
    "table": jnp.ones((70, 64)),
    "scalar": jnp.ones(()),
}
LION, MOMENTUM = optax.lion(1e-3), optax.sgd(1e-2, momentum=0.9, nesterov=True)
ADAM = optax.adamw(1e-2, b2=0.95)


def layout(name: str, leaf: Any) -> Layout:
    return Layout(256 if name in ("layers.matrix", "table") else 0, name.startswith("layers."))


def gradient(number: int, like: Any = PARAMETERS) -> Any:
    random = np.random.default_rng(number)
    return jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape), jnp.float32), like)


def by_hand(inner: optax.GradientTransformation) -> tuple[Any, Callable[..., Any]]:
    """The oracle: the whole state decoded, one call of the inner transformation, the whole state quantized."""

    def update(gradients: Any, state: Any, parameters: Any) -> Any:
        updates, new = inner.update(gradients, decoded(state), parameters)
        old, structure = jax.tree.flatten(state, is_leaf=is_moment)
        leaves = jax.tree.leaves(new)
        return updates, jax.tree.unflatten(
            structure, [a.like(b) if is_moment(a) else b for a, b in zip(old, leaves, strict=True)]
        )

    return eight_bit(inner, layout).init(PARAMETERS), update


@pytest.mark.parametrize("inner", [ADAM, LION, MOMENTUM], ids=["adam", "lion", "momentum"])
def test_slices_give_what_the_whole_gives(inner: optax.GradientTransformation) -> None:
    optimizer = eight_bit(inner, layout)
    state, parameters = optimizer.init(PARAMETERS), PARAMETERS
    assert " while[" in str(jax.make_jaxpr(optimizer.update)(parameters, state, parameters)) or " scan[" in str(
        jax.make_jaxpr(optimizer.update)(parameters, state, parameters)
    )
    wanted_state, by_hand_update = by_hand(inner)
    update, wanted_update = jax.jit(optimizer.update), jax.jit(by_hand_update)
    for number in range(3):
        updates, state = update(gradient(number), state, parameters)
        wanted, wanted_state = wanted_update(gradient(number), wanted_state, parameters)
        # A loop's body and the whole are compiled apart: an fp32 rounding now and then, and a code next to the border.
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), updates, wanted)
        assert jax.tree.structure(state) == jax.tree.structure(wanted_state)
        codes = [
            (a.codes, b.codes)
            for a, b in zip(
                jax.tree.leaves(state, is_leaf=is_moment), jax.tree.leaves(wanted_state, is_leaf=is_moment), strict=True
            )
            if is_moment(a)
        ]
        assert codes and all(np.mean(np.asarray(a) != np.asarray(b)) < 1e-3 for a, b in codes)
        parameters = optax.apply_updates(parameters, updates)


def test_which_moments_are_signed() -> None:
    state = eight_bit(ADAM, layout).init(PARAMETERS)
    assert state[0].mu["table"].signed and not state[0].nu["table"].signed
    assert state[0].mu["table"].codes.dtype == jnp.uint8 and state[0].mu["table"].scales.shape == (18,)
    assert state[0].mu["layers"]["matrix"].scales.shape == (LAYERS, 21)
    assert isinstance(state[0].nu["layers"]["bias"], jax.Array)
    assert eight_bit(MOMENTUM, layout).init(PARAMETERS)[0].trace["table"].signed


def test_two_moments_take_two_bytes_and_a_32nd_per_parameter() -> None:
    state = jax.eval_shape(eight_bit(ADAM).init, {"w": jax.ShapeDtypeStruct((1024, 1024), jnp.float32)})
    assert tree_bytes((state[0].mu, state[0].nu)) / 2**20 == 2.03125


@pytest.mark.parametrize("size", [4095, 4096, 5000, 6144])
def test_eb_s2_any_size_follows_fp32_adam(size: int) -> None:
    """The short last block of 5000 (136 elements) is as near to fp32 as the full ones."""
    plain, low = optax.adam(1e-2, b2=0.95), eight_bit(optax.adam(1e-2, b2=0.95))
    wanted = found = jnp.zeros(size)
    plain_state, low_state = plain.init(wanted), low.init(found)
    plain_update, low_update = jax.jit(plain.update), jax.jit(low.update)
    random = np.random.default_rng(0)
    for _ in range(20):
        slope = jnp.asarray(random.normal(size=size), jnp.float32)
        change, plain_state = plain_update(slope, plain_state)
        wanted = wanted + change
        change, low_state = low_update(slope, low_state)
        found = found + change
    assert is_moment(low_state[0].mu)
    error = np.abs(np.asarray(found - wanted))
    moved = float(jnp.abs(wanted).mean())
    assert 0 < error.mean() < 0.03 * moved
    tail = size % 256
    if tail > 100 and size - tail:
        assert error[-tail:].mean() < 1.5 * error[:-tail].mean()


def test_eb_s2_stacked_layers_are_kept_as_separate_ones_are() -> None:
    together = {"w": jnp.ones((6, 1300))}
    apart = [{"w": jnp.ones(1300)} for _ in range(6)]
    stacked = eight_bit(ADAM, lambda name, leaf: Layout(256, stacked=True))
    single = eight_bit(ADAM)
    slopes = gradient(0, together)
    _, state = jax.jit(stacked.update)(slopes, stacked.init(together), together)
    update = jax.jit(single.update)
    for number, one in enumerate(apart):
        _, of_one = update({"w": slopes["w"][number]}, single.init(one), one)
        for name in ("mu", "nu"):
            whole, alone = getattr(state[0], name)["w"], getattr(of_one[0], name)["w"]
            np.testing.assert_array_equal(whole.codes[number], alone.codes)
            np.testing.assert_array_equal(whole.scales[number], alone.scales)


def test_a_window_that_does_not_count_changes_nothing() -> None:
    optimizer = eight_bit(ADAM, layout)
    update = jax.jit(optimizer.update)
    _, state = update(gradient(0), optimizer.init(PARAMETERS), PARAMETERS)
    broken = jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan), PARAMETERS)
    _, same = update(broken, state, PARAMETERS, updated=jnp.asarray(False))
    jax.tree.map(np.testing.assert_array_equal, same, state)
    _, other = update(gradient(1), state, PARAMETERS, updated=jnp.asarray(True))
    assert not np.array_equal(other[0].mu["layers"]["matrix"].codes, state[0].mu["layers"]["matrix"].codes)


def test_masks_by_rank_hold_in_slices() -> None:
    """A stacked vector of two axes in all is not decayed, whatever its slices look like."""
    parameters = {"matrix": jnp.ones((2, 64, 64)), "vector": jnp.ones((2, 4096))}
    decaying = optax.adamw(1.0, weight_decay=0.5, mask=lambda tree: jax.tree.map(lambda leaf: leaf.ndim > 2, tree))
    optimizer = eight_bit(decaying, lambda name, leaf: Layout(256, stacked=True))
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    updates, _ = optimizer.update(zeros, optimizer.init(parameters), parameters)
    assert (np.asarray(updates["matrix"]) == -0.5).all() and not np.asarray(updates["vector"]).any()


def temporaries(optimizer: Any, parameters: Any) -> int:
    state = jax.eval_shape(optimizer.init, parameters)

    def step(gradients: Any, state: Any, parameters: Any) -> Any:
        updates, state = optimizer.update(gradients, state, parameters, updated=jnp.isfinite(gradients["w"][0, 0, 0]))
        return optax.apply_updates(parameters, updates), state

    quick = {"xla_backend_optimization_level": "0"}
    compiled = jax.jit(step, donate_argnums=(1, 2)).lower(parameters, state, parameters).compile(quick)
    return compiled.memory_analysis().temp_size_in_bytes


def test_no_moment_of_a_whole_stack_is_ever_fp32() -> None:
    layers, elements = 32, 256 * 256
    parameters = {"w": jax.ShapeDtypeStruct((layers, 256, 256), jnp.float32)}
    stacked = lambda name, leaf: Layout(256, stacked=True)  # noqa: E731
    whole = 4 * layers * elements
    # Beside the updates, which are results of their own here.
    assert temporaries(eight_bit(ADAM, stacked), parameters) < whole + whole / 8
    # An optimizer that mixes elements is asked for everything at once.
    mixing = optax.chain(optax.scale_by_adam(), optax.clip_by_global_norm(1.0))
    assert temporaries(eight_bit(mixing, stacked), parameters) > 2 * whole


def test_a_large_array_without_layers_is_cut_into_slices_of_whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "SLICE_ELEMENTS", 2000)
    assert Layout(256).slices((60, 64)) == 3  # 20 rows are 5 blocks; halves of 30 rows are 7.5
    assert Layout(256).slices((5000, 3)) == 1  # no part has whole blocks
    assert Layout(256).slices((30, 64)) == 1  # small enough
    assert Layout(0).slices((70, 64)) == 1
    assert Layout(256, stacked=True).slices((6, 5)) == 6


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda x: jnp.sqrt(x) * 2 + jnp.where(x > 0, x, 1.0), True),
        (lambda x: x * jnp.linspace(0.0, 1.0, 4)[2], True),
        (lambda x: x + jnp.full((4, 4), 2.0) * jnp.ones((4, 4)), True),
        (lambda x: (x, jnp.arange(4.0)), False),
        (lambda x: jnp.cumsum(x, axis=0), False),
        (lambda x: x - x.mean(), False),
        (lambda x: x @ x, False),
        (lambda x: x[::-1], False),
        (lambda x: x * jnp.arange(4.0)[:, None], False),
        (jnp.sort, False),
        (jax.jit(lambda x: x.T + 1), False),
        (lambda x: x + jnp.asarray(np.eye(4, dtype=np.float32)), False),
        (lambda x: x + jax.random.normal(jax.random.key(0), (4, 4)), False),
    ],
)
def test_what_counts_as_elementwise(function: Any, wanted: bool) -> None:
    assert is_elementwise(jax.make_jaxpr(function)(jnp.ones((4, 4)))) is wanted


@pytest.mark.parametrize(("inner", "wanted"), [(ADAM, True), (LION, True), (MOMENTUM, True), (optax.lamb(1e-3), False)])
def test_which_optimizers_are_elementwise(inner: Any, wanted: bool) -> None:
    state = inner.init(PARAMETERS)
    assert is_elementwise(jax.make_jaxpr(inner.update)(PARAMETERS, state, PARAMETERS)) is wanted


def test_moments_are_found_within_masked_and_chained_states() -> None:
    """Muon keeps one state for matrices and one for the rest, with holes where the other is meant."""
    optimizer = eight_bit(optax.contrib.muon(1e-3), lambda name, leaf: Layout(256 if leaf.ndim > 1 else 0))
    parameters = {"matrix": jnp.ones((64, 80)), "bias": jnp.ones(10)}
    state = optimizer.init(parameters)
    found = [leaf for leaf in jax.tree.leaves(state, is_leaf=is_moment) if isinstance(leaf, Moment)]
    assert [leaf.shape for leaf in found] == [(64, 80)]
    updates, _ = optimizer.update(gradient(0, parameters), state, parameters)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(updates))


def test_a_large_array_in_slices_is_kept_as_a_whole_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = {"w": jnp.ones((60, 64))}
    optimizer = eight_bit(ADAM)
    states = []
    for most in (2**22, 2000):
        monkeypatch.setattr(moments, "SLICE_ELEMENTS", most)
        _, state = jax.jit(optimizer.update)(gradient(0, parameters), optimizer.init(parameters), parameters)
        states.append(state)
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_a_schedule_from_a_table_does_not_make_an_optimizer_mix_elements() -> None:
    table = jnp.linspace(1e-3, 0.0, 10)
    inner = optax.adamw(lambda count: table[jnp.clip(count, 0, 9)])
    state = inner.init(PARAMETERS)
    assert is_elementwise(jax.make_jaxpr(inner.update)(PARAMETERS, state, PARAMETERS))
