"""The `[model]` table of a run file. Needs no JAX.

    [model]
    preset = "gpt2"      # a published shape ...
    layers = 8           # ... of which any size can be replaced

or, without a preset, `layers`, `width`, `heads` and `context`, and what the family does not settle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from brim.errors import SettingsError, did_you_mean
from brim.models.presets import PRESETS
from brim.models.shape import SIZE_WORDS, SIZES, DecoderShape, Family, Sharing
from brim.settings import require

_NEEDED = ("layers", "width", "heads", "context")


@dataclass(frozen=True)
class DecoderSettings:
    """A decoder as a person describes it: a preset, sizes, or both. None means "not said".

    What is not said comes from the preset, then from the family:

        kv_heads = heads, head_width = width / heads, norm_epsilon = 1e-5
        gpt2 (the default family)   hidden = 4 width, tied = true, bias = true
        llama                       hidden = 8/3 width rounded up to a multiple of 256, tied = false, bias = false,
                                    rope_theta = 10000

    A changed `width`, `heads` or `family` frees the sizes of the preset that follow from it (`hidden`, `head_width`,
    `kv_heads` and the switches), so that a smaller GPT-2 is again a well-formed GPT-2. The fields are those of
    `DecoderShape`; `vocabulary` may stay unsaid until the tokenizer is known.

    Raises:
        SettingsError: on an unknown preset, and on sizes that do not go together.
    """

    preset: str = ""
    family: Family | None = None
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_width: int | None = None
    hidden: int | None = None
    context: int | None = None
    vocabulary: int | None = None
    tied: bool | None = None
    bias: bool | None = None
    rope_theta: float | None = None
    norm_epsilon: float | None = None
    dropout: float = 0.0
    shared_layers: Sharing = "none"
    distinct_layers: int | None = None

    def __post_init__(self) -> None:
        known = not self.preset or self.preset in PRESETS
        hint = "" if known else did_you_mean(self.preset, PRESETS)
        require(known, "preset", self.preset, "the name of a preset", hint=hint)
        for key in SIZES:  # also beside sizes that are still missing
            require(getattr(self, key) is None or getattr(self, key) >= 1, key, getattr(self, key), SIZE_WORDS)
        if not self.missing():
            # That sizes go together is checked as soon as the run file is read; the vocabulary may come later, and any
            # number checks.
            self._shape(unsaid_vocabulary=self.vocabulary or 1)

    def missing(self) -> tuple[str, ...]:
        """Keys that must be said and are not."""
        return () if self.preset else tuple(key for key in _NEEDED if getattr(self, key) is None)

    def require_complete(self) -> None:
        """Check that the model is described.

        Raises:
            SettingsError: naming the sizes that are missing.
        """
        if self.missing():
            raise SettingsError(
                f"the model has no {', '.join(f'`{key}`' for key in self.missing())}",
                hint="say them under [model], or name a preset such as gpt2",
            )

    def resolved(self, *, tokenizer_vocabulary: int | None = None) -> DecoderShape:
        """The full shape.

        Args:
            tokenizer_vocabulary: number of token ids of the data. It fills an unsaid vocabulary, and must fit into one
                that is said or comes from the preset.

        Raises:
            SettingsError: if sizes are missing, do not go together, or have no room for the tokenizer's ids.
        """
        self.require_complete()
        shape = self._shape(unsaid_vocabulary=tokenizer_vocabulary)
        if tokenizer_vocabulary is not None and tokenizer_vocabulary > shape.vocabulary:
            raise SettingsError(
                f"`vocabulary` is {shape.vocabulary}; the tokenizer has {tokenizer_vocabulary} ids",
                hint=f"say vocabulary = {tokenizer_vocabulary} or more under [model]",
            )
        return shape

    def _shape(self, *, unsaid_vocabulary: int | None) -> DecoderShape:
        said = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "preset"}
        said = {key: value for key, value in said.items() if value is not None}
        values = self._preset_values(said) | said
        values = _family_values(values) | values
        values.setdefault("vocabulary", unsaid_vocabulary)
        if values["vocabulary"] is None:
            raise SettingsError(
                "`vocabulary` is not known yet", hint="say it under [model], or take it from the tokenizer"
            )
        return DecoderShape(**values)

    def _preset_values(self, said: Mapping[str, Any]) -> dict[str, Any]:
        if not self.preset:
            return {}
        shape = PRESETS[self.preset].shape
        values = {field.name: getattr(shape, field.name) for field in fields(shape)}
        changed = {key for key, value in said.items() if values[key] != value}
        freed = {
            key
            for cause, followers in _FOLLOWERS.items()
            if cause in changed
            for key in followers
        }  # fmt: skip
        return {key: value for key, value in values.items() if key not in freed}


_FOLLOWERS = {
    "width": ("hidden", "head_width"),
    "heads": ("kv_heads", "head_width"),
    "family": ("hidden", "tied", "bias", "rope_theta", "norm_epsilon"),
}


def _family_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the family settles, given the sizes that are known."""
    width, heads = values["width"], values["heads"]
    if "head_width" not in values:
        expected = f"a divisor of `width` ({width}), unless `head_width` is said"
        require(width % heads == 0, "heads", heads, expected)
    common = {"kv_heads": heads, "head_width": width // heads, "norm_epsilon": 1e-5}
    if values.get("family", "gpt2") == "gpt2":
        return common | {"family": "gpt2", "hidden": 4 * width, "tied": True, "bias": True, "rope_theta": None}
    hidden = -(-(8 * width // 3) // 256) * 256
    return common | {"hidden": hidden, "tied": False, "bias": False, "rope_theta": 10000.0}
