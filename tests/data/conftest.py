from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import install_import_hook

# The shapes in these signatures are checked on every call, as in the other rooms.
install_import_hook(["brim.data.counter", "brim.data.rows", "brim.data.store"], "beartype.beartype").__enter__()

from brim.data import TokenStore  # noqa: E402


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes | str], Path]:
    """Write a file under the temporary folder; text goes out as UTF-8 with its line ends as they are."""

    def write_file(name: str, content: bytes | str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


@pytest.fixture
def numbered() -> Callable[..., TokenStore]:
    """A split of documents of the given lengths, whose ids count up through all of them: each token is unique."""

    def make(*lengths: int, name: str = "train") -> TokenStore:
        total = sum(lengths)
        documents = np.split(np.arange(total), np.cumsum(lengths)[:-1])
        return TokenStore.from_documents(documents, vocabulary_size=max(1, total), name=name)

    return make
