"""A small language model in plain JAX, with a fault to plant in it: what the room reads, without the rest of brim.

Sizes differ from each other, so that an array's dimensions tell what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.ad_checkpoint import checkpoint_name

from brim.compiled import Audit, Roles, audit_compile

LAYERS, WIDTH, HIDDEN, HEADS, VOCABULARY = 6, 48, 144, 4, 2048
ROWS, LENGTH = 4, 40
TOKENS = ROWS * LENGTH
ROLES = Roles(parameters="params", optimizer="opt_state", batch="batch")
OPTIMIZER = optax.adamw(1e-3)
# Code generation takes half of a compile's time and none of its buffer assignment.
QUICK = {"xla_backend_optimization_level": "0"}

POLICIES: dict[str, Callable[[Any], Any]] = {
    "none": lambda block: block,
    "dots": partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable, prevent_cse=False),
    "full": partial(jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False),
}


def params_of(dtype: Any = jnp.float32) -> dict[str, Any]:
    """Specs of the parameters."""
    sizes = {
        "embedding": (VOCABULARY, WIDTH),
        "layers": {
            "qkv": (LAYERS, WIDTH, 3 * WIDTH),
            "out": (LAYERS, WIDTH, WIDTH),
            "up": (LAYERS, WIDTH, HIDDEN),
            "down": (LAYERS, HIDDEN, WIDTH),
        },
    }
    return jax.tree.map(lambda size: jax.ShapeDtypeStruct(size, dtype), sizes, is_leaf=lambda x: isinstance(x, tuple))


PARAMETERS = sum(leaf.size for leaf in jax.tree.leaves(params_of()))
BATCH = {name: jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32) for name in ("tokens", "targets")}


def block(x: Any, layer: Any) -> Any:
    with jax.named_scope("attention"):
        query, key, value = jnp.split((x @ layer["qkv"]).reshape(ROWS, LENGTH, HEADS, -1), 3, axis=-1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key)
        seen = jnp.arange(LENGTH)[None, None, :, None] >= jnp.arange(LENGTH)[None, None, None, :]
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(seen, scores, -1e9)), value)
        x = x + mixed.reshape(x.shape) @ layer["out"]
    with jax.named_scope("feed_forward"):
        hidden = checkpoint_name(x @ layer["up"], "hidden")
        return x + jnp.tanh(hidden) @ layer["down"]


def token_loss(x: Any, head: Any, targets: Any) -> Any:
    logits = (x @ head.T).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - chosen).sum()


def loss(params: Any, batch: Any, policy: str, chunks: int, compute: Any, head_dtype: Any) -> Any:
    """Summed cross-entropy.

    Args:
        policy: what the layers keep.
        chunks: in how many pieces the loss is computed.
        compute, head_dtype: dtypes of the layers and of the head.
    """
    layers = jax.tree.map(lambda leaf: leaf.astype(compute), params["layers"])
    with jax.named_scope("embedding"):
        x = params["embedding"][batch["tokens"]].astype(compute)
    x, _ = jax.lax.scan(lambda x, layer: (POLICIES[policy](block)(x, layer), None), x, layers)
    with jax.named_scope("loss"):
        head = params["embedding"].astype(head_dtype)
        x = x.astype(head_dtype).reshape(chunks, TOKENS // chunks, WIDTH)
        pieces = x, batch["targets"].reshape(chunks, -1)
        one = token_loss if chunks == 1 else jax.checkpoint(token_loss)
        total, _ = jax.lax.scan(lambda total, piece: (total + one(piece[0], head, piece[1]), None), 0.0, pieces)
        return total


def step(params: Any, opt_state: Any, batch: Any, **settings: Any) -> Any:
    value, gradients = jax.value_and_grad(loss)(params, batch, **settings)
    with jax.named_scope("optimizer"):
        updates, opt_state = OPTIMIZER.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value


@cache
def audited(
    policy: str = "none",
    *,
    chunks: int = 1,
    compute: Any = jnp.float32,
    head_dtype: Any = None,
    donate: bool = True,
) -> Audit:
    """The step, compiled once for the device that is here."""
    settings = {"policy": policy, "chunks": chunks, "compute": compute, "head_dtype": head_dtype or compute}
    params = params_of()
    arguments = params, jax.eval_shape(OPTIMIZER.init, params), BATCH
    jitted = jax.jit(partial(step, **settings), donate_argnums=(0, 1) if donate else ())
    return audit_compile(jitted.lower(*arguments), QUICK)
