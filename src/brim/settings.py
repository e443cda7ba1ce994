"""Typed settings: frozen dataclasses in, TOML in and out, no silent key.

A run is one tree of frozen dataclasses. This module fills such a tree from TOML tables and from command-line
overrides (`--model.layers 8`), and writes the resolved tree back as TOML. It is strict on purpose: an unknown key,
a wrong type or a value out of range is a `SettingsError` that names the full path and the nearest right key,
because a run that silently used a default is found out hours later.

What each declared type takes:
    bool    true, false                      never "off", 0 or 1
    int     8, 1_000                         never 8.5, true, "010" or 1:30
    float   1e-4, 1, "3e-4"                  never nan, inf, true or "abc"
    str     text
    Literal one of its words
    tuple[T, ...]  an array (in an override: a,b,c)
    T | None       T, or "none" for nothing (in an override: none); left out, the field's default
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from brim.errors import SettingsError, did_you_mean, nearest

T = TypeVar("T")
_NONE = "none"
_INTEGER = re.compile(r"[+-]?(0|[1-9](_?[0-9])*)")
_FLOAT = re.compile(r"[+-]?([0-9](_?[0-9])*(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def require(condition: bool, key: str, found: object, expected: str, *, hint: str = "") -> None:
    """Check one field in a settings class's `__post_init__`.

    Raises:
        SettingsError: naming the key, the value found and what is expected.
    """
    if not condition:
        raise SettingsError(f"`{key}` is {found!r}; expected {expected}", hint=hint)


def load_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        SettingsError: if the file cannot be read, is not UTF-8 text, or is not TOML; the message has the line.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise SettingsError(f"no file at {path}", hint="check the path; shipped run files are in configs/") from None
    except IsADirectoryError:
        raise SettingsError(f"{path} is a folder; expected a TOML file", hint="name the file inside it") from None
    except OSError as error:
        hint = f"check the path, and who may read it: ls -l {str(path)!r}"
        raise SettingsError(f"cannot read {path}: {error.strerror}", hint=hint) from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text (byte {error.start})", hint="save it as UTF-8") from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # beside TOML's own: numbers and nesting that Python does not take
        hint = "strings need quotes; tables look like [model]"
        raise SettingsError(f"{path} is not valid TOML: {error}", hint=hint) from None


def user_path(text: str) -> Path:
    """A path as a person writes it: `~` is the home folder, and `~name` a file's name where there is no such user."""
    return Path(os.path.expanduser(text))  # noqa: PTH111  (Path.expanduser raises in that case)


def build(cls: type[T], table: Mapping[str, Any], *, source: str = "settings") -> T:
    """Fill a settings dataclass, and all below it, from nested tables.

    Raises:
        SettingsError: on an unknown key, a wrong type or a value out of range; names the path and the nearest key.
    """
    return _build(cls, table, path="", source=source, root=cls)


def merge(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of nested tables with other nested tables laid over it."""
    merged = dict(table)
    for key, value in changes.items():
        below = merged.get(key)
        nested = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = merge(below, value) if nested else value  # type: ignore[arg-type]
    return merged


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Nested tables from `--model.layers 8` or `--model.layers=8`; values stay text until `build` knows their type.

    Raises:
        SettingsError: on a word that is no `--key`, a key without a value, or a key given twice.
    """
    tables: dict[str, Any] = {}
    remaining = iter(words)
    for word in remaining:
        if not word.startswith("--") or len(word) == 2:
            raise SettingsError(
                f"found `{word}` where a setting such as --model.layers 8 is expected",
                hint="a value with spaces needs quotes, several values commas: --data.paths 'a b','c'",
            )
        key, equals, value = word[2:].partition("=")
        if not equals:
            value = next(remaining, None)  # type: ignore[assignment]
            if value is None:
                raise SettingsError(f"--{key} has no value", hint=f"write --{key} VALUE")
        _place(tables, key.replace("-", "_").split("."), Override(value))
    return tables


class Override(str):
    """A value as typed on the command line: text that is converted by the declared type of its field."""


def listed(text: str) -> list[Any]:
    """The entries of an array as typed on the command line: `a,b,c`, `[a,b,c]` or as TOML has it, `["a", "b"]`.

    Brackets belong to the entries, as in a glob, unless one pair is around a TOML array or around several entries.
    """
    text = text.strip()
    with contextlib.suppress(ValueError, RecursionError):
        match tomllib.loads(f"array = {text}"):
            case {"array": list(found), **others} if not others:
                return found
    if "," in text and _in_one_pair_of_brackets(text):
        text = text[1:-1]
    return [Override(part.strip()) for part in text.split(",") if part.strip()]


def _in_one_pair_of_brackets(text: str) -> bool:
    if not (text.startswith("[") and text.endswith("]")):
        return False
    depths = itertools.accumulate((c == "[") - (c == "]") for c in text[:-1])
    return all(depth > 0 for depth in depths)


def keys_of(cls: type, prefix: str = "") -> Iterator[str]:
    """The dotted path of every leaf field of a settings class."""
    for name, annotation in _fields(cls).items():
        if dataclasses.is_dataclass(annotation):
            yield from keys_of(typing.cast(type, annotation), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def to_tables(settings: Any) -> dict[str, Any]:
    """Nested tables of a settings tree, as `build` reads them.

    TOML has no null: a None is left out where it is what leaving out means, and is the text `none` elsewhere.
    """
    tables: dict[str, Any] = {}
    for name, default in _defaults(type(settings)).items():
        value = getattr(settings, name)
        if dataclasses.is_dataclass(value):
            tables[name] = to_tables(value)
        elif value is not None or default is not None:
            tables[name] = _plain(value)
    return tables


def to_toml(settings: Any) -> str:
    """The TOML text that `build` reads back to an equal tree."""
    return "\n".join(_toml_lines(to_tables(settings), prefix="")).strip() + "\n"


def differences(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (old, new) for every leaf in which two settings trees of one class differ."""
    before, after = _leaves(old), _leaves(new)
    return {
        key: (before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    }


def _leaves(settings: Any, prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name in _fields(type(settings)):
        value = getattr(settings, name)
        leaves |= _leaves(value, f"{prefix}{name}.") if dataclasses.is_dataclass(value) else {f"{prefix}{name}": value}
    return leaves


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return _NONE if value is None else value


def _defaults(cls: type) -> dict[str, Any]:
    """What each field is when it is left out; MISSING where it must not be, or where a factory makes it."""
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    return {name: defaults[name] for name in _fields(cls)}


# A stored plan has hundreds of tables of a few classes, and reading the hints of one takes a millisecond.
_hints = functools.cache(typing.get_type_hints)


def _fields(cls: type) -> dict[str, Any]:
    hints = _hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def _build(cls: type[T], table: Any, *, path: str, source: str, root: type) -> T:
    if not isinstance(table, Mapping):
        raise SettingsError(f"{source}: `{path.rstrip('.')}` is {_shown(table)}; expected a table of settings")
    fields = _fields(cls)
    for key in table:
        if key not in fields:
            raise SettingsError(f"{source}: unknown key `{path}{key}`", hint=_suggest(key, fields, path, root))
    values: dict[str, Any] = {}
    for key, value in table.items():
        if dataclasses.is_dataclass(fields[key]):
            values[key] = _build(fields[key], value, path=f"{path}{key}.", source=source, root=root)
        else:
            values[key] = _convert(value, fields[key], f"{source}: `{path}{key}`")
    try:
        return cls(**values)
    except SettingsError as error:
        raise SettingsError(f"{source}: {_with_path(error.message, path)}", hint=error.hint) from None
    except TypeError:
        missing = [
            f"{path}{field.name}"
            for field in dataclasses.fields(cls)  # type: ignore[arg-type]
            if field.name not in values
            and field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
        ]
        raise SettingsError(f"{source}: missing {', '.join(f'`{key}`' for key in missing)}") from None


def _with_path(message: str, path: str) -> str:
    return message.replace("`", f"`{path}", 1) if message.startswith("`") else message


def _suggest(key: str, fields: Mapping[str, Any], path: str, root: type) -> str:
    """The nearest key of this table; else the nearest name anywhere in the tree; else what is known here."""
    here = nearest(key, fields)
    if here:
        return f"did you mean `{path}{here}`?"
    anywhere = {full.rsplit(".", 1)[-1]: full for full in keys_of(root)}
    there = nearest(key, anywhere)
    return f"did you mean `{anywhere[there]}`?" if there else did_you_mean(key, fields)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f"the text {str(value)!r}"
    if isinstance(value, int) and not _is_64_bit(value):
        return f"a whole number of {value.bit_length()} bits"
    return f"{value!r} ({type(value).__name__})"


def _is_64_bit(value: int) -> bool:
    return -(2**63) <= value < 2**63


def _convert(value: Any, annotation: Any, where: str) -> Any:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        if isinstance(value, str) and value.lower() == _NONE:
            return None
        (inner,) = [option for option in typing.get_args(annotation) if option is not type(None)]
        return _convert(value, inner, where)
    if origin is Literal:
        choices = typing.get_args(annotation)
        if value not in choices:
            raise SettingsError(
                f"{where} is {_shown(value)}; expected one of {', '.join(map(str, choices))}",
                hint=did_you_mean(str(value), map(str, choices)),
            )
        return choices[choices.index(value)]
    if origin is tuple:
        return _convert_tuple(value, annotation, where)
    return _SCALARS[annotation](value, where)


def _convert_tuple(value: Any, annotation: Any, where: str) -> tuple[Any, ...]:
    if isinstance(value, Override):
        value = listed(value)
    if not isinstance(value, list | tuple):
        raise SettingsError(f"{where} is {_shown(value)}; expected an array such as [1, 2]")
    kinds = typing.get_args(annotation)
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise SettingsError(f"{where} has {len(value)} entries; expected {len(kinds)}")
    return tuple(_convert(item, kind, f"{where}[{i}]") for i, (item, kind) in enumerate(zip(value, kinds, strict=True)))


def _convert_bool(value: Any, where: str) -> bool:
    if isinstance(value, Override) and value in ("true", "false"):
        return value == "true"
    if not isinstance(value, bool):
        raise SettingsError(f"{where} is {_shown(value)}; expected true or false")
    return value


def _convert_int(value: Any, where: str) -> int:
    number = value
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        with contextlib.suppress(ValueError):  # Python reads no number of thousands of digits
            number = int(value)
    if isinstance(number, bool) or not isinstance(number, int) or not _is_64_bit(number):
        raise SettingsError(f"{where} is {_shown(value)}; expected a whole number that 64 bits hold")
    return number


def _convert_float(value: Any, where: str) -> float:
    is_number = _FLOAT.fullmatch(value) if isinstance(value, str) else isinstance(value, int | float)
    try:
        number = float(value) if is_number and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise SettingsError(f"{where} is {_shown(value)}; expected a finite number")
    return number


def _convert_str(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"{where} is {_shown(value)}; expected text in quotes")
    if _LONE_SURROGATE.search(value):  # how Python carries a byte of an argument or a file's name that is not UTF-8
        hint = "write it in UTF-8; a file with such a name can be renamed, or meant by a glob such as caf*.txt"
        raise SettingsError(f"{where} is {_shown(value)}; expected text that can be written as UTF-8", hint=hint)
    return str(value)


_SCALARS = {bool: _convert_bool, int: _convert_int, float: _convert_float, str: _convert_str}


def _place(tables: dict[str, Any], path: list[str], value: Override) -> None:
    *parents, leaf = path
    for name in parents:
        tables = tables.setdefault(name, {})
        if not isinstance(tables, dict):
            raise SettingsError(f"--{'.'.join(path)} goes below a setting that was given a value")
    if leaf in tables:
        raise SettingsError(f"--{'.'.join(path)} is given twice")
    tables[leaf] = value


def _toml_lines(tables: Mapping[str, Any], prefix: str) -> Iterator[str]:
    nested = {key: value for key, value in tables.items() if isinstance(value, Mapping)}
    plain = {key: value for key, value in tables.items() if key not in nested}
    if prefix and plain:
        yield f"\n[{prefix}]"
    for key, value in plain.items():
        yield f"{key} = {_toml_value(value)}"
    for key, value in nested.items():
        yield from _toml_lines(value, f"{prefix}.{key}" if prefix else key)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return repr(value)


def _toml_string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
