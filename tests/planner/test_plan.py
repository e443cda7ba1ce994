"""The record of a search: JSON, printing, length and price, building a step."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

from brim.errors import CheckpointError
from brim.hardware.device import named
from brim.planner import Plan
from brim.planner.compile import CompileFunction
from brim.planner.question import Question
from brim.planner.search import survey
from brim.planner.space import settings_of, settings_words
from brim.planner.table import shared_settings
from planner.conftest import QUICK
from planner.stacked import CPU, LENGTH, WIDTH, stacked_program

ROWS = 8
BUDGET = 1200 * 2**10


@pytest.fixture(scope="module")
def plan(compile_recipe: CompileFunction) -> Plan:
    program = stacked_program(sizes=True)
    found = survey(program, Question(CPU, BUDGET, ROWS), compile_recipe=compile_recipe)
    return replace(found, updates=2000, price_per_hour=1.8)


def test_json_round_trip(plan: Plan) -> None:
    text = json.dumps(plan.to_json(), allow_nan=False)
    assert Plan.from_json(json.loads(text)) == plan
    elsewhere = replace(plan, device=named("rtx-4090"))
    assert Plan.from_json(json.loads(json.dumps(elsewhere.to_json()))).device == named("rtx-4090")


def test_json_contract(plan: Plan) -> None:
    record = plan.to_json()
    assert list(record)[:8] == [
        *("fits", "device", "budget_bytes", "host_budget_bytes", "versions", "seconds", "chosen", "candidates"),
    ]
    assert (record["fits"], record["device"], record["budget_bytes"]) == (True, "cpu", BUDGET)
    assert set(record["versions"]) == {"brim", "jax", "jaxlib", "platform"}
    for candidate in (record["chosen"], *record["candidates"]):
        assert list(candidate)[:11] == [
            *("techniques", "micro_batch", "accumulation", "peak_bytes", "host_bytes", "owners"),
            *("predicted_step_seconds", "predicted_tokens_per_second", "recompute_share", "compiled", "reason"),
        ]
        assert candidate["micro_batch"] * candidate["accumulation"] == ROWS
        if candidate["compiled"]:
            assert sum(candidate["owners"].values()) == candidate["peak_bytes"]
        else:
            assert candidate["peak_bytes"] is None
    assert 0 < record["chosen"]["predicted_mfu"] < 1
    tokens = record["chosen"]["predicted_tokens_per_second"] * record["chosen"]["predicted_step_seconds"]
    assert tokens == pytest.approx(ROWS * LENGTH)


def test_json_of_a_search_without_a_plan(plan: Plan) -> None:
    rejected = tuple(c for c in plan.candidates if not c.fits)
    none = replace(plan, candidates=rejected)
    record = json.loads(json.dumps(none.to_json()))
    assert (record["fits"], record["chosen"], record["run_seconds"]) == (False, None, None)
    assert Plan.from_json(record) == none


@pytest.mark.parametrize("damage", ["budget_bytes", "candidates", "device_facts"])
def test_a_damaged_record_is_said(plan: Plan, damage: str) -> None:
    record = plan.to_json()
    del record[damage]
    with pytest.raises(CheckpointError, match=damage):
        Plan.from_json(record)


def test_length_and_price(plan: Plan) -> None:
    assert plan.run_seconds == 2000 * plan.chosen.cost.seconds
    assert plan.price == pytest.approx(2000 * plan.chosen.cost.seconds / 3600 * 1.8)
    assert replace(plan, updates=None).price is None
    assert "2000 updates take about" in str(plan) and "(predicted)" in str(plan)
    assert "updates take" not in str(replace(plan, updates=None))


@pytest.mark.parametrize("columns", ["60", "80", "100", "200"])
def test_printing_wraps_and_cuts_nothing(plan: Plan, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = str(plan)
    assert max(map(len, text.splitlines())) <= int(columns)
    assert "\x1b" not in text and "…" not in text
    words = " ".join(text.split())
    for word in ("chosen", "second", "third", "parameters", "gradients", "optimizer", "batch"):
        assert word in words
    assert "recompute share" in words and "predicted" in words and "of the budget" in words
    assert "products" in words and "elementwise" in words and "predicted MFU" in words


def test_every_reason_of_what_was_compiled_is_printed_whole(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    text = " ".join(str(plan).split())
    compiled_over = [candidate for candidate in plan.candidates if candidate.outcome == "over"]
    assert compiled_over
    for candidate in compiled_over:
        assert candidate.reason in text
    shared = shared_settings(plan.candidates)
    assert settings_words(shared) in text
    for candidate in plan.candidates:
        assert settings_words([t for t in settings_of(candidate.recipe) if t not in shared]) in text


def test_square_brackets_are_no_markup(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    odd = replace(plan, device=replace(CPU, kind="CPU [bold]"))
    first, *others = odd.candidates
    odd = replace(odd, candidates=(replace(first, reason="[red] f32[8,16]"), *others))
    assert "CPU [bold]" in str(odd) and "[red] f32[8,16]" in str(odd)


def test_a_terminal_gets_the_same_table_in_colour(plan: Plan) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system="standard")
    console.print(plan)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[1m" in text and "second" in text


def test_a_search_without_a_plan_shows_the_smallest(compile_recipe: CompileFunction) -> None:
    plan = survey(stacked_program(), Question(CPU, 1, ROWS, micro_batch=1), compile_recipe=compile_recipe)
    assert "smallest found" in str(plan) and "over by" in str(plan)


def test_a_plan_builds_the_step_it_compiled_and_it_runs(plan: Plan) -> None:
    quick = replace(plan.chosen, recipe=replace(plan.recipe, compiler_options=QUICK))
    plan = replace(plan, candidates=(quick,))
    step = plan.build(stacked_program(sizes=True))
    assert step.recipe == quick.recipe
    found, planned = step.compiled.memory_analysis(), plan.chosen.memory
    assert planned is not None
    assert (found.argument_size_in_bytes, found.alias_size_in_bytes) == (planned.arguments, planned.aliased)
    assert found.temp_size_in_bytes == planned.temporaries
    state, metrics = step(step.init(jax.random.key(0)), {"x": jnp.ones((ROWS, LENGTH, WIDTH))})
    assert (int(state.update), bool(metrics.updated)) == (1, True)
