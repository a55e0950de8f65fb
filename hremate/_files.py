"""Bytes in and out: gzip by content, text that is checked, files that are replaced as a whole."""

from __future__ import annotations

import gzip
import io
import os
import secrets
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from hremate.errors import FormatError, HremateError

Source = str | os.PathLike[str]

#: A file is looked at this far before it is read as a whole, so that garbage is refused early.
HEAD_BYTES = 1 << 16
#: Longest text (uncompressed) that is read; a graph of a million ops has about 0.3 GB.
MAX_BYTES = 1 << 32
_GZIP_MAGIC = b"\x1f\x8b"


@contextmanager
def named(path: Source) -> Iterator[None]:
    """Put the name of the file in front of every error of hremate; the class stays."""
    try:
        yield
    except HremateError as error:
        raise type(error)(f"{os.fspath(path)}: {error}") from error.__cause__


def read_text(path: Source, check: Callable[[str], None]) -> str:
    """The text of a file, plain or gzip (told by its first bytes).

    `check` sees the beginning of the text (at most 64 KiB) before the rest is read, and raises
    FormatError when the file is not worth reading.

    Raises
    ------
    FormatError
        The file cannot be opened or read, is empty, binary, not UTF-8, a broken gzip, or larger than
        4 GiB uncompressed.
    """
    try:
        with open(path, "rb") as raw:
            start = raw.read(len(_GZIP_MAGIC))
            stream: _Rejoined | gzip.GzipFile = _Rejoined(start, raw)  # pipes cannot seek back
            if start == _GZIP_MAGIC:
                stream = gzip.GzipFile(fileobj=stream, mode="rb")
            head = stream.read(HEAD_BYTES)
            _check_head(head)
            check(head.decode("utf-8-sig", errors="replace"))
            data = head + stream.read(MAX_BYTES - len(head) + 1)
    except EOFError:
        raise FormatError("the gzip data ends too early; the file is truncated") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise FormatError(f"the gzip data is damaged ({error})") from None
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a NUL in the path
        raise FormatError(f"cannot be read: {error}") from None
    if len(data) > MAX_BYTES:
        raise FormatError(f"longer than {MAX_BYTES} bytes uncompressed")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(f"line {line}: not UTF-8 text (byte 0x{data[error.start]:02x})") from None


def _check_head(head: bytes) -> None:
    """Refuse what cannot be text: nothing at all, or control characters."""
    if not head.strip():
        raise FormatError("the file is empty" if len(head) < HEAD_BYTES else "the file starts with blanks")
    control = head.translate(None, delete=_TEXT_BYTES)
    if control:
        raise FormatError(f"not a text file (it contains the byte 0x{control[0]:02x})")


_TEXT_BYTES = bytes(b for b in range(256) if b >= 32 or b in b"\t\n\r\f\v")


class _Rejoined(io.RawIOBase):
    """A binary stream whose first bytes were already read."""

    def __init__(self, start: bytes, rest: IO[bytes]) -> None:
        self._start = start
        self._rest = rest

    def read(self, size: int = -1) -> bytes:
        start, self._start = self._start, b""
        if size < 0:
            return start + self._rest.read()
        if len(start) > size:
            start, self._start = start[:size], start[size:]
        return start + self._rest.read(size - len(start))

    def readable(self) -> bool:
        return True


def write_text(path: Source, text: str) -> None:
    """Write `text` (UTF-8) as a whole or not at all; gzip when the name ends in `.gz`.

    The text goes to a temporary file beside the target, which then replaces the target in one step. The
    target keeps its permissions; a link keeps pointing to it; a device or pipe is written directly. Equal
    text gives equal bytes.

    Raises
    ------
    OSError
        The file cannot be written; nothing is left behind.
    """
    target = Path(os.path.realpath(path))
    # Names may hold surrogates that stand alone, which UTF-8 lacks.
    data = text.encode("utf-8", errors="backslashreplace")
    if os.fspath(path).endswith(".gz"):
        data = gzip.compress(data, compresslevel=6, mtime=0)
    try:
        mode: int | None = target.stat().st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and not stat.S_ISREG(mode):
        with open(target, "wb") as special:
            special.write(data)
        return
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    # A new file gets the permissions that the umask of the process gives it.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb") as file:
            if mode is not None:
                os.chmod(temporary, stat.S_IMODE(mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
