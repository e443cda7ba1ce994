"""What the arguments of a program are, by their paths: parameters, moments of the optimizer, the batch.

XLA keeps the path of each argument in the arguments' tree, such as `state.optimizer[0].mu.layers.query.weight`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_WORD = re.compile(r"[A-Za-z_]\w*")

PARAMETERS, FROZEN, VARIABLES, BATCH = "parameters", "frozen parameters", "variables", "batch"
COUNTERS, OTHER_ARGUMENTS = "counters and keys", "other arguments"
OPTIMIZER = "optimizer"


@dataclass(frozen=True)
class Roles:
    """Which arguments of a step are what: each the beginning of a path.

    The defaults are those of a step that brim assembled. For a step of one's own, such as
    `step(params, opt_state, batch)`: `Roles(parameters="params", optimizer="opt_state")`. `counters` is asked last, for
    what is left of a state: counters and random keys.
    """

    parameters: str = "state.trainable"
    frozen: str = "state.frozen"
    variables: str = "state.variables"
    optimizer: str = "state.optimizer"
    batch: str = "batch"
    counters: str = "state"

    def kinds(self, arguments: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
        """What each argument is.

        Args:
            arguments: path -> dimensions.

        Returns: path -> `parameters`, `optimizer mu` for the moment of that name, `batch`, and so on.
        """
        parameters = {
            path[len(self.parameters) :]: size for path, size in arguments.items() if self._is_parameter(path)
        }
        return {path: self._kind(path, size, parameters) for path, size in arguments.items()}

    def _is_parameter(self, path: str) -> bool:
        return _starts(path, self.parameters)

    def _kind(self, path: str, size: tuple[int, ...], parameters: Mapping[str, tuple[int, ...]]) -> str:
        if _starts(path, self.optimizer):
            return _moment(path[len(self.optimizer) :], size, parameters)
        prefixes = {
            self.parameters: PARAMETERS, self.frozen: FROZEN, self.variables: VARIABLES, self.batch: BATCH,
            self.counters: COUNTERS,
        }  # fmt: skip
        found: Iterable[str] = (kind for prefix, kind in prefixes.items() if _starts(path, prefix))
        return next(iter(found), OTHER_ARGUMENTS)


def _starts(path: str, prefix: str) -> bool:
    """Whether a path is a prefix or goes on from it with a new key."""
    return path == prefix or (path.startswith(prefix) and path[len(prefix)] in ".[")


def _moment(path: str, size: tuple[int, ...], parameters: Mapping[str, tuple[int, ...]]) -> str:
    """Which moment a part of the optimizer's state is: the word before the path of the parameter that it belongs to."""
    if not size and () not in parameters.values():
        return COUNTERS
    suffixes = [suffix for suffix, dimensions in parameters.items() if path.endswith(suffix) and dimensions == size]
    if suffixes:
        words = _WORD.findall(path[: len(path) - len(max(suffixes, key=len))])
        return f"{OPTIMIZER} {words[-1]}" if words else OPTIMIZER
    # A moment that is kept in several arrays: each has a name of its own behind the path of the parameter.
    places = [path.rfind(f"{suffix}.") for suffix in parameters if suffix and f"{suffix}." in path]
    words = _WORD.findall(path[: min(places)])[-1:] if places else _WORD.findall(path)
    return f"{OPTIMIZER} {words[0]}" if words else OPTIMIZER
