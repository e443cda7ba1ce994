"""The kernels of a compiled step: what runs, how often, how many bytes and FLOPs, and for whom."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from brim.compiled.module import Instruction, Module
from brim.compiled.names import path_of
from brim.compiled.origins import Origins
from brim.compiled.phases import Phases
from brim.compiled.products import Product, products_of
from brim.compiled.touched import touched_by

_NO_KERNEL = frozenset(
    {
        "add-dependency", "after-all", "async-done", "async-update", "bitcast", "call", "conditional", "constant",
        "copy-done", "get-tuple-element", "optimization-barrier", "parameter", "partition-id", "replica-id", "tuple",
        "while",
    }
)  # fmt: skip
_FUSION_KIND = re.compile(r'"fusion_backend_config":\{"kind":"__(\w+)')
_COPIES = frozenset({"copy", "copy-start"})


@dataclass(frozen=True)
class Kernel:
    """One kernel, and what one run of it does.

    Attributes:
        name: XLA's.
        kind: `triton`, `cublas`, `cudnn`, `fusion`, `copy`, or XLA's word for a single operation.
        runs: per step; a loop of unknown length counts once.
        read_bytes, written_bytes: in memory, of one run.
        host_bytes: of these, how many cross the link to the host.
        products: matrix products in it.
        path: scopes and operation; empty if it has no name.
        phase: of the step.
        source: the user's line, if known.
    """

    name: str
    kind: str
    runs: int
    read_bytes: int
    written_bytes: int
    host_bytes: int
    products: tuple[Product, ...]
    path: str
    phase: str
    source: str

    @property
    def bytes(self) -> int:
        """Read and written in one run."""
        return self.read_bytes + self.written_bytes

    @property
    def flops(self) -> float:
        """Of the matrix products of one run."""
        return sum(product.flops for product in self.products)


@dataclass(frozen=True)
class KernelList:
    """All kernels of a step, in the order in which they run.

    Attributes:
        kernels: each once, also within loops.
    """

    kernels: tuple[Kernel, ...]

    @property
    def runs(self) -> int:
        """Number of kernels that a step starts."""
        return sum(kernel.runs for kernel in self.kernels)

    @property
    def bytes(self) -> int:
        """Read and written in device memory by a step."""
        return sum(kernel.runs * (kernel.bytes - kernel.host_bytes) for kernel in self.kernels)

    @property
    def host_bytes(self) -> int:
        """Sent over the link to the host by a step."""
        return sum(kernel.runs * kernel.host_bytes for kernel in self.kernels)

    @property
    def flops(self) -> dict[str, float]:
        """FLOPs of matrix products of a step, by `dtype of the operands -> dtype of the result`; most first."""
        flops: Counter[str] = Counter()
        for kernel in self.kernels:
            for product in kernel.products:
                flops[f"{product.operands} -> {product.result}"] += kernel.runs * product.flops  # type: ignore[assignment]
        return dict(flops.most_common())

    def wide(self, share: float = 1e-4) -> tuple[Kernel, ...]:
        """Kernels that multiply fp32 operands: in a step meant for 16 bits, each is a mistake or a price.

        Args:
            share: products below this share of the step's FLOPs are not worth a word.
        """
        least = share * sum(self.flops.values())
        return tuple(
            kernel
            for kernel in self.kernels
            if any(each.is_wide and kernel.runs * each.flops >= least for each in kernel.products)
        )

    def by_kind(self) -> dict[str, tuple[int, int, float]]:
        """Kind -> (runs, bytes, FLOPs) of a step, most bytes first."""
        kinds: dict[str, tuple[int, int, float]] = {}
        for kernel in self.kernels:
            runs, size, flops = kinds.get(kernel.kind, (0, 0, 0.0))
            more = kernel.runs
            kinds[kernel.kind] = (runs + more, size + more * kernel.bytes, flops + more * kernel.flops)
        return dict(sorted(kinds.items(), key=lambda item: -item[1][1]))

    def to_json(self) -> list[dict[str, Any]]:
        """As plain lists, dictionaries and numbers."""
        return [dataclasses.asdict(kernel) for kernel in self.kernels]

    @classmethod
    def from_json(cls, data: Iterable[Mapping[str, Any]]) -> KernelList:
        """What `to_json` made, also after it went through a file."""
        products = [tuple(Product(**product) for product in each["products"]) for each in data]
        return cls(tuple(Kernel(**{**each, "products": found}) for each, found in zip(data, products, strict=True)))


def kernel_list(module: Module) -> KernelList:
    """The kernels of a compiled program."""
    origins, phases = Origins(module), Phases(module)
    return KernelList(
        tuple(
            _kernel(module, instruction, runs, origins, phases.at(instant))
            for instant, (instruction, runs) in enumerate(module.order)
            if instruction.opcode not in _NO_KERNEL
        )
    )


def _kernel(module: Module, instruction: Instruction, runs: int, origins: Origins, phase: str) -> Kernel:
    touched = touched_by(module, instruction)
    named = origins.named_near(instruction)
    frame = module.source(named or instruction)
    return Kernel(
        name=instruction.name,
        kind=_kind(instruction),
        runs=runs,
        read_bytes=touched.read,
        written_bytes=touched.written,
        host_bytes=touched.host,
        products=tuple(products_of(module, instruction)),
        path=path_of(named.op_name) if named is not None else "",
        phase=phase,
        source=str(frame or ""),
    )


def _kind(instruction: Instruction) -> str:
    if instruction.opcode in _COPIES:
        return "copy"
    if instruction.opcode == "custom-call":
        library = re.match(r"__(cublas|cudnn)", instruction.target)
        return library[1] if library else f"call of {instruction.target}"
    found = _FUSION_KIND.search(instruction.config) if instruction.opcode == "fusion" else None
    if found is None or found[1] == "custom_fusion":
        return instruction.opcode
    return next((name for name in ("triton", "cublas", "cudnn") if found[1].startswith(name)), instruction.opcode)
