"""From bytes on disk to text: one stated policy for encodings, byte order marks and line ends.

- Text is UTF-8. A UTF-8 byte order mark at the start of a file is dropped.
- CRLF and CR become \\n. Nothing else ends a line: U+2028, U+2029, U+0085, VT, FF and FS stay in the text.
- A byte that is not UTF-8 is an error that names the file and the offset, or, when asked for, each such byte becomes
  one U+FFFD and is counted. Line ends are never swallowed by that.
- A file that is compressed, UTF-16 or otherwise binary is an error in both cases: replacing its bytes would train on
  noise.

Files are read in blocks, so a file may be larger than memory; where a block ends changes nothing.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from brim.errors import DataError

BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_SIGNATURES = (
    (b"\x1f\x8b", "gzip data", "decompress it first: gunzip --keep FILE"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data", "decompress it first: unzstd FILE"),
    (b"\xfd7zXZ\x00", "xz data", "decompress it first: unxz --keep FILE"),
    (b"PK\x03\x04", "a zip archive", "unpack it first: unzip FILE"),
    (b"\xff\xfe\x00\x00", "UTF-32 text", "convert it: iconv -f UTF-32 -t UTF-8 FILE"),
    (b"\x00\x00\xfe\xff", "UTF-32 text", "convert it: iconv -f UTF-32 -t UTF-8 FILE"),
    (b"\xff\xfe", "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8 FILE"),
    (b"\xfe\xff", "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8 FILE"),
)
_BZIP2 = re.compile(rb"BZh[1-9]1AY&SY")


class TextReader:
    """The text of one file, block by block, and what was met on the way.

    Args:
        path: the file.
        bad_bytes: `error`, or `replace` to turn each byte that is not UTF-8 into one U+FFFD.
        block_bytes: how much is read at a time.

    Attributes, complete when the iteration is:
        size_bytes: bytes read.
        replaced_bytes: bytes that were not UTF-8 and were replaced.
        sha256: hash of the file's bytes, in hexadecimal.
    """

    def __init__(
        self, path: Path, *, bad_bytes: Literal["error", "replace"] = "error", block_bytes: int = BLOCK_BYTES
    ) -> None:
        self.path = path
        self.size_bytes = 0
        self.replaced_bytes = 0
        self._block_bytes = block_bytes
        self._hash = hashlib.sha256()
        # Python marks each bad byte by a lone surrogate, which valid UTF-8 cannot hold: that counts bytes exactly.
        self._utf8 = codecs.getincrementaldecoder("utf-8")("strict" if bad_bytes == "error" else "surrogateescape")
        self._newlines = io.IncrementalNewlineDecoder(None, translate=True)

    @property
    def sha256(self) -> str:
        """Hash of what was read so far, in hexadecimal."""
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[str]:
        """Yield the text.

        Raises:
            DataError: if the file cannot be read, is binary, or holds bytes that are not UTF-8.
        """
        try:
            with self.path.open("rb") as file:
                yield from self._read(file)
        except OSError as error:
            hint = f"check its permissions: ls -l {str(self.path)!r}" if isinstance(error, PermissionError) else ""
            raise DataError(f"cannot read {self.path}: {error.strerror}", hint=hint) from None

    def _read(self, file: BinaryIO) -> Iterator[str]:
        head = file.read(_HEAD_BYTES)
        self._refuse_signature(head)
        mark = _BYTE_ORDER_MARK if head.startswith(_BYTE_ORDER_MARK) else b""
        self._count(mark)
        block = head[len(mark) :]
        while block:
            yield self._decode(block)
            block = file.read(self._block_bytes)
        yield self._decode(b"", final=True)

    def _decode(self, block: bytes, *, final: bool = False) -> str:
        waiting = len(self._utf8.getstate()[0])
        start = self.size_bytes - waiting
        self._refuse_zero(block)
        try:
            text = self._utf8.decode(block, final)
        except UnicodeDecodeError as error:
            raise self._not_utf8(start + error.start, error.object[error.start]) from None
        self._count(block)
        if not text.isascii():
            text, replaced = _ESCAPED_BYTE.subn("\ufffd", text)
            self.replaced_bytes += replaced
        return self._newlines.decode(text, final)

    def _count(self, block: bytes) -> None:
        self._hash.update(block)
        self.size_bytes += len(block)

    def _refuse_signature(self, head: bytes) -> None:
        for signature, kind, remedy in _SIGNATURES:
            if head.startswith(signature):
                shown = head[: len(signature)].hex(" ").upper()
                raise DataError(f"{self.path} is {kind} (it starts with {shown}); expected UTF-8 text", hint=remedy)
        if _BZIP2.match(head):
            raise DataError(f"{self.path} is bzip2 data; expected UTF-8 text", hint="decompress it first: bunzip2 FILE")

    def _refuse_zero(self, block: bytes) -> None:
        zero = block.find(0)
        if zero >= 0:
            raise DataError(
                f"{self.path} looks binary: byte {self.size_bytes + zero} is 0; expected UTF-8 text",
                hint="leave it out with `data.pattern`; if it is UTF-16 text: iconv -f UTF-16LE -t UTF-8 FILE",
            )

    def _not_utf8(self, offset: int, byte: int) -> DataError:
        meant = bytes([byte]).decode("cp1252", errors="ignore")
        guess = f"in Windows-1252 (cp1252) it is `{meant}`: iconv -f cp1252 -t UTF-8 FILE; " if meant else ""
        return DataError(
            f"{self.path} is not UTF-8: byte {offset} is 0x{byte:02X}",
            hint=f'{guess}or set data.bad_bytes = "replace"',
        )
