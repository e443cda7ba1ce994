"""A stacked MLP and a CPU with round numbers: small enough to compile a whole grid of plans."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from brim.hardware.facts import Device, PeakFlops
from brim.ops import Loss, Ops
from brim.program import Program, Sizes

LENGTH, WIDTH, HIDDEN, LAYERS = 16, 32, 128, 4
PARAMETERS = 2 * LAYERS * WIDTH * HIDDEN

CPU = Device(
    name="cpu",
    platform="cpu",
    kind="round CPU",
    memory_bytes=8 * 2**30,
    free_bytes=6 * 2**30,
    compute_capability=None,
    bandwidth_bytes_per_second=1e10,
    peak_flops=PeakFlops(float32=1e11),
    source="measured",
)


def stacked_program(*, sizes: bool = False, **settings: Any) -> Program:
    """`LAYERS` blocks x + tanh(gelu(x @ up) @ down) on rows of shape [LENGTH, WIDTH], with AdamW.

    Args:
        sizes: whether the program tells its sizes, so that formulas apply.
    """

    def init(key: Any) -> Any:
        up, down = jax.random.split(key)
        shapes = (LAYERS, WIDTH, HIDDEN), (LAYERS, HIDDEN, WIDTH)
        return {"up": jax.random.normal(up, shapes[0]), "down": jax.random.normal(down, shapes[1])}, (), ()

    def block(layer: Any, x: Any, context: Any, index: Any) -> Any:
        del context, index
        return x + jnp.tanh(jax.nn.gelu(x @ layer["up"]) @ layer["down"])

    def loss(trainable: Any, frozen: Any, variables: Any, batch: Any, keys: Any, ops: Ops) -> tuple[Loss, Any]:
        del frozen, keys
        y = ops.stack(block, trainable, batch["x"], ())
        return Loss((y**2).sum(), jnp.float32(y.shape[0])), variables

    row = {"x": jax.ShapeDtypeStruct((LENGTH, WIDTH), jnp.float32)}
    told = Sizes(LENGTH, WIDTH, 0, 0, 0, HIDDEN, gated=False, layers=LAYERS, vocabulary=1) if sizes else None
    settings = {"calls": frozenset({"stack"}), "tokens_per_row": LENGTH, "sizes": told} | settings
    return Program(init, loss, optax.adamw(1e-3), row, **settings)
