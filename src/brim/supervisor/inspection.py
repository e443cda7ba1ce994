"""Reading a run from outside: its newest checkpoint, without touching the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from brim.errors import CheckpointError
from brim.hardware.device import detect
from brim.runfile import RunFile
from brim.supervisor import setup
from brim.supervisor.folder import RunFolder
from brim.supervisor.planning import load_plan
from brim.training.assemble import assemble
from brim.training.checkpoint import Checkpoints
from brim.training.state import State
from brim.tree import path_names


def newest_state(folder: Path, window: int | None = None) -> tuple[RunFile, State, dict[str, Any]]:
    """A run's settings, the state of its newest complete checkpoint (or of `window`), and the records saved with it.

    Raises:
        CheckpointError: if there is no run, or no complete checkpoint.
    """
    run_folder = RunFolder(folder)
    run = run_folder.load_settings()
    assembly = assemble(setup.build_program(run), load_plan(run_folder).recipe, detect())
    checkpoints = Checkpoints(run_folder.checkpoints, keep_last=1, keep_best=0, writing=False)
    try:
        window = checkpoints.latest() if window is None else window
        if window is None:
            raise CheckpointError(f"{folder} has no complete checkpoint", hint="train it first: brim train")
        state, records = checkpoints.restore(window, assembly.state)
    finally:
        checkpoints.close()
    return run, state, records


def newest_arrays(folder: Path) -> tuple[int, dict[str, np.ndarray], dict[str, Any]]:
    """Window, every array by name (random keys as their raw words), and records of a run's newest checkpoint.

    Raises:
        CheckpointError: as for `newest_state`.
    """
    _, state, records = newest_state(folder)
    leaves = zip(path_names(state), jax.tree.leaves(state), strict=True)
    return int(state.window), {name: _raw(leaf) for name, leaf in leaves}, records


def _raw(leaf: jax.Array) -> np.ndarray:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)
