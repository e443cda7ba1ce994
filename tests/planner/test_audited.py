"""The report of a plan, against bytes counted by hand and against the plan's own figures."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import optax
import pytest

from brim.compiled import Timeline
from brim.errors import DeviceError
from brim.models.decoder import decoder_program
from brim.models.settings import DecoderSettings
from brim.planner import Plan
from brim.planner.audited import thinned, with_report
from brim.planner.compile import CompileFunction
from brim.planner.question import Question
from brim.planner.search import survey
from brim.techniques import Accumulation, Recipe
from brim.tree import tree_bytes
from planner.conftest import audit_recipe
from planner.stacked import CPU, LENGTH, PARAMETERS, WIDTH, stacked_program

ROWS = 8


def test_owners_of_the_chosen_one_are_the_ledgers_and_sum_to_its_peak(reported: Plan) -> None:
    owners = reported.chosen.owners
    assert sum(owners.values()) == reported.chosen.peak_bytes
    assert owners["parameters"] == owners["optimizer mu"] == owners["optimizer nu"] == 4 * PARAMETERS
    assert owners["batch"] == 4 * ROWS * LENGTH * WIDTH
    assert reported.memory_report is not None and reported.memory_report.owners == owners
    assert reported.kernels is not None and sum(reported.kernels.flops.values()) > 6 * PARAMETERS * ROWS * LENGTH


def test_every_other_candidate_keeps_the_owners_of_its_memory_analysis(reported: Plan) -> None:
    others = [each for each in reported.candidates if each.memory and each is not reported.chosen]
    assert others
    assert all(each.owners == each.memory.owners for each in others if each.memory)


def test_json_round_trip_with_a_report(reported: Plan) -> None:
    record = json.loads(json.dumps(reported.to_json(), allow_nan=False))
    assert record["chosen"]["owners"] == reported.chosen.ledger
    assert record["report"]["peak"]["bytes"] <= record["chosen"]["peak_bytes"]
    assert Plan.from_json(record) == reported


def test_without_a_plan_the_report_is_about_the_smallest_found(compile_recipe: CompileFunction) -> None:
    plan = survey(
        stacked_program(), Question(CPU, 1, ROWS, micro_batch=1),
        compile_recipe=compile_recipe, audit_recipe=audit_recipe,
    )  # fmt: skip
    assert not plan.fits
    smallest = min((each for each in plan.candidates if each.memory), key=lambda each: each.peak_bytes or 0)
    assert plan.shown == smallest
    assert plan.memory_report is not None and plan.memory_report.peak_bytes == smallest.peak_bytes


def test_a_program_that_cannot_be_read_leaves_the_plan_and_a_note(reported: Plan) -> None:
    def unreadable(*_: Any) -> Any:
        raise DeviceError("XLA wrote another format")

    plain = _without_report(reported)
    found = with_report(plain, stacked_program(), unreadable)
    assert (found.memory_report, found.kernels, found.chosen.ledger) == (None, None, {})
    assert found.chosen.notes[-1] == "no report by owner: XLA wrote another format"
    assert "no report by owner" in str(found)


def test_a_report_on_another_peak_is_not_shown(reported: Plan) -> None:
    memory = reported.chosen.memory
    assert memory is not None
    plain = _without_report(reported)
    other = replace(plain.chosen, memory=replace(memory, temporaries=memory.temporaries + 1))
    plain = replace(plain, candidates=tuple(other if each is plain.chosen else each for each in plain.candidates))
    found = with_report(plain, stacked_program(sizes=True), audit_recipe)
    assert found.memory_report is None
    assert f"{memory.peak_bytes + 1}" in found.chosen.notes[-1]


@pytest.mark.parametrize(
    ("vocabulary", "told"), [(999, 999), (1, None), (WIDTH, None)], ids=["telling", "one", "as the width"]
)
def test_a_vocabulary_that_is_another_size_too_tells_nothing(reported: Plan, vocabulary: int, told: int | None) -> None:
    program = stacked_program(sizes=True)
    assert program.sizes is not None
    heard = []

    class Unread:
        def memory_report(self, vocabulary: int | None) -> Any:
            heard.append(vocabulary)
            raise DeviceError("enough")

    with_report(
        _without_report(reported),
        replace(program, sizes=replace(program.sizes, vocabulary=vocabulary)),
        lambda *_: Unread(),  # type: ignore[arg-type, return-value]
    )
    assert heard == [told]


@pytest.mark.parametrize("seed", range(5))
def test_a_thinned_timeline_keeps_every_peak(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = 3000
    walks = {kind: np.abs(random.normal(size=count).cumsum() * 1000).astype(int) for kind in ("a", "b", "c")}
    full = Timeline(
        instants=tuple(range(0, 2 * count, 2)),
        phases=tuple("forward" if place < count // 2 else "backward" for place in range(count)),
        temporaries={kind: tuple(map(int, walk)) for kind, walk in walks.items()},
        resident={"parameters": 5000},
        length=2 * count,
    )
    thin = thinned(full, most=100)
    assert 100 <= len(thin.instants) <= 107
    for kind in ("", *full.kinds):
        assert max(thin.live_bytes(without=kind)) == max(full.live_bytes(without=kind))
    live = dict(zip(full.instants, full.live_bytes(), strict=True))
    phases = dict(zip(full.instants, full.phases, strict=True))
    assert thin.live_bytes() == tuple(live[instant] for instant in thin.instants)
    assert thin.phases == tuple(phases[instant] for instant in thin.instants)
    assert (thin.instants[0], thin.instants[-1]) == (full.instants[0], full.instants[-1])
    assert thinned(thin, most=200) is thin


def test_gradient_sums_are_gradients_where_logits_make_the_peak() -> None:
    shape = DecoderSettings(layers=2, width=32, heads=2, context=64, vocabulary=2048).resolved()
    program = decoder_program(shape, optax.adamw(1e-3), clip_norm=1.0)
    report = audit_recipe(program, Recipe.of(4, Accumulation(4)), CPU).memory_report(vocabulary=shape.vocabulary)
    assert next(iter(report.owners)) == "logits and loss"
    # All but the smallest sums, of which XLA lays some into bytes that hold something else by then.
    assert report.owners["gradients"] >= 0.95 * tree_bytes(program.part_specs()[0])
    assert "accumulation/add" not in {row.owner.path for row in report.rows if row.owner.kind != "gradients"}


def _without_report(plan: Plan) -> Plan:
    bare = tuple(replace(each, ledger={}) for each in plan.candidates)
    return replace(plan, candidates=bare, memory_report=None, kernels=None)
