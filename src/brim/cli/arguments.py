"""Reading a command's words: its few flags by tyro; every `--section.key value` is an override of the run file."""

from __future__ import annotations

from typing import Any, TypeVar

import tyro

T = TypeVar("T")


def read(kind: type[T], words: list[str], command: str) -> T:
    """The flags of a command that takes no overrides; a wrong one ends the program with exit code 2."""
    return tyro.cli(kind, args=words, prog=f"brim {command}")


def read_with_overrides(kind: type[T], words: list[str], command: str) -> tuple[T, list[str]]:
    """The flags of a command, and the words that override keys of its run file."""
    known: Any = tyro.cli(kind, args=words, prog=f"brim {command}", return_unknown_args=True)
    return known
