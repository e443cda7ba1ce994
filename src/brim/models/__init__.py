"""Models that show what brim does.

    shape.py presets.py settings.py   what a decoder is, published ones by name, the `[model]` table; no JAX
    layers.py                         linear, norms, rotary positions, attention projections, feed-forward
    decoder.py                        the GPT-2 and Llama families: one scanned stack, its loss, its program
    generation.py                     sampling with a key-value cache

This file imports only what needs no JAX, so that a run file can be read at once.
"""

from __future__ import annotations

from brim.models.presets import PRESETS, Preset
from brim.models.settings import DecoderSettings
from brim.models.shape import DecoderShape, parameter_count

__all__ = ["PRESETS", "DecoderSettings", "DecoderShape", "Preset", "parameter_count"]
