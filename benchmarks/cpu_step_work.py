"""The work of `cpu_step.py`, the same for every contender: sizes, batches, optimizer settings, FLOPs. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, CLIP_NORM = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0
"""AdamW with a constant learning rate; decay on matrices and embeddings only; global norm clipped.

The rate is low enough that the loss does not spike, because a spike amplifies rounding: with 1e-3 and 50304 entries one
loss of 24 differed by 0.016 between two frameworks that agreed to 2e-5 before and to 4e-4 after it.
"""

DISTINCT_BATCHES = 4
"""Batches are used in turn, so that the loss falls quickly and a wrong update would show in it."""


@dataclass(frozen=True)
class Work:
    """Sizes of the decoder and of a batch. No biases, no dropout, tied head, GELU in its tanh form, fp32."""

    vocabulary: int
    layers: int = 6
    width: int = 384
    heads: int = 6
    context: int = 256
    batch: int = 8

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.batch * self.context

    @property
    def matmul_parameters(self) -> int:
        """Parameters that every token is multiplied by: the blocks' matrices and the head."""
        return self.layers * 12 * self.width**2 + self.vocabulary * self.width

    @property
    def flops_per_token(self) -> int:
        """6 N + 12 L T D, N as above: forward and backward, attention counted in full although it is causal."""
        return 6 * self.matmul_parameters + 12 * self.layers * self.context * self.width

    def batch_of(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, targets) of a step, int32 [batch, context]: a few words are frequent, as in text (Zipf)."""
        random = np.random.default_rng(step % DISTINCT_BATCHES)
        ids = (random.zipf(1.2, (self.batch, self.context + 1)) - 1) % self.vocabulary
        return ids[:, :-1].astype(np.int32), ids[:, 1:].astype(np.int32)
