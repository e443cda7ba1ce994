"""Compile a step and look at what came out: the module, its schedule, and where every buffer lies.

XLA writes both into a folder when it is asked to, per compile, on a CPU as for a GPU that is not here. The folder is
private and gone afterwards. JAX's persistent cache is off for this one compile: a program that comes from it is written
without its buffers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from brim.compiled.buffers import BufferAssignment
from brim.compiled.kernels import KernelList, kernel_list
from brim.compiled.ledger import memory_report
from brim.compiled.module import Module
from brim.compiled.report import MemoryReport
from brim.compiled.roles import Roles
from brim.compiled.wire import Message
from brim.errors import DeviceError

_OPTIMIZED = "*after_optimizations.hlo.pb"
_CACHE = "jax_enable_compilation_cache"


@dataclass(frozen=True)
class Audit:
    """A compiled step and what XLA made of it.

    Attributes:
        compiled: the `jax.stages.Compiled`; it runs where it was compiled for.
        module: its computations, instructions and schedule.
        memory: where its buffers lie.
    """

    compiled: Any
    module: Module
    memory: BufferAssignment

    def memory_report(self, roles: Roles | None = None, vocabulary: int | None = None) -> MemoryReport:
        """Whose every byte is; see `brim.compiled.ledger`.

        Args:
            roles: which arguments are what; by default those of a step that brim assembled.
            vocabulary: size of the vocabulary, if there is one.

        Raises:
            DeviceError: if XLA's two ways to count do not agree to the byte.
        """
        return memory_report(self.module, self.memory, self.compiled.memory_analysis(), roles, vocabulary)

    def kernels(self) -> KernelList:
        """What runs, how often, and how many bytes and FLOPs."""
        return kernel_list(self.module)


def audit_compile(lowered: Any, compiler_options: Mapping[str, Any] | None = None) -> Audit:
    """Compile and keep XLA's own description of the result.

    Not for several threads at once: the persistent cache is switched off and on again for the whole process.

    Args:
        lowered: a `jax.stages.Lowered`, for the device that is here or for one that is not.
        compiler_options: as for `lowered.compile`.

    Raises:
        DeviceError: if XLA describes the program in a format that brim does not know.
        jax.errors.JaxRuntimeError: if XLA refuses the program.
    """
    with tempfile.TemporaryDirectory(prefix="brim-compile-") as folder, _no_cache():
        asked = {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True}
        compiled = lowered.compile(compiler_options={**(compiler_options or {}), **asked})
        module, memory = _read(Path(folder), compiled)
    return Audit(compiled, module, memory)


@contextmanager
def _no_cache() -> Iterator[None]:
    """JAX decides once whether it uses its cache, so it is told to decide again, before and after."""
    before = getattr(jax.config, _CACHE)
    jax.config.update(_CACHE, False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update(_CACHE, before)
        compilation_cache.reset_cache()


def _read(folder: Path, compiled: Any) -> tuple[Module, BufferAssignment]:
    """The one program in the folder that is the compiled one; autotuning may have written others."""
    name = compiled.runtime_executable().hlo_modules()[0].name
    for file in sorted(folder.glob(_OPTIMIZED)):
        program = Message(file.read_bytes(), "HloProto")
        module = program.message(1, "HloModuleProto", required=True)
        if module.text(1) == name:
            memory = program.message(3, "BufferAssignmentProto", required=True)
            return Module.read(module), BufferAssignment.read(memory)
    raise DeviceError(
        f"XLA wrote no description of `{name}`; found {sorted(file.name for file in folder.glob(_OPTIMIZED))}",
        hint="this version of JAX writes it elsewhere than brim knows; plan without the report by owner",
    )
