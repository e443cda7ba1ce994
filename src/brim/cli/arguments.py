"""Reading a command's words: its few flags by tyro; every `--section.key value` is an override of the run file.

A flag that may be left out has no word for that: `None` is neither offered nor understood. A flag that takes one of
some words says which, and the nearest, when it is given another.
"""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from brim.errors import nearest
from brim.settings import require

T = TypeVar("T")


def read(kind: type[T], words: list[str], command: str) -> T:
    """The flags of a command that takes no overrides; a wrong one ends the program with exit code 2."""
    return tyro.cli(kind, args=words, **_how(command))


def read_with_overrides(kind: type[T], words: list[str], command: str) -> tuple[T, list[str]]:
    """The flags of a command, and the words that override keys of its run file, in any order."""
    flags, overrides = _apart(words)
    known, unknown = tyro.cli(kind, args=flags, return_unknown_args=True, **_how(command))
    return known, [*overrides, *unknown]


def require_price(price_per_hour: float | None) -> None:
    """Check `--price-per-hour`.

    Raises:
        SettingsError: if it is not a number of 0 or more.
    """
    right = price_per_hour is None or 0 <= price_per_hour < math.inf
    require(right, "--price-per-hour", price_per_hour, "0 or more per hour", hint="such as --price-per-hour 0.35")


def _apart(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Words of flags, and words of overrides: `--a.b VALUE` or `--a.b=VALUE`, which no flag looks like."""
    flags: list[str] = []
    overrides: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, _ = word.partition("=")
        if not (name.startswith("--") and "." in name):
            flags.append(word)
            continue
        # tyro would take the value for the run file if that comes later.
        overrides += [word] if equals else [word, *itertools.islice(remaining, 1)]
    return flags, overrides


def _how(command: str) -> dict[str, Any]:
    registry = ConstructorRegistry()
    registry.primitive_rule(_one_of_some_words)
    return {"prog": f"brim {command}", "config": (tyro.conf.DisallowNone,), "registry": registry}


def _one_of_some_words(flag: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """How tyro reads a flag of type `Literal[...]` or `Literal[...] | None`; None for a flag of another type."""
    optional = flag.type_origin in (Union, types.UnionType)
    kinds = [kind for kind in (get_args(flag.type) if optional else (flag.type,)) if kind is not type(None)]
    if len(kinds) != 1 or get_origin(kinds[0]) is not Literal:
        return None
    choices = get_args(kinds[0])

    def parsed(words: list[str]) -> str:
        (word,) = words
        if word not in choices:  # tyro says for which flag
            hint = f"; did you mean `{close}`?" if (close := nearest(word, choices)) else ""
            raise ValueError(f"found {word!r}; expected one of {', '.join(choices)}{hint}")
        return word

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{{','.join(choices)}}}",
        instance_from_str=parsed,
        is_instance=lambda value: value in choices or (optional and value is None),
        str_from_instance=lambda value: [str(value)],
    )
