"""Published formulas against compiled bytes and counted FLOPs, each difference named term by term."""

from __future__ import annotations

import jax
import optax
import pytest

from brim.hardware.device import named
from brim.hardware.flops import Flops, count_flops
from brim.models import DecoderSettings
from brim.models.decoder import RESIDUAL_NAMES, decoder_program
from brim.techniques import AttentionKernel, Context, Recipe, Rematerialization
from brim.training.assemble import ops_from
from techniques.test_bytes import REFERENCE, growth

# Korthikanti's letters: s positions, b rows, h width, a heads. As in `growth`.
S, B, H, A = 256, 2, 128, 4
SBH, AS2B = S * B * H, A * S * S * B

NANOGPT_PARAMETERS = 124_337_664 + 1024 * 768  # nanoGPT's count leaves learned positions out
NANOGPT_FLOPS_PER_ROW = 874_944_921_600

# Korthikanti et al. 2022, section 4.1: bytes of one layer in fp16, as multiples of sbh and of as^2b.
KORTHIKANTI = {
    "input of queries, keys and values": 2,
    "queries and keys": 4,
    "values": 2,
    "input of the output projection": 2,
    "mask of attention's dropout": 1,
    "input of the feed-forward part": 2,
    "input of GELU": 8,
    "input of the second linear layer": 8,
    "mask of the feed-forward part's dropout": 1,
    "inputs of two norms": 4,
}
KORTHIKANTI_SCORES = {"softmax": 2, "mask of its dropout": 1, "what its dropout gives": 2}


def linear_terms(bytes_per_element: int) -> int:
    """The sbh terms without dropout, which this model does not have, in another format than fp16."""
    kept = sum(size for name, size in KORTHIKANTI.items() if "dropout" not in name)
    return kept * bytes_per_element // 2


def test_korthikantis_terms_are_those_of_the_paper() -> None:
    assert sum(KORTHIKANTI.values()) == 34
    assert sum(KORTHIKANTI_SCORES.values()) == 5
    assert linear_terms(2) == 32


def test_a_layer_without_rematerialization_keeps_korthikantis_terms_and_a_longer_softmax() -> None:
    # In fp32 (XLA's CPU backend). Where the paper keeps the softmax once, plain differentiation of a masked softmax
    # keeps three arrays like it: the exponentials, the same with hidden keys at 0, and the quotient. Beside them the
    # divisor and its reciprocal are one number per query.
    scores = 3 * 4
    statistics = 2 * 4 * A * S * B
    expected = linear_terms(4) * SBH + scores * AS2B + statistics
    assert growth(Rematerialization(), REFERENCE) == pytest.approx(expected, rel=0.001)


def test_selective_rematerialization_keeps_exactly_the_linear_terms() -> None:
    """The paper's selective recomputation drops scores, softmax and mixing: 34 sbh, here 32 in fp32."""
    # `attention_out` stands for the second norm's input, which is the block's input plus it.
    outside_attention = tuple(name for name in RESIDUAL_NAMES if name not in ("block_input", "mlp_gate", "mlp_out"))
    selective = Rematerialization("names", names=outside_attention)
    assert growth(selective, REFERENCE) == pytest.approx(linear_terms(4) * SBH, rel=0.05)


def test_full_rematerialization_keeps_the_input_of_a_layer() -> None:
    """The paper: 2 sbh in fp16."""
    assert growth(Rematerialization("full"), REFERENCE) == pytest.approx(2 * 4 / 2 * SBH, rel=0.05)


def gpt2_flops(*, backward: bool) -> Flops:
    """FLOPs of one row of GPT-2 124M with attention written out; traced, not compiled."""
    program = decoder_program(DecoderSettings(preset="gpt2").resolved(), optax.sgd(1.0), packed=False)
    points = Recipe.of(1, AttentionKernel("reference")).points(Context(program, named("h100")))
    ops = ops_from(points)

    def loss(trainable, batch):  # type: ignore[no-untyped-def]
        return program.loss(trainable, (), (), batch, None, ops)[0].total

    return count_flops(jax.value_and_grad(loss) if backward else loss, program.part_specs()[0], program.batch_specs(1))


def test_flops_of_gpt2_are_nanogpts() -> None:
    """Source: nanoGPT, transformer_sizing.ipynb; three forward passes with all keys of every query."""
    counted = gpt2_flops(backward=True).matmul
    assert counted == pytest.approx(NANOGPT_FLOPS_PER_ROW, rel=0.01)
    assert counted == pytest.approx(3 * gpt2_flops(backward=False).matmul, rel=0.001)


def test_flops_of_gpt2_are_six_per_parameter_and_token_beside_attention() -> None:
    """6ND of Kaplan et al. 2020; PaLM's appendix B adds 12 L H Q T per token for attention."""
    layers, width, length = 12, 768, 1024
    attention = 12 * layers * width * length * length
    counted = gpt2_flops(backward=True).matmul
    matrices = NANOGPT_PARAMETERS - length * width
    assert counted - attention == pytest.approx(6 * matrices * length, rel=0.01)
    assert counted == pytest.approx((6 * matrices + 12 * layers * width * length) * length, rel=0.01)
