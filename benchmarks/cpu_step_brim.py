"""brim's side of `cpu_step.py`: the step that `brim train` runs, under the recipe that is fastest on a CPU."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from workers import forget_peak_rss, median_seconds, open_replies, peak_rss_bytes, serve

REPLIES = open_replies()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from brim.hardware.device import detect  # noqa: E402
from brim.models.decoder import Decoder, decay_mask, decoder_program  # noqa: E402
from brim.models.shape import DecoderShape  # noqa: E402
from brim.program import Program  # noqa: E402
from brim.techniques import Recipe, techniques_from  # noqa: E402
from brim.training.optimizers import OptimizerSettings, optimizer  # noqa: E402
from brim.training.step import Step  # noqa: E402
from cpu_step_work import BETAS, CLIP_NORM, EPSILON, LEARNING_RATE, WEIGHT_DECAY, Work  # noqa: E402

UNROLLED = {"rematerialization": {"unroll": 0}, "attention_kernel": {"kernel": "blockwise"}}
RECIPES: dict[str, dict[str, Any]] = {
    "small vocabulary": UNROLLED,
    "large vocabulary": UNROLLED | {"chunked_loss": {"tokens": 512}},
}
"""What stands in [techniques] of the run file. Chunks pay when the logits are most of the memory."""


def program_of(work: Work) -> Program:
    """The decoder and optimizer of the benchmark."""
    shape = DecoderShape(
        family="gpt2",
        layers=work.layers,
        width=work.width,
        heads=work.heads,
        kv_heads=work.heads,
        head_width=work.width // work.heads,
        hidden=4 * work.width,
        context=work.context,
        vocabulary=work.vocabulary,
        tied=True,
        bias=False,
        rope_theta=None,
        norm_epsilon=1e-5,
    )
    settings = OptimizerSettings(betas=BETAS, epsilon=EPSILON, weight_decay=WEIGHT_DECAY)
    adamw = optimizer(settings, lambda _: jnp.float32(LEARNING_RATE), decay_mask)
    return decoder_program(shape, adamw, CLIP_NORM, packed=False)


def torch_names(model: Decoder) -> dict[str, np.ndarray]:
    """The parameters by the names that the PyTorch module gives them."""
    block, arrays = model.layers, {"token_embedding.weight": model.token_embedding.weight}
    assert model.position_embedding is not None
    arrays |= {
        "position_embedding.weight": model.position_embedding.weight,
        "final_norm.weight": model.final_norm.scale,
    }
    stacked = {
        "attention_norm": block.attention_norm.scale,
        "query_key_value": jnp.concatenate([getattr(block.attention, n).weight for n in ("query", "key", "value")], 1),
        "out": block.attention.out.weight,
        "mlp_norm": block.mlp_norm.scale,
        "up": block.mlp.up.weight,
        "down": block.mlp.down.weight,
    }
    for name, stack in stacked.items():
        arrays |= {f"layers.{layer}.{name}.weight": array for layer, array in enumerate(stack)}
    return {name: np.asarray(array) for name, array in arrays.items()}


class Contender:
    """The compiled step with its state, and what the driver may ask of it."""

    def __init__(self, work: Work) -> None:
        self.work, self.number = work, 0
        tables = RECIPES["small vocabulary" if work.vocabulary < 4096 else "large vocabulary"]
        self.step = Step(program_of(work), Recipe.of(work.batch, *techniques_from(tables)), detect())
        self.state = self.step.init(jax.random.key(0))

    def export(self, path: str) -> None:
        """Write the initial parameters for the other contenders."""
        with Path(path).open("wb") as file:
            np.savez(file, **torch_names(self.state.trainable))

    def steps(self, count: int) -> dict[str, list[float]]:
        """Run updates; wall seconds and the loss before each."""
        seconds, losses = [], []
        for _ in range(count):
            tokens, targets = self.work.batch_of(self.number)
            start = time.perf_counter()
            self.state, metrics = self.step(self.state, {"tokens": tokens, "targets": targets})
            jax.block_until_ready((self.state, metrics))
            seconds.append(time.perf_counter() - start)
            losses.append(float(metrics.loss))
            self.number += 1
        return {"seconds": seconds, "losses": losses}

    def gemm(self, rows: int, inner: int, columns: int) -> float:
        """FLOP/s of one fp32 matrix product."""
        left, right = jnp.ones((rows, inner)), jnp.ones((inner, columns))
        product = jax.jit(jnp.matmul)
        seconds = median_seconds(lambda: product(left, right).block_until_ready(), times=9)
        return 2 * rows * inner * columns / seconds

    def facts(self) -> dict[str, Any]:
        """Recipe, what techniques had to say, and how long compiling took."""
        seconds = self.step.compile_seconds["window"]
        return {"recipe": self.step.recipe.describe(), "notes": self.step.notes, "compile_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, required=True)
    contender = Contender(Work(parser.parse_args().vocabulary))
    handlers = {name: getattr(contender, name) for name in ("export", "steps", "gemm", "facts")}
    serve(handlers | {"peak_rss_bytes": peak_rss_bytes, "forget_peak_rss": forget_peak_rss}, REPLIES)


if __name__ == "__main__":
    main()
