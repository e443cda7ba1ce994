"""Published models by name: exact shapes and parameter counts, in one table. Needs no JAX.

A preset gives a shape, not weights. Counts are those of the published checkpoints: the vocabulary is not padded, and
GPT-2's learned positions cover its context of 1024. Contexts are those of the first training phase: Llama 3.1 and 3.2
were stretched to 131,072 later, by a change of the rotary frequencies that brim does not have.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.models.shape import DecoderShape


@dataclass(frozen=True)
class Preset:
    """A published model: its shape, its number of parameters, and where both are published."""

    shape: DecoderShape
    parameters: int
    source: str


_GPT2_SOURCE = "Radford et al., Language Models are Unsupervised Multitask Learners, 2019; released hparams.json"
_LLAMA1_SOURCE = "Touvron et al., LLaMA, arXiv 2302.13971, table 2"
_LLAMA2_SOURCE = "Touvron et al., Llama 2, arXiv 2307.09288; released config.json"
_LLAMA3_SOURCE = "Grattafiori et al., The Llama 3 Herd of Models, arXiv 2407.21783; released config.json"


def _gpt2(layers: int, width: int, heads: int, parameters: int) -> Preset:
    shape = DecoderShape(
        family="gpt2",
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=heads,
        head_width=width // heads,
        hidden=4 * width,
        context=1024,
        vocabulary=50257,
        tied=True,
        bias=True,
        rope_theta=None,
        norm_epsilon=1e-5,
    )
    return Preset(shape, parameters, _GPT2_SOURCE)


def _llama(
    layers: int, width: int, heads: int, kv_heads: int, hidden: int, parameters: int, context: int, epsilon: float,
    source: str, *, vocabulary: int = 32000, rope_theta: float = 10000.0, tied: bool = False,
) -> Preset:  # fmt: skip
    shape = DecoderShape(
        family="llama",
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_width=width // heads,
        hidden=hidden,
        context=context,
        vocabulary=vocabulary,
        tied=tied,
        bias=False,
        rope_theta=rope_theta,
        norm_epsilon=epsilon,
    )
    return Preset(shape, parameters, source)


def _llama1(layers: int, width: int, heads: int, hidden: int, parameters: int) -> Preset:
    return _llama(layers, width, heads, heads, hidden, parameters, 2048, 1e-6, _LLAMA1_SOURCE)


def _llama3(
    layers: int, width: int, heads: int, kv_heads: int, hidden: int, parameters: int, *, tied: bool = False
) -> Preset:
    return _llama(
        layers, width, heads, kv_heads, hidden, parameters, 8192, 1e-5, _LLAMA3_SOURCE,
        vocabulary=128256, rope_theta=500000.0, tied=tied,
    )  # fmt: skip


PRESETS: dict[str, Preset] = {
    # name               layers width heads [kv] hidden parameters
    "gpt2":         _gpt2(12,   768,  12,         124_439_808),
    "gpt2-medium":  _gpt2(24,  1024,  16,         354_823_168),
    "gpt2-large":   _gpt2(36,  1280,  20,         774_030_080),
    "gpt2-xl":      _gpt2(48,  1600,  25,       1_557_611_200),
    "llama-7b":   _llama1(32,  4096,  32, 11008,  6_738_415_616),
    "llama-13b":  _llama1(40,  5120,  40, 13824, 13_015_864_320),
    "llama-30b":  _llama1(60,  6656,  52, 17920, 32_528_943_616),
    "llama-70b":   _llama(80,  8192,  64, 8, 28672, 68_976_648_192, 4096, 1e-5, _LLAMA2_SOURCE),
    "llama3.2-1b": _llama3(16, 2048,  32, 8,  8192, 1_235_814_400, tied=True),
    "llama3.2-3b": _llama3(28, 3072,  24, 8,  8192, 3_212_749_824, tied=True),
    "llama3.1-8b": _llama3(32, 4096,  32, 8, 14336, 8_030_261_248),
}  # fmt: skip
