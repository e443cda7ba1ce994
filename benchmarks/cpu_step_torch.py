"""The PyTorch side of `cpu_step.py`: the same decoder and step as brim's, in eager mode or compiled.

Runs in the Python of `--torch-python`, which needs torch and numpy only. The model is a plain GPT-2: one product for
query, key and value, `F.scaled_dot_product_attention(is_causal=True)`, a tied head and `F.cross_entropy`; the optimizer
is the fused AdamW, the fastest that PyTorch has for a CPU.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from workers import forget_peak_rss, median_seconds, open_replies, peak_rss_bytes, serve

REPLIES = open_replies()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from cpu_step_work import BETAS, CLIP_NORM, EPSILON, LEARNING_RATE, WEIGHT_DECAY, Work  # noqa: E402


class Block(nn.Module):
    """Attention and feed-forward, each after a norm and around the residual stream."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        width = work.width
        self.heads = work.heads
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        mixed = self.query_key_value(self.attention_norm(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Decoder(nn.Module):
    """Embeddings, blocks, final norm, tied head; returns the mean loss."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(work.vocabulary, work.width)
        self.position_embedding = nn.Embedding(work.context, work.width)
        self.layers = nn.ModuleList(Block(work) for _ in range(work.layers))
        self.final_norm = nn.LayerNorm(work.width, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.token_embedding(tokens) + self.position_embedding.weight
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.final_norm(x), self.token_embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Contender:
    """The model with its optimizer, and what the driver may ask of it."""

    def __init__(self, work: Work, initial: str, *, compiled: bool) -> None:
        model = Decoder(work)
        with np.load(initial) as arrays:
            model.load_state_dict({name: torch.from_numpy(arrays[name].copy()) for name in arrays.files})
        self.work, self.model, self.number = work, model, 0
        self.loss = torch.compile(model) if compiled else model
        decayed = [p for p in model.parameters() if p.dim() >= 2]
        others = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, fused=True)

    def steps(self, count: int) -> dict[str, list[float]]:
        """Run updates; wall seconds and the loss before each."""
        seconds, losses = [], []
        for _ in range(count):
            batch = self.work.batch_of(self.number)
            start = time.perf_counter()
            losses.append(self._step(*(torch.from_numpy(ids).long() for ids in batch)))
            seconds.append(time.perf_counter() - start)
            self.number += 1
        return {"seconds": seconds, "losses": losses}

    def _step(self, tokens: torch.Tensor, targets: torch.Tensor) -> float:
        loss = self.loss(tokens, targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        self.optimizer.step()
        return loss.item()

    def gemm(self, rows: int, inner: int, columns: int) -> float:
        """FLOP/s of one fp32 matrix product."""
        left, right = torch.randn(rows, inner), torch.randn(inner, columns)
        with torch.no_grad():
            return 2 * rows * inner * columns / median_seconds(lambda: left @ right, times=9)

    def facts(self) -> dict[str, Any]:
        """Version, threads, and the instructions PyTorch's own kernels use."""
        capability = torch.backends.cpu.get_cpu_capability()
        return {"torch": torch.__version__, "threads": torch.get_num_threads(), "capability": capability}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--initial", required=True, help="initial parameters, .npz")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    contender = Contender(Work(options.vocabulary), options.initial, compiled=options.compile)
    handlers = {"steps": contender.steps, "gemm": contender.gemm, "facts": contender.facts}
    serve(handlers | {"peak_rss_bytes": peak_rss_bytes, "forget_peak_rss": forget_peak_rss}, REPLIES)


if __name__ == "__main__":
    main()
