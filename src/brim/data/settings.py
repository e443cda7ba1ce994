"""What a run's text is and how it becomes tokens: the `[data]` table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from brim.settings import require

# 256 bytes, one merge and the end-of-document id: below this nothing can be learnt.
SMALLEST_BPE_VOCABULARY = 258
# One token to read and one to predict.
SHORTEST_ROW = 2


@dataclass(frozen=True)
class DataSettings:
    """The `[data]` table of a run file.

    Attributes:
        paths: files, folders and globs, in order. A path that matches nothing is an error, not a silent gap.
        pattern: glob applied inside each folder, recursive and sorted. As in a shell, hidden files and folders are
            left out unless the pattern names them.
        separator: text that ends a document. Empty: each file is one document. `"\\n"`: each line is one.
        bad_bytes: bytes that are not UTF-8 are an error that names file and offset, or each becomes one U+FFFD.
        tokenizer: `bytes` (256 ids), `bpe` (byte-level, learnt on the training documents), or `characters`
            (the sorted set of characters of the corpus).
        vocabulary: how many ids `bpe` learns, the end-of-document id included.
        split: `documents` holds whole documents out; `tail` holds the end of the token stream out, one file being
            one document, with no end-of-document id inside.
        held_out: share that is never trained on, in [0, 1).
        pack: put documents side by side in a row, with attention kept inside each. If false, rows are windows of
            the stream and attention crosses documents.
        sampling: `epochs` visits every token once per epoch in a new order; `random` draws the start of each row
            uniformly, with replacement.
        store: folder of the prepared tokens, which runs may share. Empty: the caller's choice, `data` in the run's
            folder. A relative one is taken from where it was written, as for `paths`.
    """

    paths: tuple[str, ...] = ()
    pattern: str = "**/*"
    separator: str = ""
    bad_bytes: Literal["error", "replace"] = "error"
    tokenizer: Literal["bytes", "bpe", "characters"] = "bytes"
    vocabulary: int = 8192
    split: Literal["documents", "tail"] = "documents"
    held_out: float = 0.05
    pack: bool = True
    sampling: Literal["epochs", "random"] = "epochs"
    store: str = ""

    @property
    def byte_ids(self) -> int:
        """Ids of `bytes`, the fewest of `bpe`: one for each byte, and one that ends documents if there are any."""
        return 256 + (self.split == "documents")

    def __post_init__(self) -> None:
        require(all(self.paths), "paths", self.paths, "no empty path")
        relative = bool(self.pattern) and not self.pattern.startswith(("/", "~"))
        require(relative, "pattern", self.pattern, "a glob inside a folder, such as **/*.txt")
        require(
            "\r" not in self.separator,
            "separator",
            self.separator,
            "text without a carriage return",
            hint="CRLF and CR are read as \\n before documents are cut: write \\n",
        )
        require(
            self.vocabulary >= SMALLEST_BPE_VOCABULARY,
            "vocabulary",
            self.vocabulary,
            f"at least {SMALLEST_BPE_VOCABULARY}",
        )
        require(0 <= self.held_out < 1, "held_out", self.held_out, "a share in [0, 1)")
        require(
            self.split != "tail" or not self.separator,
            "separator",
            self.separator,
            'no separator with split = "tail", where one file is one document',
            hint='use split = "documents", or leave the separator out',
        )
