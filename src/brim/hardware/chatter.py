"""Keeping known noise of native libraries out of what people read.

A CUDA plugin on a machine without a driver says four times, straight to stderr and below every logging setting, that it
finds no driver. That is so, and nothing is wrong with it: the plugin is there to compile for GPUs that are elsewhere.
And XLA warns of each step that is larger than the device it is compiled for, which a search for one that fits must do.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

KNOWN = (b"cudart_stub.cc", b"All log messages before absl::InitializeLog()", b"Can't reduce memory use below")


@contextmanager
def without_chatter() -> Iterator[None]:
    """Hold back what is written to stderr; afterwards, write all of it but the known noise."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        try:
            os.dup2(held.fileno(), 2)
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            for line in held:
                if not any(noise in line for noise in KNOWN):
                    os.write(2, line)
