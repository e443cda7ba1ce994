"""Predicted seconds, against arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.planner.cost import BANDWIDTH_SHARE, KERNEL_SECONDS, LINK_SHARE, PRODUCT_SHARE, Cost, Work
from brim.planner.cost_model import CostModel
from brim.planner.traffic import Traffic
from brim.techniques import Accumulation, Recipe, Rematerialization
from planner.stacked import CPU, HIDDEN, LAYERS, LENGTH, WIDTH, stacked_program

ROWS = 16
FORWARD_FLOPS = ROWS * LENGTH * LAYERS * 2 * (2 * WIDTH * HIDDEN)
# The first layer's input is data: its gradient is not asked for, but a scan computes it all the same.
STEP_FLOPS = 3 * FORWARD_FLOPS


def recipe(micro_batch: int, **settings: object) -> Recipe:
    return Recipe.of(micro_batch, Accumulation(ROWS // micro_batch), Rematerialization(**settings))  # type: ignore[arg-type]


def model(*recipes: Recipe) -> CostModel:
    return CostModel(stacked_program(), CPU, recipes)


def test_each_term_by_hand() -> None:
    work = Work({"float32": 6e10, "bfloat16": 6e10}, Traffic(products=8e8, elementwise=8e9, loops=4e9, kernels=1000))
    device = replace(CPU, peak_flops=replace(CPU.peak_flops, bfloat16=2e11))
    cost = Cost.of(work, device)
    assert cost.terms["products"] == pytest.approx((0.6 + 0.3) / PRODUCT_SHARE)
    assert cost.terms["elementwise"] == pytest.approx(0.8 / BANDWIDTH_SHARE)
    assert cost.terms["loops"] == pytest.approx(0.4 / BANDWIDTH_SHARE)
    assert cost.terms["kernels"] == pytest.approx(1000 * KERNEL_SECONDS["cpu"])
    assert cost.seconds == pytest.approx(sum(cost.terms.values()))


def test_products_take_at_least_the_time_of_their_operands() -> None:
    cost = Cost.of(Work({"float32": 1.0}, Traffic(products=1e10)), CPU)
    assert cost.terms["products"] == pytest.approx(1 / BANDWIDTH_SHARE)


def test_products_of_a_step_are_three_forward_passes() -> None:
    cost = model(recipe(ROWS)).cost(recipe(ROWS))
    assert cost.terms["products"] == pytest.approx(STEP_FLOPS / (PRODUCT_SHARE * CPU.peak_flops.float32))
    assert cost.recompute_share == 0


def test_full_rematerialization_runs_the_forward_products_again() -> None:
    # The last product of a block feeds only the sum that follows, whose gradient needs tanh of it: it runs again too.
    full = recipe(ROWS, policy="full")
    assert model(full).cost(full).recompute_share == pytest.approx(1 / 3)


def test_keeping_the_products_repeats_none_of_them() -> None:
    kept = recipe(ROWS, policy="dots_without_batch")
    assert model(kept).cost(kept).recompute_share == 0


def test_more_rows_at_a_time_are_never_slower() -> None:
    splits = [recipe(rows) for rows in (16, 8, 4, 2, 1)]
    costs = model(*splits)
    seconds = [costs.cost(split).seconds for split in splits]
    assert seconds == sorted(seconds) and len(set(seconds)) == len(seconds)


def test_a_stack_that_is_written_out_copies_less() -> None:
    scanned, unrolled = recipe(ROWS), recipe(ROWS, unroll=0)
    costs = model(scanned, unrolled)
    assert costs.cost(unrolled).terms["loops"] < costs.cost(scanned).terms["loops"]
    assert costs.cost(unrolled).terms["products"] == costs.cost(scanned).terms["products"]


@pytest.mark.parametrize(("policy", "tolerance"), [("none", 1e-3), ("full", 0.05)])
def test_splits_that_are_not_traced_are_as_if_they_were(policy: str, tolerance: float) -> None:
    splits = [recipe(rows, policy=kind) for kind in ("none", policy) for rows in (8, 4, 1)]
    traced = model(recipe(4, policy=policy)).cost(recipe(4, policy=policy))
    predicted = model(*splits).cost(recipe(4, policy=policy))
    assert predicted.seconds == pytest.approx(traced.seconds, rel=tolerance)
    assert predicted.terms["products"] == pytest.approx(traced.terms["products"], rel=tolerance)


def test_bytes_over_the_link_are_counted_in_full() -> None:
    card = replace(CPU, host_link_bytes_per_second=1e9)
    work = Work({"float32": 6e10}, Traffic(host=8e8))
    cost = Cost.of(work, card)
    assert cost.terms["host_link"] == pytest.approx(0.8 / LINK_SHARE)
    assert cost.seconds == pytest.approx(cost.terms["products"] + cost.terms["host_link"])
    assert Cost.of(work, CPU).terms["host_link"] == pytest.approx(0.08 / LINK_SHARE)
    assert Cost.of(Work({}, Traffic()), card).terms["host_link"] == 0


def test_measured_shares_stand_in_for_assumed_ones() -> None:
    work = Work({"float32": 6e10}, Traffic(elementwise=8e9))
    cost = Cost.of(work, replace(CPU, product_share=0.3, bandwidth_share=1.6))
    assert cost.terms["products"] == pytest.approx(0.6 / 0.3)
    assert cost.terms["elementwise"] == pytest.approx(0.8 / 1.6)


def test_mfu_is_products_without_recomputation_over_peak_and_seconds() -> None:
    full = recipe(ROWS, policy="full")
    cost = model(full).cost(full)
    assert cost.mfu == pytest.approx(STEP_FLOPS / (CPU.peak_flops.float32 * cost.seconds))
    assert 0 < cost.mfu < PRODUCT_SHARE / (1 + cost.recompute_share) + 1e-9
    assert Cost.of(Work({}, Traffic()), CPU).mfu == 0


def test_every_platform_has_kernels() -> None:
    assert Cost.of(Work({"float32": 1.0}, Traffic(kernels=1)), replace(CPU, platform="tpu")).seconds > 0
