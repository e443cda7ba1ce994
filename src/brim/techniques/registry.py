"""The techniques in canonical order: the order in which they fill the points of a step.

Formats come first because everything after works in them; then what replaces an operation; then what decides about a
block's intermediates; then what surrounds the whole forward and backward pass; last what becomes of its gradients.
"""

from __future__ import annotations

from brim.techniques.accumulation import Accumulation
from brim.techniques.attention_kernel import AttentionKernel
from brim.techniques.base import Technique
from brim.techniques.chunked_loss import ChunkedLoss
from brim.techniques.lowbit_states import LowbitStates
from brim.techniques.precision import Precision
from brim.techniques.rematerialization import Rematerialization

REGISTRY: tuple[type[Technique], ...] = (
    Precision,
    AttentionKernel,
    ChunkedLoss,
    Rematerialization,
    Accumulation,
    LowbitStates,
)
