"""`brim.plan` on a loss and parameters that know nothing of brim."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import brim
from brim.errors import DeviceError, NoPlanFits
from brim.hardware.device import Device, named
from brim.hardware.probe import cache_folder
from brim.planner import Compiled, api, calibration, compile_window, shares
from brim.planner.question import Question
from brim.program import Program, from_mean_loss
from brim.techniques import Accumulation, Recipe
from planner.conftest import QUICK
from planner.stacked import CPU


def mlp_program() -> brim.Program:
    """A plain-JAX MLP with a loss written for one example."""

    def init(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        return {"in": jax.random.normal(first, (32, 512)), "out": jax.random.normal(second, (512, 1))}, (), ()

    def loss(params: Any, example: Any, key: Any) -> jax.Array:
        return jnp.square(jnp.tanh(example["x"] @ params["in"]) @ params["out"] - example["y"]).sum()

    row = {"x": jax.ShapeDtypeStruct((32,), jnp.float32), "y": jax.ShapeDtypeStruct((1,), jnp.float32)}
    return brim.Program(init, brim.from_example_loss(loss), optax.adam(1e-3), row)


def test_a_foreign_program_is_planned_built_and_trained() -> None:
    plan = brim.plan(mlp_program(), budget="4MiB", global_batch=2048)
    assert plan.chosen.peak_bytes is not None
    assert plan.chosen.peak_bytes <= 4 * 2**20
    assert plan.recipe.global_batch == 2048
    assert plan.recipe.accumulation > 1
    step = plan.build(mlp_program())
    random = np.random.default_rng(0)
    batch = {"x": random.normal(size=(2048, 32)).astype("f"), "y": random.normal(size=(2048, 1)).astype("f")}
    state = step.init(jax.random.key(0))
    losses = []
    for _ in range(5):
        state, metrics = step(state, batch)
        losses.append(float(metrics.loss))
    assert losses[-1] < losses[0]


def cnn_program() -> brim.Program:
    """An Equinox convolutional network for images of 3 x 16 x 16 in 10 classes."""

    def build(key: jax.Array) -> Any:
        first, second, third = jax.random.split(key, 3)
        layers = [
            eqx.nn.Conv2d(3, 16, 3, padding=1, key=first),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Conv2d(16, 32, 3, stride=2, padding=1, key=second),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Lambda(lambda x: x.mean((1, 2))),
            eqx.nn.Linear(32, 10, key=third),
        ]
        return eqx.nn.Sequential(layers)

    _, static = eqx.partition(build(jax.random.key(0)), eqx.is_array)

    def loss(params: Any, example: Any, key: Any) -> jax.Array:
        logits = eqx.combine(params, static)(example["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, example["label"])

    row = {"image": jax.ShapeDtypeStruct((3, 16, 16), jnp.float32), "label": jax.ShapeDtypeStruct((), jnp.int32)}
    return brim.Program(
        lambda key: (eqx.filter(build(key), eqx.is_array), (), ()), brim.from_example_loss(loss), optax.adam(3e-3), row
    )


def test_an_equinox_network_is_planned_owned_by_source_line_and_trained() -> None:
    program = cnn_program()
    plan = brim.plan(program, budget="6MiB", global_batch=128, workers=0)
    assert plan.recipe.accumulation > 1  # all rows at once would need more
    report = plan.memory_report
    assert report is not None and report.unexplained_share < 0.02
    assert report.owners["parameters"] == 4 * (16 * 27 + 16 + 32 * 144 + 32 + 320 + 10)
    sources = {row.owner.source.partition(":")[0] for row in report.rows}
    assert "test_api.py" in sources  # where the loss is written, since it has no scopes
    random = np.random.default_rng(0)
    label = np.arange(128, dtype=np.int32) % 10
    image = random.normal(size=(128, 3, 16, 16)).astype("f") + label[:, None, None, None].astype("f") / 3
    step = plan.build(program)
    state, losses = step.init(jax.random.key(0)), []
    for _ in range(10):
        state, metrics = step(state, {"image": image, "label": label})
        losses.append(float(metrics.loss))
    assert losses[-1] < 0.9 * losses[0]


def test_nothing_fits_is_an_error_with_a_way_out() -> None:
    with pytest.raises(NoPlanFits) as error:
        brim.plan(mlp_program(), budget="64KiB", global_batch=8)
    assert error.value.exit_code == 3
    assert error.value.hint


def test_an_unknown_device_suggests_the_nearest() -> None:
    with pytest.raises(DeviceError) as error:
        brim.plan(mlp_program(), device="rtx-4080x", budget="1GiB", global_batch=8)
    assert error.value.hint == "did you mean `rtx-4080`?"


# ---- the largest that fits


def mlp(width: int) -> Program:
    """A plain-JAX program whose state is 3 * 4 * 2 * 32 * width bytes."""

    def init(key: Any) -> Any:
        return {"in": jax.random.normal(key, (32, width)), "out": jnp.ones((width, 32))}, (), ()

    def loss(params: Any, batch: Any, key: Any) -> jax.Array:
        return jnp.square(jnp.tanh(batch @ params["in"]) @ params["out"]).mean()

    return Program(init, from_mean_loss(loss), optax.adam(1e-3), jax.ShapeDtypeStruct((32,), jnp.float32))


def quick(program: Program, recipe: Recipe, device: Device) -> Compiled:
    return compile_window(program, replace(recipe, compiler_options=QUICK), device)


def test_the_largest_of_a_foreign_program_fits_and_the_next_does_not() -> None:
    budget = 1_500_000
    lines: list[str] = []
    found = brim.largest(
        lambda n: mlp(64 * n),
        range(1, 65),
        what="width / 64",
        device=CPU,
        budget=budget,
        global_batch=4,
        progress=lines.append,
        updates=100,
        compile_recipe=quick,
    )
    assert found.plan.fits and found.plan.chosen.peak_bytes <= budget  # type: ignore[operator]
    assert found.plan.updates == 100
    above = found.border.above
    assert above == found.number + 1
    smallest = min(quick(mlp(64 * above), Recipe.of(4), CPU).memory.peak_bytes, budget + found.border.over_bytes)
    assert smallest == budget + found.border.over_bytes > budget
    assert sum(line.startswith("probe") for line in lines) == found.border.probes <= 12
    assert found.line.startswith(f"largest width / 64 that fits: {found.number} ({above} needs over by ")


# ---- shares that were measured before


def test_calibrated_shares_are_used_where_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    card, measured = named("rtx-4090"), {"products": 0.4, "bandwidth": 0.7}
    folder = cache_folder()
    folder.mkdir(parents=True)
    keys = map(shares._key, (card, CPU))
    (folder / "shares.json").write_text(json.dumps(dict.fromkeys(keys, measured)), encoding="utf-8")
    monkeypatch.setattr(api, "detect", lambda: CPU)
    monkeypatch.setattr(calibration, "measure", None)

    def question(device: Any) -> Question:
        return api._question(device, "1GiB", None, 8, (), None, allow_lossy=False)

    for device in (None, "rtx-4090", CPU):
        found = question(device).device
        assert (found.product_share, found.bandwidth_share) == (0.4, 0.7)
    own = replace(CPU, product_share=0.2, bandwidth_share=0.3)
    assert question(own).device == own
    plan = brim.plan(mlp(64), global_batch=2, budget="1GiB", micro_batch=2)
    assert (plan.device.product_share, plan.device.bandwidth_share) == (0.4, 0.7)


def test_everything_that_a_plan_may_be_asked_reaches_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Question] = []

    def survey(program: Any, question: Question, **how: Any) -> Any:
        asked.append(question)
        raise NoPlanFits("no search in this test")

    monkeypatch.setattr(api, "survey", survey)
    settled: dict[str, Any] = {"host_budget": "2GiB", "allow_lossy": True, "micro_batch": 2, "fixed": [Accumulation(4)]}
    settled |= {"device": CPU, "budget": "1GiB", "global_batch": 8, "cache": False}
    with pytest.raises(NoPlanFits):
        brim.plan(mlp(64), **settled)
    with pytest.raises(NoPlanFits):
        brim.largest(mlp, [64], workers=0, **settled)
    expected = Question(CPU, 2**30, 8, (Accumulation(4),), 2, host_budget_bytes=2**31, allow_lossy=True)
    assert asked == [expected, expected]
