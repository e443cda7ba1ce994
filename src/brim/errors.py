"""Every error brim raises on purpose, and the exit code each one ends a command with.

    BrimError                     1   found, expected, units; then one `hint:` line with the next step
    ├── SettingsError             2   a run file, an override or an argument is wrong
    ├── DataError                 1   a source, a tokenizer or a token store is wrong
    ├── ShapeError                1   arrays do not have the promised shapes; a step would have to be compiled again
    ├── TechniqueError            1   techniques conflict, or one cannot work on this program or device
    ├── CheckpointError           1   a checkpoint is missing, damaged, or belongs to another configuration
    ├── DivergenceError           1   too many updates in a row were not finite
    ├── DeviceError               1   a device, driver or compiler is not as needed
    └── NoPlanFits                3   nothing that was compiled fits the budget

Exit codes of the whole program: 0 done, 1 error, 2 usage, 3 no plan fits, 75 stopped by a signal and saved
(requeue me; EX_TEMPFAIL of sysexits.h), 130 interrupted before anything could be saved.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_DONE = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NO_PLAN = 3
EXIT_SAVED = 75
EXIT_INTERRUPTED = 130


class BrimError(Exception):
    """What went wrong in one or more plain sentences, and what to do next.

    Args:
        message: what was found and what was expected, with units.
        hint: the next step for the reader; printed on its own line as `hint: ...`.
    """

    exit_code = EXIT_ERROR

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}" if self.hint else self.message


class SettingsError(BrimError):
    """A run file, an override or an argument is wrong."""

    exit_code = EXIT_USAGE


class DataError(BrimError):
    """A source, a tokenizer or a token store is wrong."""


class ShapeError(BrimError):
    """Arrays do not have the promised shapes or dtypes."""


class TechniqueError(BrimError):
    """Techniques conflict, or one cannot work on this program or device."""


class CheckpointError(BrimError):
    """A checkpoint is missing, damaged, or belongs to another configuration."""


class DivergenceError(BrimError):
    """Too many updates in a row were not finite."""


class DeviceError(BrimError):
    """A device, driver or compiler is not as needed."""


class NoPlanFits(BrimError):
    """Nothing that was compiled fits the budget."""

    exit_code = EXIT_NO_PLAN


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word closest to a misspelt one, or None when nothing is close.

    Compares without case and with `-` and `_` alike, since those are the slips people make.
    """
    plain = {name.lower().replace("-", "_"): name for name in known}
    found = difflib.get_close_matches(word.lower().replace("-", "_"), plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for a word that is not known: the nearest one, or the list of all.

    >>> did_you_mean("learning_rte", ["learning_rate", "warmup"])
    'did you mean `learning_rate`?'
    """
    known = sorted(known)
    close = nearest(word, known)
    return f"did you mean `{close}`?" if close else f"known here: {', '.join(known)}"
