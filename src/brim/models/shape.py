"""The full shape of a decoder: every size and switch, with nothing left to be chosen. Needs no JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from brim.settings import require

Family = Literal["gpt2", "llama"]
Sharing = Literal["none", "all", "groups", "cycles"]
SIZES = ("layers", "width", "heads", "kv_heads", "head_width", "hidden", "context", "vocabulary")
SIZE_WORDS = "a whole number of at least 1"


@dataclass(frozen=True)
class DecoderShape:
    """Every size and switch of a decoder-only transformer.

    Attributes:
        family: `gpt2` is learned positions, LayerNorm and GELU; `llama` is rotary positions, RMSNorm and SwiGLU.
        layers: number of blocks.
        width: size of the residual stream.
        heads: query heads.
        kv_heads: key-value heads; each serves `heads / kv_heads` query heads.
        head_width: size of one head.
        hidden: size of the feed-forward part.
        context: positions in a row.
        vocabulary: number of token ids.
        tied: whether the head is the token embedding.
        bias: whether linear layers and LayerNorms have a bias.
        rope_theta: base of the rotary frequencies; None for learned positions.
        norm_epsilon: added to the variance (LayerNorm) or the mean square (RMSNorm).
        dropout: rate after the embedding, on attention probabilities and before each residual addition.
        shared_layers: whether several layers use one set of weights: all of them; neighbours (`groups`: 0 0 1 1); or
            each set again and again (`cycles`: 0 1 0 1). Activations and FLOPs stay those of all layers.
            Sources: Lan et al., ALBERT, 2020 (all); Takase and Kiyono, Lessons on Parameter Sharing across Layers in
            Transformers, 2021 (groups there are `sequence`, cycles `cycle`).
        distinct_layers: sets of weights, a divisor of `layers`; of groups and cycles only.

    Raises:
        SettingsError: when made from sizes that do not go together.
    """

    family: Family
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    hidden: int
    context: int
    vocabulary: int
    tied: bool
    bias: bool
    rope_theta: float | None
    norm_epsilon: float
    dropout: float = 0.0
    shared_layers: Sharing = "none"
    distinct_layers: int | None = None

    def __post_init__(self) -> None:
        for key in SIZES:
            require(getattr(self, key) >= 1, key, getattr(self, key), SIZE_WORDS)
        require(
            self.heads % self.kv_heads == 0,
            "kv_heads",
            self.kv_heads,
            f"a divisor of `heads` ({self.heads}): each key-value head serves equally many query heads",
        )
        require(self.norm_epsilon > 0, "norm_epsilon", self.norm_epsilon, "a number above 0")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "a rate from 0 to below 1")
        self._check_sharing()
        if self.family == "gpt2":
            hint = "the llama family has rotary positions"
            require(self.rope_theta is None, "rope_theta", self.rope_theta, "nothing in the gpt2 family", hint=hint)
        else:
            self._check_llama()

    def _check_sharing(self) -> None:
        distinct = self.distinct_layers
        if self.shared_layers in ("none", "all"):
            expected = f'nothing where shared_layers is "{self.shared_layers}"'
            require(distinct is None, "distinct_layers", distinct, expected)
            return
        divides = distinct is not None and distinct >= 1 and self.layers % distinct == 0
        require(divides, "distinct_layers", distinct, f"a divisor of `layers` ({self.layers})")

    def _check_llama(self) -> None:
        require(not self.bias, "bias", self.bias, "false in the llama family")
        theta_is_right = self.rope_theta is not None and self.rope_theta > 1
        require(theta_is_right, "rope_theta", self.rope_theta, "a number above 1 in the llama family")
        expected = "an even number: rotary positions turn pairs of numbers"
        require(self.head_width % 2 == 0, "head_width", self.head_width, expected)

    @property
    def layers_of_weights(self) -> int:
        """Number of layers that have weights of their own."""
        own = {"none": self.layers, "all": 1}
        return own.get(self.shared_layers, self.distinct_layers or self.layers)

    @property
    def gated(self) -> bool:
        """Whether the feed-forward part has a gate (SwiGLU)."""
        return self.family == "llama"

    @property
    def learned_positions(self) -> bool:
        """Whether positions are a trained table; otherwise they are rotary."""
        return self.family == "gpt2"


def parameter_count(shape: DecoderShape) -> int:
    """Number of trainable parameters, by formula.

    Small presets are also counted from the model itself in the tests; both must give the published number.
    """
    width, hidden = shape.width, shape.hidden
    query, key_value = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    attention = width * (query + 2 * key_value) + query * width
    feed_forward = width * hidden * (3 if shape.gated else 2)
    biases = (query + 2 * key_value + width) + (hidden + width)
    norm = width * (2 if shape.bias else 1)
    block = attention + feed_forward + 2 * norm + (biases if shape.bias else 0)
    embeddings = shape.vocabulary * width * (1 if shape.tied else 2)
    positions = shape.context * width if shape.learned_positions else 0
    return embeddings + positions + shape.layers_of_weights * block + norm
