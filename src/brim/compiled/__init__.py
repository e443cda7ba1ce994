"""What XLA compiled: schedule, buffers, whose bytes they are, and kernels.

    audit = audit_compile(lowered, options)     # a jax.stages.Compiled, and what XLA made of it
    report = audit.memory_report()              # every byte at the peak and over time, by owner
    kernels = audit.kernels()                   # what runs, how often, bytes and FLOPs

The files follow the way from bytes to owners: `wire` and `shapes` decode, `module` and `buffers` are what was read,
`names`, `phases` and `origins` say where values come from, `leases` when they are there, `owners` whose they are;
`ledger` makes the books balance and fills the `report`.
"""

from __future__ import annotations

from brim.compiled.audit import Audit, audit_compile
from brim.compiled.buffers import BufferAssignment
from brim.compiled.kernels import Kernel, KernelList, kernel_list
from brim.compiled.ledger import memory_report
from brim.compiled.module import Module
from brim.compiled.owners import Owner
from brim.compiled.products import Product
from brim.compiled.report import MemoryReport, Peak, Row, Timeline
from brim.compiled.roles import Roles

__all__ = [
    "Audit",
    "BufferAssignment",
    "Kernel",
    "KernelList",
    "MemoryReport",
    "Module",
    "Owner",
    "Peak",
    "Product",
    "Roles",
    "Row",
    "Timeline",
    "audit_compile",
    "kernel_list",
    "memory_report",
]
