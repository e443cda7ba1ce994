"""Whose bytes a buffer holds.

    parameters, optimizer mu, ...   arguments, by their path
    gradients                       of a parameter's dimensions, or of one layer's, and not from the forward pass; or in
                                    the scope `accumulation`, which sums them
    saved residuals                 made in the forward pass, read in the backward pass
    logits and loss                 in the scope `loss`, or with the vocabulary among their dimensions
    attention workspace             what a fused attention kernel asks for beside its results
    casts and copies                an argument in another dtype, layout or place; a slice of what was saved
    masks and constants             no argument has a part in it
    forward, recompute, backward and optimizer temporaries   all the rest, by phase

Owners come from arguments, scopes and phases, which is certain, or by a neighbour's name where XLA dropped the own one;
`how` says which. What has no name at all is `unexplained`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from brim.compiled.buffers import Buffer, BufferAssignment
from brim.compiled.leases import Lease
from brim.compiled.module import Instruction, Module
from brim.compiled.names import Phase, is_named, path_of, scopes_of
from brim.compiled.origins import Origin, Origins
from brim.compiled.phases import Phases
from brim.compiled.roles import PARAMETERS, Roles
from brim.compiled.shapes import Shape

GRADIENTS, RESIDUALS, LOGITS = "gradients", "saved residuals", "logits and loss"
ATTENTION_WORKSPACE, WORKSPACE = "attention workspace", "library workspace"
COPIES, CONSTANTS = "casts and copies", "masks and constants"
ALIGNMENT, OUTPUTS, UNEXPLAINED = "alignment and gaps", "outputs, not aliased", "unexplained"
TEMPORARIES: Mapping[Phase, str] = {
    "forward": "forward temporaries",
    "recompute": "recompute temporaries",
    "backward": "backward temporaries",
    "update": "optimizer temporaries",
}
LOSS_SCOPE, ACCUMULATION_SCOPE = "loss", "accumulation"
_RAW_BYTES = frozenset({"u8", "s8"})

How = Literal["argument", "direct", "neighbour", "none"]


@dataclass(frozen=True)
class Owner:
    """Whose bytes they are.

    Attributes:
        kind: what they are for; see the head of this file.
        path: path of an argument, or scopes and operation; without scopes, the user's line.
        phase: of the step, in which they are made; empty for what is there all the time.
        source: the user's line they come from, if known.
        how: by what the owner was found.
    """

    kind: str
    path: str = ""
    phase: str = ""
    source: str = ""
    how: How = "direct"


@dataclass(frozen=True)
class Stay:
    """A stretch of a lease in which its bytes hold one content.

    Attributes:
        buffer: one that holds it.
        origin: where it comes from.
        begin: first instant.
        filled: the instant at which the content comes; later than the first if zeros waited for it.
        last: the instant at which it is read for the last time, or overwritten.
    """

    buffer: Buffer
    origin: Origin
    begin: int
    filled: int
    last: int


class Owners:
    """Finds the owners of the buffers of one compiled step.

    Args:
        vocabulary: size of the vocabulary, if there is one; arrays with such a dimension are logits.
    """

    def __init__(self, module: Module, memory: BufferAssignment, roles: Roles, vocabulary: int | None = None) -> None:
        self.module, self.memory = module, memory
        self.origins, self.phases = Origins(module), Phases(module)
        self._vocabulary = vocabulary
        sizes = {each.op_name: each.shape.dimensions for each in module.arguments.values()}
        self._kinds = roles.kinds(sizes)
        parameters = [size for path, size in sizes.items() if self._kinds[path] == PARAMETERS]
        self._whole = {_without_ones(size) for size in parameters} - {()}
        self._layers = {_without_ones(size[1:]) for size in parameters if len(size) > 2}

    def of_argument(self, number: int) -> Owner:
        """The owner of an argument of the program."""
        path = self.module.arguments[number].op_name
        return Owner(self._kinds[path], path, how="argument")

    def stays(self, lease: Lease) -> list[Stay]:
        """What a lease's bytes hold, in turn. Zeros that wait to be filled count as what fills them."""
        stays: list[Stay] = []
        for begin, number in lease.tenants:
            buffer = self.memory.buffers[number]
            origin = self.origins.of(self.module[buffer.instruction], buffer.part)
            before = stays[-1] if stays else None
            if before is not None and self._goes_on(before.origin.instruction, origin.instruction):
                stays[-1] = replace(before, buffer=buffer, origin=origin, filled=begin)
            else:
                stays.append(Stay(buffer, origin, begin, begin, lease.end))
        ends = [stay.begin for stay in stays[1:]] + [lease.end]
        return [replace(stay, last=last) for stay, last in zip(stays, ends, strict=True)]

    def of(self, stay: Stay) -> Owner:
        """The owner of what a lease holds for a while."""
        instruction = self.module[stay.buffer.instruction]
        content = stay.origin.instruction
        if self.origins.is_argument(content):
            return self._named_owner(COPIES, content, stay, path=content.op_name)
        named, how = self.origins.named(stay.origin), "direct"
        if named is None:
            named, how = self.origins.named_neighbour(instruction), "neighbour"
        if self.origins.is_data_free(content):
            return self._named_owner(CONSTANTS, named or content, stay)
        if named is None:
            return Owner(UNEXPLAINED, instruction.name, self.phases.at(stay.begin), self._source(stay.origin), "none")
        kind = self._kind(stay, named, instruction.shape.part(stay.buffer.part))
        return replace(self._named_owner(kind, named, stay), how=how)  # type: ignore[arg-type]

    def _goes_on(self, before: Instruction, content: Instruction) -> bool:
        return before.number == content.number or (
            self.origins.is_data_free(before) and not self.origins.is_argument(before)
        )

    def _kind(self, stay: Stay, named: Instruction, shape: Shape) -> str:
        content = stay.origin.instruction
        if content.opcode == "custom-call" and shape.dtype in _RAW_BYTES and content.shape.parts:
            return ATTENTION_WORKSPACE if "fmha" in content.target else WORKSPACE
        made, read = self.phases.of(named, stay.filled), self.phases.at(stay.last)
        is_loss = LOSS_SCOPE in scopes_of(named.op_name)
        if self._is_gradient(shape, made, read, named, is_loss):
            return GRADIENTS
        if is_loss or (shape.is_floating and self._vocabulary in shape.dimensions):
            return LOGITS
        if made == "forward" and self.phases.at(stay.filled) != "forward":
            return COPIES  # such as one layer's slice of what a stack saved
        if made == "forward" and read in ("backward", "recompute"):
            return RESIDUALS
        return TEMPORARIES[made]

    def _is_gradient(self, shape: Shape, made: Phase, read: Phase, named: Instruction, is_loss: bool) -> bool:
        if not shape.is_floating or (made == "update" and self.phases.is_optimizer(named)):
            return False
        if ACCUMULATION_SCOPE in scopes_of(named.op_name):
            return True
        size = _without_ones(shape.dimensions)
        # An activation may have a parameter's dimensions too, but it is gone before the update. The loss makes the
        # gradient of the head, which a tied embedding adds to, and may make it in the forward pass already. Logits have
        # the vocabulary among their dimensions too, but tokens beside it.
        if size in self._whole and (read == "update" or is_loss or self._vocabulary in size):
            return made in ("backward", "update") or is_loss
        return size in self._layers and made == "backward"

    def _named_owner(self, kind: str, named: Instruction, stay: Stay, path: str = "") -> Owner:
        source = self._source(stay.origin)
        if not path:
            path = path_of(named.op_name) if is_named(named.op_name) else named.name
            path = path if scopes_of(named.op_name) or not source else source
        return Owner(kind, path, self.phases.of(named, stay.filled), source)

    def _source(self, origin: Origin) -> str:
        """The user's line of an origin, or of what lies inside it or on the way to it."""
        for instruction in (*reversed(origin.trail), *filter(None, [self.origins.named(origin)])):
            frame = self.module.source(instruction)
            if frame is not None:
                return str(frame)
        return ""


def _without_ones(dimensions: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions in a canonical order, as layouts and reshapes with ones do not change whose array it is."""
    return tuple(sorted(size for size in dimensions if size != 1))
