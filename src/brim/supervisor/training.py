"""Train a run, stop it in good order, and go on with it bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import jax

from brim.data import BatchIterator, Corpus, open_corpus
from brim.errors import EXIT_DONE, EXIT_SAVED, CheckpointError, SettingsError
from brim.hardware.device import detect
from brim.planner import Plan
from brim.program import Program
from brim.quantities import format_bytes, format_count, format_seconds
from brim.runfile import KEEPS_THE_STATE, RunFile
from brim.supervisor import setup
from brim.supervisor.folder import RunFolder, write_whole
from brim.supervisor.peak import PeakMemory
from brim.supervisor.planning import load_plan, plan_run, reserve_device_memory
from brim.supervisor.talk import data_progress, say
from brim.training.checkpoint import Checkpoints
from brim.training.curves import draw_curves
from brim.training.environment import describe_environment
from brim.training.evaluation import evaluate
from brim.training.loop import Loop, Outcome
from brim.training.progress import Progress
from brim.training.schedules import Horizon, horizon_change
from brim.training.signals import stop_on_signals
from brim.training.state import State
from brim.training.step import Step
from brim.training.tensorboard import TensorBoard
from brim.training.tracking import MetricsFile, Tracker, read_metrics
from brim.tree import tree_size


@dataclass(frozen=True)
class Session:
    """A run with everything it needs in place, from a window on."""

    run: RunFile
    folder: RunFolder
    plan: Plan
    program: Program
    step: Step
    corpus: Corpus
    batches: BatchIterator
    checkpoints: Checkpoints


def train(run: RunFile, folder: RunFolder, *, price_per_hour: float | None = None) -> int:
    """Prepare the data, plan, and train to the end or to a signal.

    Returns: the exit code: 0, or 75 when stopped by a signal and saved.

    Raises:
        BrimError: as its parts do.
    """
    folder.create()
    corpus = setup.prepare_corpus(run, folder, data_progress())
    for warning in corpus.warnings:
        say(f"data: {warning}")
    run = run.with_vocabulary(corpus.tokenizer.vocabulary_size)
    setup.require_rows(run, corpus)
    write_whole(folder.settings, run.to_toml())
    plan = plan_run(folder, price_per_hour=price_per_hour)
    reserve_device_memory(plan)
    with _session(run, folder, plan, corpus) as session:
        if session.checkpoints.latest() is not None:
            raise SettingsError(f"{folder.path} holds a run with checkpoints", hint=f"brim resume {folder.path}")
        state = session.step.init(jax.random.key(run.settings.train.seed))
        say(_introduction(session, state))
        return _run(session, state, held_out_loss=None)


def resume(folder: RunFolder, overrides: Sequence[str] = ()) -> int:
    """Go on from the newest complete checkpoint; what follows equals the uninterrupted run in every bit.

    Args:
        overrides: `--key value` words; only keys that leave the meaning of the state alone may change.

    Returns: the exit code, as for `train`.

    Raises:
        CheckpointError: if there is no checkpoint, or a changed key would change what the state means.
    """
    saved = folder.load_settings()
    run = RunFile.load(folder.settings, overrides)
    _refuse_changed_meaning(saved, run)
    plan = load_plan(folder)
    reserve_device_memory(plan)
    corpus = open_corpus(folder.store_of(run))
    with _session(run, folder, plan, corpus) as session:
        window = session.checkpoints.latest()
        if window is None:
            raise CheckpointError(
                f"{folder.path} has no complete checkpoint to resume from", hint="start again: brim train"
            )
        _require_horizon_choice(saved, run, session.checkpoints.records(window))
        state, records = session.checkpoints.restore(window, session.step.assembly.state)
        session.batches.restore(records["data"])
        write_whole(folder.settings, run.to_toml())
        for line in environment_changes(records["environment"], describe_environment()):
            say(f"environment: {line}")
        say(f"resuming {folder.path} after window {window} of {run.settings.train.updates}")
        return _run(session, state, held_out_loss=records["held_out_loss"])


@contextmanager
def _session(run: RunFile, folder: RunFolder, plan: Plan, corpus: Corpus) -> Iterator[Session]:
    setup.enable_compilation_cache()
    program = setup.build_program(run)
    settings = run.settings.train
    with ExitStack() as stack:
        batches = setup.training_batches(run, program.tokens_per_row, corpus)
        stack.callback(batches.close)
        checkpoints = Checkpoints(folder.checkpoints, keep_last=settings.keep_last, keep_best=settings.keep_best)
        stack.callback(checkpoints.close)
        step = Step(program, plan.recipe, detect())
        yield Session(run, folder, plan, program, step, corpus, batches, checkpoints)


def _run(session: Session, state: State, held_out_loss: float | None) -> int:
    start = int(state.window)
    _ = session.step.compiled  # compile now, so that what techniques decided is said before the first window
    for note in session.step.notes:
        say(f"note: {note}")
    settings = session.run.settings.train
    # Signals stay what they are until the end: schedulers repeat them while what is saved is still being drawn.
    with stop_on_signals() as request, ExitStack() as stack:
        metrics = MetricsFile(session.folder.metrics, after_window=start)
        trackers: list[Tracker] = [
            metrics,
            TensorBoard(session.folder.tensorboard, after_window=start),
            Progress(settings.updates, every=settings.log_every, held_out_loss=held_out_loss),
            peak := PeakMemory(session.folder.memory, session.plan.chosen.peak_bytes or 0),
        ]
        for tracker in trackers:
            stack.callback(tracker.close)
        loop = Loop(
            step=session.step,
            settings=settings,
            trackers=trackers,
            evaluate=_evaluation(session),
            save=_saving(session),
            stop=lambda: bool(request),
            elapsed_seconds=metrics.last.elapsed_seconds if metrics.last else 0.0,
        )
        outcome = loop.run(state, setup.only_arrays_of(session.program, session.batches))
        session.checkpoints.wait()
        stack.close()
        say(peak.describe())
        return _finish(session, outcome)


def _finish(session: Session, outcome: Outcome) -> int:
    path = session.folder.path
    with suppress(KeyboardInterrupt):  # all is saved, and a picture that is not wanted changes nothing about that
        if records := read_metrics(session.folder.metrics):
            draw_curves(records, session.folder.curves, title=path.name)
    if outcome.stopped:
        say(f"stopped after window {outcome.window} and saved; go on with: brim resume {path}")
        return EXIT_SAVED
    held_out = "" if outcome.held_out_loss is None else f", held-out loss {outcome.held_out_loss:.4f}"
    say(f"done: {outcome.window} windows{held_out}; curves: {session.folder.curves}")
    return EXIT_DONE


def _evaluation(session: Session) -> Any:
    if session.corpus.held_out.tokens == 0:
        return None
    micro_batch = session.step.recipe.micro_batch

    def held_out_loss(state: State) -> float:
        source = setup.held_out_batches(session.run, session.program, session.corpus, micro_batch)
        return evaluate(session.step, state, source)

    return held_out_loss


def _saving(session: Session) -> Any:
    environment = describe_environment()

    def save(window: int, state: State, held_out_loss: float | None, /) -> None:
        records = {
            "settings": session.run.to_toml(),
            "recipe": session.step.recipe.to_tables(),
            "data": session.batches.state(),
            "update": int(state.update),
            "environment": environment,
            "held_out_loss": held_out_loss,
        }
        session.checkpoints.save(window, state, records, loss=held_out_loss)

    return save


def _introduction(session: Session, state: State) -> str:
    parameters, corpus, plan = tree_size(state.trainable), session.corpus, session.plan
    peak, budget = format_bytes(plan.chosen.peak_bytes or 0), format_bytes(plan.budget_bytes)
    length = f"; about {format_seconds(plan.run_seconds)} (predicted)" if plan.run_seconds else ""
    return (
        f"{format_count(parameters)} parameters, {format_count(corpus.train.tokens)} training tokens "
        f"({session.batches.steps_per_epoch} windows an epoch), {format_count(corpus.held_out.tokens)} held out\n"
        f"plan: {plan.recipe.describe()}; {peak} of {budget}{length}"
    )


def _refuse_changed_meaning(saved: RunFile, run: RunFile) -> None:
    changed = {key: pair for key, pair in saved.changes(run).items() if key not in KEEPS_THE_STATE}
    if changed:
        shown = "\n  ".join(f"{key}: {old!r} -> {new!r}" for key, (old, new) in changed.items())
        raise CheckpointError(
            f"{len(changed)} changed settings would change what the saved state means:\n  {shown}",
            hint="resume without them, or start a new run with `brim train`",
        )


def _require_horizon_choice(saved: RunFile, run: RunFile, records: dict[str, Any]) -> None:
    """A longer or shorter run moves the whole schedule: show by how much, and ask for a choice."""
    old, new = saved.settings, run.settings
    if old.train.schedule_updates == new.train.schedule_updates:
        return
    before = Horizon(old.schedule, old.train.schedule_updates)
    after = Horizon(new.schedule, new.train.schedule_updates)
    change = horizon_change(before, after, records["update"])
    if change is not None and new.train.horizon is not None:
        say(f"schedule: {change}")
    elif change is not None:
        raise SettingsError(
            str(change),
            hint=f"add --train.horizon {after.total_updates} to stretch the schedule, or "
            f"--train.horizon {before.total_updates} to keep it and go on at its end value",
        )


def environment_changes(old: Any, new: Any, path: str = "") -> list[str]:
    """What differs between the environment of a checkpoint and the one here, a line each; versions and devices only.

    Any of them may change the order of floating-point sums, and with it the last bits.
    """
    keys = ("versions", "devices") if not path else sorted({*old, *new}) if isinstance(old, dict) else ()
    lines: list[str] = []
    for key in keys:
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            lines += environment_changes(before, after, f"{path}{key}.")
        elif before != after:
            lines.append(f"{path}{key} was {before}, is {after}: bits may differ from the uninterrupted run")
    return lines
