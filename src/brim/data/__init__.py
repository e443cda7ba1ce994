"""Text in, batches out: sources, tokenizer, token store, and a Grain pipeline that resumes exactly.

    corpus = prepare(settings.data, run_folder / "data")
    for batch in batches(corpus.train, rows=8, length=256, seed=0, epochs=None, pack=True): ...

A batch is a dict of int32 arrays of shape [rows, length], the same for every batch: `tokens`; `targets` (the next
token, -100 where there is none); `documents` (1, 2, ... in each row, 0 for padding); `positions` (from 0 in each).

Names load on first use, so importing this package is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brim.data.corpus import Corpus, load_tokenizer, open_corpus, prepare
    from brim.data.pipeline import BatchIterator, batches, evaluation_batches
    from brim.data.rows import NO_TARGET, Batch
    from brim.data.settings import DataSettings
    from brim.data.store import TokenStore
    from brim.data.tokenizer import Tokenizer, save_tokenizer

__all__ = [
    "NO_TARGET",
    "Batch",
    "BatchIterator",
    "Corpus",
    "DataSettings",
    "TokenStore",
    "Tokenizer",
    "batches",
    "evaluation_batches",
    "load_tokenizer",
    "open_corpus",
    "prepare",
    "save_tokenizer",
]

_HOMES = {
    "NO_TARGET": "rows",
    "Batch": "rows",
    "BatchIterator": "pipeline",
    "Corpus": "corpus",
    "DataSettings": "settings",
    "TokenStore": "store",
    "Tokenizer": "tokenizer",
    "batches": "pipeline",
    "evaluation_batches": "pipeline",
    "load_tokenizer": "corpus",
    "open_corpus": "corpus",
    "prepare": "corpus",
    "save_tokenizer": "tokenizer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
