"""The `brim` command: one thin file for each subcommand, loaded when it is chosen."""

from brim.cli.dispatch import main

__all__ = ["main"]
