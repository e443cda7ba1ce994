"""Checkpoints: asynchronous, atomic, bit for bit.

    checkpoints = Checkpoints(run / "checkpoints", keep_last=2, keep_best=1)
    checkpoints.save(120, state, {"settings": ..., "data": ...}, loss=2.31)     # returns once the device is free
    checkpoints.wait()                                                          # now it is on the disk
    state, records = checkpoints.restore(checkpoints.latest(), like=specs)

Orbax copies the arrays off the device and writes them in the background; `checkpoint_files` says how a folder becomes a
checkpoint. What was confirmed, by `wait` or by the next `save`, survives a kill at any instant and a full disk.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from brim.errors import CheckpointError
from brim.settings import require
from brim.training import checkpoint_files as files
from brim.tree import PyTree, path_names

_LISTED = 10
_SAVE_TIMEOUT_SECONDS = 24 * 3600
_log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one run, in one folder, numbered by the windows (global batches) consumed.

    Args:
        folder: made when it is not there.
        keep_last: how many of the newest stay, 1 or more.
        keep_best: how many with the lowest loss stay as well.
        writing: False to read while a training process may be writing there; then nothing on disk is touched.

    Raises:
        SettingsError: if a number to keep is out of range.
        CheckpointError: if the folder cannot be made or cleaned.
    """

    def __init__(self, folder: Path, *, keep_last: int, keep_best: int, writing: bool = True) -> None:
        require(keep_last >= 1, "keep_last", keep_last, "1 or more checkpoints")
        require(keep_best >= 0, "keep_best", keep_best, "0 or more checkpoints")
        self.folder = folder.absolute()
        self._keep = {"keep_last": keep_last, "keep_best": keep_best}
        self._writing = writing
        if writing:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                files.sweep(self.folder)
            except OSError as error:
                raise CheckpointError(f"cannot write checkpoints to {self.folder}: {error}") from error
        self._orbax = ocp.AsyncCheckpointer(
            ocp.StandardCheckpointHandler(), async_options=ocp.AsyncOptions(timeout_secs=_SAVE_TIMEOUT_SECONDS)
        )
        self._background = ThreadPoolExecutor(1, thread_name_prefix="brim-checkpoint")
        self._pending: Future[None] | None = None
        self._quiet = _OrbaxIsQuiet()
        logging.getLogger("absl").addFilter(self._quiet)
        for step, reason in self.incomplete().items():
            _log.warning("checkpoint %d in %s is incomplete and left out: %s", step, self.folder, reason)

    def save(
        self, step: int, state: PyTree, records: Mapping[str, Any], *, loss: float | None = None, wait: bool = False
    ) -> None:
        """Begin to save. Once this returns, the state's buffers may be donated; `records` may be changed.

        Args:
            step: windows consumed; a checkpoint of the same number is replaced.
            state: a tree of JAX arrays of any dtype, typed random keys among them.
            records: what JSON can hold: resolved settings, plan, environment, data position.
            loss: what `best` compares; None or a number that is not finite is never the best.
            wait: return only when the checkpoint is complete.

        Raises:
            CheckpointError: if the save before this one failed (nothing was started then), if the state or the
                records hold something else than promised, or if the disk does not take it. Earlier checkpoints are
                whole, and what was written of this one is removed.
        """
        if not self._writing:
            raise CheckpointError(f"{self.folder} was opened for reading only")
        self.wait()
        arrays = _named_arrays(state)
        text = _records_text(step, arrays, records, loss)
        staged = files.staging(self.folder, step)
        try:
            files.sweep(self.folder)
            staged.mkdir()
            (staged / files.RECORDS).write_text(text, encoding="utf-8")
            # Orbax does not take arrays without elements; their shape is in the records.
            filled = {name: array for name, array in arrays.items() if array.size}
            self._orbax.save(staged / files.STATE, args=ocp.args.StandardSave(filled))
        except Exception as error:
            shutil.rmtree(staged, ignore_errors=True)
            raise self._failure(step, error) from error
        self._pending = self._background.submit(self._finish, step)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Return when no save is under way.

        Raises:
            CheckpointError: if the last save failed; said once.
        """
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        pending.result()

    def steps(self) -> list[int]:
        """Numbers of the complete checkpoints, ascending."""
        return files.complete(self.folder)

    def incomplete(self) -> dict[int, str]:
        """Numbered folders that are no complete checkpoint, and why. They are left alone on disk."""
        found = {step: files.damage(self.folder, step) for step in files.numbered(self.folder)}
        return {step: reason for step, reason in found.items() if reason is not None}

    def latest(self) -> int | None:
        """The newest complete checkpoint."""
        return max(self.steps(), default=None)

    def best(self) -> int | None:
        """The complete checkpoint with the lowest finite loss, the newer of two equals; None when none has a loss."""
        return next(iter(files.ranked(self._losses())), None)

    def records(self, step: int) -> dict[str, Any]:
        """The records saved with a checkpoint, without its arrays.

        Raises:
            CheckpointError: if it is missing or damaged.
        """
        return self._read(step)["records"]

    def restore(self, step: int, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """Read a checkpoint back, every bit as it was.

        Args:
            step: one of `steps()`.
            like: the state that is expected, as arrays or `jax.ShapeDtypeStruct`; gives structure and, where it has
                them, shardings.

        Returns:
            the state, in buffers of its own that can be donated; the records.

        Raises:
            CheckpointError: if it is missing or damaged, or its arrays differ from `like` in name, shape or dtype.
                That is found before any array is read, and changes nothing. Also if a save under way fails.
        """
        self.wait()
        saved = self._read(step)
        wanted = dict(zip(path_names(like), jax.tree.leaves(like), strict=True))
        _require_same(step, saved["arrays"], {name: _description(leaf) for name, leaf in wanted.items()})
        targets = {name: _target(leaf) for name, leaf in wanted.items() if math.prod(leaf.shape)}
        path = self.folder / str(step) / files.STATE
        try:
            restored = self._orbax.restore(path, args=ocp.args.StandardRestore(targets))
        except Exception as error:
            raise CheckpointError(
                f"the arrays of checkpoint {step} in {self.folder} cannot be read: {error}",
                hint="resume from an earlier checkpoint, and check the disk",
            ) from error
        leaves = [
            _owned(restored.pop(name)) if name in targets else jnp.zeros(leaf.shape, leaf.dtype)
            for name, leaf in wanted.items()
        ]
        return jax.tree.unflatten(jax.tree.structure(like), leaves), saved["records"]

    def close(self) -> None:
        """Wait for the last save and end the background threads.

        Raises:
            CheckpointError: if the last save failed.
        """
        try:
            self.wait()
        finally:
            self._background.shutdown()
            self._orbax.close()
            logging.getLogger("absl").removeFilter(self._quiet)

    def _finish(self, step: int) -> None:
        try:
            self._orbax.wait_until_finished()
            files.commit(self.folder, step)
            losses = self._losses()
            for old in losses.keys() - files.kept(losses, step, **self._keep):
                files.remove(self.folder, old)
        except Exception as error:
            shutil.rmtree(files.staging(self.folder, step), ignore_errors=True)
            raise self._failure(step, error) from error

    def _failure(self, step: int, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"checkpoint {step} could not be saved to {self.folder}: {error}",
            hint="earlier checkpoints are whole; free some disk space and run `brim resume`",
        )

    def _losses(self) -> dict[int, float | None]:
        return {step: files.read_records(self.folder, step)["loss"] for step in self.steps()}

    def _read(self, step: int) -> dict[str, Any]:
        reason = files.damage(self.folder, step)
        if reason is not None:
            have = ", ".join(map(str, self.steps())) or "none"
            raise CheckpointError(
                f"no complete checkpoint {step} in {self.folder}: {reason}", hint=f"complete ones here: {have}"
            )
        return files.read_records(self.folder, step)


class _OrbaxIsQuiet(logging.Filter):
    """Leaves out Orbax's diary (INFO) and its tracebacks (ERROR, raised again as `CheckpointError`); keeps warnings."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is shown."""
        return record.levelno == logging.WARNING or f"{Path('orbax', 'checkpoint')}" not in record.pathname


def _named_arrays(state: PyTree) -> dict[str, jax.Array]:
    names, leaves = path_names(state), jax.tree.leaves(state)
    others = [name for name, leaf in zip(names, leaves, strict=True) if not isinstance(leaf, jax.Array)]
    if others:
        raise CheckpointError(
            f"a state to save holds JAX arrays only; found {len(others)} other leaves: {', '.join(others[:_LISTED])}",
            hint="keep functions and settings out of the state, and numbers as arrays with a dtype",
        )
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise CheckpointError(f"a state to save needs one name per array; found twice: {', '.join(twice[:_LISTED])}")
    return dict(zip(names, leaves, strict=True))


def _records_text(step: int, arrays: dict[str, jax.Array], records: Mapping[str, Any], loss: float | None) -> str:
    content = {
        "loss": loss if loss is not None and math.isfinite(loss) else None,
        "arrays": {name: _description(array) for name, array in arrays.items()},
        "records": records,
    }
    try:
        return json.dumps(content, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the records of checkpoint {step} do not go into JSON: {error}") from error


def _description(leaf: Any) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _require_same(step: int, saved: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    groups = {
        "missing in the checkpoint": [name for name in wanted if name not in saved],
        "unexpected in the checkpoint": [name for name in saved if name not in wanted],
        "different": [
            f"{name} ({saved[name]} saved, {wanted[name]} expected)"
            for name in wanted
            if name in saved and saved[name] != wanted[name]
        ],
    }
    lines = [
        f"  {len(names)} {title}: {', '.join(names[:_LISTED])}{', ...' if len(names) > _LISTED else ''}"
        for title, names in groups.items()
        if names
    ]
    if lines:
        raise CheckpointError(
            "\n".join([f"checkpoint {step} belongs to another model or optimizer; nothing was loaded:", *lines]),
            hint="resume with the settings it was saved with, or start a new run",
        )


def _target(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _owned(array: jax.Array) -> jax.Array:
    """The array in a buffer that a jitted function made.

    A restored array may share its memory with the reader; donating it then silently copies instead, and the first step
    after a resume peaks one whole state above a fresh run's (https://github.com/jax-ml/jax/issues/18617). Copying leaf
    by leaf costs no more than the largest leaf. The sharding is named because a result in host memory needs it.
    """
    copy = jax.jit(jnp.copy, out_shardings=array.sharding)(array)
    copy.block_until_ready()
    array.delete()
    return copy
