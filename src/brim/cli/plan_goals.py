"""`brim plan --devices` and `--goal`: many plans of one run, for several devices or along one axis."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from rich.console import Console

from brim.errors import EXIT_DONE, EXIT_NO_PLAN
from brim.models.ladder import ladder, series_of, sizes_in_words
from brim.models.settings import DecoderSettings
from brim.models.shape import DecoderShape, parameter_count
from brim.planner import Plan
from brim.planner.border import Border, border_of
from brim.planner.compare import asked_devices, compare
from brim.planner.shares import basis
from brim.quantities import format_count
from brim.runfile import RunFile
from brim.supervisor.planning import plan_of
from brim.supervisor.request import Request, budget_of
from brim.techniques import Accumulation

Goal = Literal["largest-model", "largest-micro-batch", "longest-context"]

CONTEXT_STEP = 128
MOST_CONTEXT = 2**21
_STATE_BYTES_PER_PARAMETER = 16
"""Parameters, gradients and two moments in fp32: where the search for the largest model begins."""


@dataclass(frozen=True)
class Axis:
    """One goal as ascending runs: what is searched, the runs, and how each is written."""

    what: str
    runs: tuple[RunFile, ...]
    words: Callable[[RunFile], str]
    size: Callable[[RunFile], float]
    settings: Callable[[RunFile], str]
    start: int = 0


def run_devices(text: str, price_per_hour: float | None, plan_for: Callable[..., Plan], *, as_json: bool) -> int:
    """Compare devices, print, and say by the exit code whether any of them holds the run.

    Args:
        text: the devices as they were typed.
        plan_for: (device name, price per hour) -> plan.
    """
    asked = asked_devices(text, price_per_hour)
    found = compare(asked, lambda one: plan_for(one.name, one.price_per_hour), progress=tell)
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        Console().print(found)
        for name, plan in found.plans.items():
            print(f"{name}: predicted times are {basis(plan.device)}")
    return EXIT_DONE if found.fits else EXIT_NO_PLAN


@dataclass(frozen=True)
class Found:
    """What a goal led to.

    Attributes:
        plan: of the largest that fits.
        record: what it is, as plain values for JSON.
        lines: the same for people.
    """

    plan: Plan
    record: dict[str, Any]
    lines: tuple[str, ...]


def run_goal(goal: Goal, run: RunFile, request: Request) -> Found:
    """Search along one axis for the largest that fits, and plan for it.

    Args:
        run: with its vocabulary known.

    Raises:
        NoPlanFits: if nothing on the axis fits.
    """
    from brim.supervisor.searching import probing  # loads the data pipeline and Optax, which a kept plan does without

    request = replace(request, budget_bytes=budget_of(run, request))  # what is free may change while it searches
    axis = axis_of(goal, run, budget_of(run, request))
    with probing(axis.runs[axis.start], request) as over_bytes:
        border = border_of(
            axis.runs, over_bytes, what=axis.what, words=axis.words, size=axis.size, start=axis.start, progress=tell
        )
    plan = plan_of(border.value, request)
    settings = axis.settings(border.value)
    lines = border.line, f"to train it: brim train RUN.toml {settings}"
    return Found(plan, record(goal, border, settings), lines)


def record(goal: Goal, border: Border[RunFile], settings: str) -> dict[str, Any]:
    """What was found, as plain values for JSON."""
    shape = border.value.settings.model.resolved()
    return {
        "name": goal,
        "line": border.line,
        "overrides": settings,
        "parameters": parameter_count(shape),
        "context": shape.context,
        "micro_batch": border.value.settings.train.micro_batch,
        "next": None if border.above is None else border.words(border.above),
        "next_over_bytes": border.over_bytes,
        "probes": border.probes,
    }


def axis_of(goal: Goal, run: RunFile, budget_bytes: int) -> Axis:
    """The runs that a goal chooses among, smallest first. The rows of an update stay the same in all of them."""
    if goal == "largest-model":
        return _models(run, budget_bytes)
    return _micro_batches(run) if goal == "largest-micro-batch" else _contexts(run)


def _models(run: RunFile, budget_bytes: int) -> Axis:
    model = run.settings.model
    shape = model.resolved()
    shapes = ladder(shape, series_of(model.preset, shape.family))
    likely = [n for n, rung in enumerate(shapes) if _STATE_BYTES_PER_PARAMETER * parameter_count(rung) < budget_bytes]
    return Axis(
        what="model",
        runs=tuple(_with_shape(run, rung) for rung in shapes),
        words=lambda run: _model_words(run.settings.model.resolved()),
        size=lambda run: parameter_count(run.settings.model.resolved()),
        settings=lambda run: sizes_in_words(run.settings.model.resolved()),
        start=max(likely, default=0),
    )


def _micro_batches(run: RunFile) -> Axis:
    rows = run.settings.train.global_batch
    # What a file fixes of accumulation and micro-batch is what is searched here.
    free = replace(run, techniques=tuple(one for one in run.techniques if not isinstance(one, Accumulation)))
    divisors = [number for number in range(1, rows + 1) if rows % number == 0]
    return Axis(
        what="micro-batch",
        runs=tuple(_with_train(free, micro_batch=number) for number in divisors),
        words=lambda run: f"{run.settings.train.micro_batch} of {rows} rows",
        size=lambda run: run.settings.train.micro_batch or 0,
        settings=lambda run: f"--train.micro_batch {run.settings.train.micro_batch}",
    )


def _contexts(run: RunFile) -> Axis:
    lengths = [CONTEXT_STEP]
    while lengths[-1] < MOST_CONTEXT:  # steps of 3% at the most
        step = max(CONTEXT_STEP, lengths[-1] // 32 // CONTEXT_STEP * CONTEXT_STEP)
        lengths.append(lengths[-1] + step)
    shape = run.settings.model.resolved()
    return Axis(
        what="context",
        runs=tuple(_with_model(run, context=length) for length in lengths),
        words=lambda run: f"{run.settings.model.context} tokens",
        size=lambda run: run.settings.model.context or 0,
        settings=lambda run: f"--model.context {run.settings.model.context}",
        start=max((n for n, length in enumerate(lengths) if length <= shape.context), default=0),
    )


def _with_shape(run: RunFile, shape: DecoderShape) -> RunFile:
    keys = ("layers", "width", "heads", "kv_heads", "head_width", "hidden")
    # What the preset says beside sizes must stay, and a changed width would free it.
    kept = ("family", "context", "vocabulary", "tied", "bias", "rope_theta", "norm_epsilon", "dropout")
    model = DecoderSettings(**{key: getattr(shape, key) for key in (*keys, *kept)})
    return replace(run, settings=replace(run.settings, model=model))


def _with_model(run: RunFile, **changes: Any) -> RunFile:
    return replace(run, settings=replace(run.settings, model=replace(run.settings.model, **changes)))


def _with_train(run: RunFile, **changes: Any) -> RunFile:
    return replace(run, settings=replace(run.settings, train=replace(run.settings.train, **changes)))


def _model_words(shape: DecoderShape) -> str:
    count = format_count(parameter_count(shape))
    return f"{shape.layers} layers of width {shape.width}, {shape.heads} heads, {count} parameters"


def tell(line: str) -> None:
    """Progress goes to stderr: data alone goes to stdout."""
    print(line, file=sys.stderr, flush=True)
