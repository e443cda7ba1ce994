"""Which phase of a step each instant of a compiled program belongs to."""

from __future__ import annotations

from brim.compiled.module import Instruction, Module
from brim.compiled.names import Phase, is_named, phase_of, scopes_of

_OPTIMIZER_SCOPE = "optimizer"
_UPDATE_SCOPES = frozenset({_OPTIMIZER_SCOPE, "clip"})
_OPTIMIZER_PACKAGE = "/optax/"


class Phases:
    """Phases of a module's instants.

    Names tell the forward and the backward pass, and scopes the update. What JAX named without either is the update
    once a backward pass has been, else part of the forward pass. What has no name belongs to the phase that is going
    on.
    """

    def __init__(self, module: Module) -> None:
        self._module = module
        self._phases: list[Phase] = []
        now: Phase = "forward"
        for instruction, _ in module.order:
            found = phase_of(instruction.op_name)
            if found is None and is_named(instruction.op_name):
                is_update = now != "forward" or not _UPDATE_SCOPES.isdisjoint(scopes_of(instruction.op_name))
                found = "update" if is_update else None
            now = found or now
            self._phases.append(now)

    def at(self, instant: int) -> Phase:
        """The phase that is going on at an instant."""
        return self._phases[instant]

    def of(self, named: Instruction, instant: int) -> Phase:
        """The phase of what an instruction computes: by its name, else by the instant."""
        return phase_of(named.op_name) or self.at(instant)

    def is_optimizer(self, instruction: Instruction) -> bool:
        """Whether an instruction comes from the optimizer: by its scope, or because Optax's code asked for it."""
        if _OPTIMIZER_SCOPE in scopes_of(instruction.op_name):
            return True
        return any(_OPTIMIZER_PACKAGE in frame.file for frame in self._module.frames.get(instruction.frame, ()))
