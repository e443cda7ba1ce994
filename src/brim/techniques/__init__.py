"""One file per technique; `registry.py` is the table a newcomer reads first."""

from brim.techniques.accumulation import Accumulation
from brim.techniques.attention_kernel import AttentionKernel
from brim.techniques.base import Context, Points, Technique
from brim.techniques.chunked_loss import ChunkedLoss
from brim.techniques.lowbit_states import LowbitStates
from brim.techniques.precision import Precision
from brim.techniques.recipe import Recipe, techniques_from
from brim.techniques.registry import REGISTRY
from brim.techniques.rematerialization import Rematerialization
from brim.techniques.residuals import Residuals

__all__ = [
    "REGISTRY",
    "Accumulation",
    "AttentionKernel",
    "ChunkedLoss",
    "Context",
    "LowbitStates",
    "Points",
    "Precision",
    "Recipe",
    "Rematerialization",
    "Residuals",
    "Technique",
    "techniques_from",
]
