"""`brim data RUN.toml`: prepare the tokens of a run, and look at them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from brim.cli.arguments import read_with_overrides
from brim.data import Corpus, batches
from brim.errors import EXIT_DONE
from brim.runfile import RunFile
from brim.settings import require
from brim.supervisor import setup
from brim.supervisor.folder import RunFolder
from brim.supervisor.talk import data_progress, say


@dataclass(frozen=True)
class Arguments:
    """Prepare the tokens of a run, and look at them as the model will.

    What is prepared here is used again by `brim train` with the same --out.
    """

    run_file: Annotated[Path, tyro.conf.Positional]
    """The run, as a TOML file."""
    out: Path | None = None
    """Folder of the run; otherwise runs/NAME with the name of the run file."""
    show: int = 0
    """Print this many of the first training rows, document by document."""


def run(arguments: list[str]) -> int:
    """Prepare, print counts, and show rows if asked to."""
    options, overrides = read_with_overrides(Arguments, arguments, "data")
    require(options.show >= 0, "--show", options.show, "0 or more rows", hint="such as --show 2")
    run_file = RunFile.load(options.run_file, overrides, needs_model=options.show > 0)
    folder = RunFolder(options.out or Path("runs") / options.run_file.stem)
    folder.make()
    corpus = setup.prepare_corpus(run_file, folder, data_progress())
    for warning in corpus.warnings:
        say(f"data: {warning}")
    print(f"vocabulary  {corpus.tokenizer.vocabulary_size}")
    for name, split in (("train", corpus.train), ("held out", corpus.held_out)):
        print(f"{name:10}  {split.tokens} tokens, {split.documents} documents")
    if options.show:
        _show(run_file, corpus, options.show)
    return EXIT_DONE


def _show(run_file: RunFile, corpus: Corpus, rows: int) -> None:
    settings = run_file.settings
    length = settings.model.resolved(tokenizer_vocabulary=corpus.tokenizer.vocabulary_size).context
    source = batches(
        corpus.train,
        rows=1,
        length=length,
        seed=settings.train.seed,
        epochs=None,
        pack=settings.data.pack,
        sampling=settings.data.sampling,
        prefetch=0,
    )
    most = rows if settings.data.sampling == "random" else source.rows_per_epoch
    require(rows <= most, "--show", rows, f"at most {most}, the rows of the training split", hint=f"--show {most}")
    for row, batch in zip(range(rows), source, strict=False):
        documents, tokens = batch["documents"][0], batch["tokens"][0]
        targets = int((batch["targets"][0] >= 0).sum())
        print(f"\nrow {row}: {int((documents > 0).sum())} tokens, {targets} targets, {documents.max()} documents")
        for number in range(1, int(documents.max()) + 1):
            text = corpus.tokenizer.decode(tokens[documents == number].tolist())
            print(f"  document {number}: {text!r}")
    source.close()
