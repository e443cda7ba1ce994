"""Where the bytes of a compiled step go: what XLA will allocate, by kind and by owner.

The peak of a step is

    arguments + outputs - aliased + temporaries

of XLA's own memory analysis: arguments are the state and the batch, outputs are the new state and the metrics,
aliased is what of the outputs lives in the donated state, temporaries are all the rest. XLA also reports a
`peak_memory_in_bytes`. It is not used here: on a CPU it leaves out what a loop works with, and for a GPU it adds
arrays that live on the host. A test keeps the two apart.

The owners of arguments are exact to the byte: they follow from the specs of state and batch. The temporaries are one
number in XLA's analysis, and it is divided by what is known to be in it:

    gradients                   of the temporaries: one gradient for each trainable parameter, in fp32 as sums when an
                                update has several micro-batches, else in the parameter's own format. In one piece XLA
                                may give a gradient's bytes back before the peak; then they count here all the same,
                                up to the size of the temporaries.
    activations and temporaries the rest: saved residuals, logits, work space.

So the sum of the owners is the peak exactly, always.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brim.tree import tree_bytes, tree_size

if TYPE_CHECKING:  # a stored figure is read without what made it
    from brim.training.assemble import Assembly
    from brim.training.state import State

PARAMETERS, VARIABLES, OPTIMIZER, GRADIENTS = "parameters", "variables", "optimizer", "gradients"
ACTIVATIONS, BATCH, OTHER = "activations and temporaries", "batch", "counters and metrics"
OWNERS = (PARAMETERS, VARIABLES, OPTIMIZER, GRADIENTS, ACTIVATIONS, BATCH, OTHER)
"""In the order in which they are shown."""


@dataclass(frozen=True)
class Memory:
    """Device bytes of one compiled step, and the host bytes beside them.

    Attributes:
        arguments, outputs, aliased, temporaries: the four parts of the peak, as XLA gives them.
        owners: name -> bytes; the sum is the peak.
        generated_code: of the compiled program itself; not part of the peak, as XLA keeps it apart.
        host: bytes of arguments, outputs and temporaries that are placed in host memory, less what is aliased.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    owners: Mapping[str, int]
    generated_code: int = 0
    host: int = 0

    @property
    def peak_bytes(self) -> int:
        """Device bytes the step needs: arguments + outputs - aliased + temporaries."""
        return self.arguments + self.outputs - self.aliased + self.temporaries

    @classmethod
    def of(cls, compiled: Any, assembly: Assembly, *, accumulating: bool) -> Memory:
        """Read the memory analysis of a compiled window.

        Args:
            compiled: a `jax.stages.Compiled` of `assembly.window`, with unused arguments kept.
            assembly: what was compiled; its specs name the owners of the arguments.
            accumulating: whether an update has several micro-batches, so that fp32 gradient sums exist.
        """
        found = compiled.memory_analysis()
        arguments, outputs = found.argument_size_in_bytes, found.output_size_in_bytes
        aliased, temporaries = found.alias_size_in_bytes, found.temp_size_in_bytes
        return cls(
            arguments,
            outputs,
            aliased,
            temporaries,
            owners=_owners(arguments + outputs - aliased, temporaries, assembly, accumulating),
            generated_code=found.generated_code_size_in_bytes,
            host=found.host_argument_size_in_bytes
            + found.host_output_size_in_bytes
            - found.host_alias_size_in_bytes
            + found.host_temp_size_in_bytes,
        )


def gradient_bytes(state: State, *, accumulating: bool) -> int:
    """Bytes of one gradient for every trainable parameter: fp32 sums, or in the parameters' own formats."""
    return 4 * tree_size(state.trainable) if accumulating else tree_bytes(state.trainable)


def argument_bytes(assembly: Assembly) -> int:
    """Bytes of the state and of the whole batch of an update; exact, from their specs."""
    return tree_bytes(assembly.state) + tree_bytes(assembly.batch)


def _owners(resident: int, temporaries: int, assembly: Assembly, accumulating: bool) -> dict[str, int]:
    state: State = assembly.state
    gradients = min(gradient_bytes(state, accumulating=accumulating), temporaries)
    owners = {
        PARAMETERS: tree_bytes(state.trainable) + tree_bytes(state.frozen),
        VARIABLES: tree_bytes(state.variables),
        OPTIMIZER: tree_bytes(state.optimizer),
        GRADIENTS: gradients,
        ACTIVATIONS: temporaries - gradients,
        BATCH: tree_bytes(assembly.batch),
    }
    # The run's key, the counters, the metrics, and XLA's table of pointers to the outputs: some hundred bytes.
    rest = resident + temporaries - sum(owners.values())
    return {name: size for name, size in {**owners, OTHER: rest}.items() if size}
