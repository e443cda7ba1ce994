"""From a run file to the things it names: corpus, program, step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from brim.data import Batch, BatchIterator, Corpus, batches, evaluation_batches, prepare
from brim.models.decoder import decay_mask, decoder_program
from brim.program import Program
from brim.runfile import RunFile
from brim.supervisor.folder import RunFolder
from brim.training.optimizers import optimizer
from brim.training.schedules import schedule


def enable_compilation_cache() -> Path:
    """Keep compiled programs on disk, so that a second start of the same step takes seconds less.

    Returns: the folder, below the user's cache folder.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = home / "brim" / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    return folder


def prepare_corpus(run: RunFile, folder: RunFolder, progress: Callable[[str, float], None] | None = None) -> Corpus:
    """The run's tokens, made now or used again; `data.store` or the run's own folder holds them.

    Raises:
        DataError: if the sources cannot be read or are empty.
    """
    return prepare(run.settings.data, folder.store_of(run), progress=progress)


def build_program(run: RunFile) -> Program:
    """The program of a run whose vocabulary is known.

    Raises:
        SettingsError: if model, schedule and length do not go together.
    """
    settings = run.settings
    shape = settings.model.resolved()
    rate = schedule(settings.schedule, settings.train.schedule_updates)
    transformation = optimizer(settings.optimizer, rate, decay_mask)
    program = decoder_program(shape, transformation, settings.optimizer.clip_norm, packed=settings.data.pack)
    return replace(program, learning_rate=rate)


def require_rows(run: RunFile, corpus: Corpus) -> None:
    """Check that there are rows to train on, and rows to evaluate if anything is held out; before planning does it.

    Raises:
        DataError: naming how many there are and how many are needed.
    """
    length = run.settings.model.resolved().context
    training_batches(run, length, corpus).close()
    if corpus.held_out.tokens:
        evaluation_batches(corpus.held_out, rows=1, length=length, pack=run.settings.data.pack).close()


def training_batches(run: RunFile, length: int, corpus: Corpus) -> BatchIterator:
    """Global batches for ever, in the order that the seed gives, in rows of `length` tokens.

    Raises:
        DataError: if there is less than one batch.
    """
    settings = run.settings
    return batches(
        corpus.train,
        rows=settings.train.global_batch,
        length=length,
        seed=settings.train.seed,
        epochs=None,
        pack=settings.data.pack,
        sampling=settings.data.sampling,
    )


def held_out_batches(run: RunFile, program: Program, corpus: Corpus, micro_batch: int) -> Iterator[Batch]:
    """The held-out rows once, in micro-batches of the run's recipe.

    Raises:
        DataError: if nothing is held out.
    """
    source = evaluation_batches(
        corpus.held_out,
        rows=micro_batch,
        length=program.tokens_per_row,
        pack=run.settings.data.pack,
        most_rows=run.settings.train.evaluation_rows or None,
    )
    return only_arrays_of(program, source)


def only_arrays_of(program: Program, source: Iterator[Batch]) -> Iterator[dict[str, np.ndarray]]:
    """The arrays of each batch that the program takes."""
    return ({name: batch[name] for name in program.row} for batch in source)
