"""Files that are written whole or not at all, packed where their names say so."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from energyml.driver import SpecFileError

GZIP_ENDING = ".gz"


def write_lines(out: Path, lines: Iterable[str]) -> int:
    """Write lines as they come, under another name until all are there; returns how many there were.

    A name that ends in `.gz` gets a gzip file, the same one for the same lines.  A link stays a link.  Devices and
    pipes (`/dev/null`) are written to: a file of that name would take their place.
    """
    if _special(out):
        return _write_special(out, lines)
    count = 0
    place = out.resolve()
    temporary = place.with_name(f".{place.name}.partial")
    try:
        with _opened(temporary, out) as stream:
            for line in lines:
                stream.write(f"{line}\n")
                count += 1
        temporary.replace(place)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        raise SpecFileError(f"{out}: {(problem.strerror or str(problem)).lower()}") from problem
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return count


def write_text(out: Path, text: str) -> None:
    """Write a text as `write_lines` writes lines; it ends with a line break."""
    lines = text.split("\n")
    write_lines(out, lines if lines[-1] else lines[:-1])


def check_writable(out: Path) -> None:
    """Refuse a path that cannot be written, before a long computation; what is there stays as it is."""
    if out.is_dir():
        raise SpecFileError(f"{out}: is a directory")
    if _special(out):
        return
    if not out.parent.is_dir():
        raise SpecFileError(f"{out}: there is no folder {out.parent}; make it, or choose another name")
    place = out.resolve()
    new = not place.exists()
    try:
        with place.open("a", encoding="utf-8"):
            pass
        if new:
            place.unlink()
    except OSError as problem:
        raise SpecFileError(f"{out}: {(problem.strerror or str(problem)).lower()}") from problem


def _special(out: Path) -> bool:
    """Whether the path is a device, a pipe or the like."""
    return out.exists() and not out.is_file() and not out.is_dir()


@contextmanager
def _opened(place: Path, named: Path) -> Iterator[TextIO]:
    """A text file to write, packed if the name that people gave it ends in `.gz`."""
    if named.suffix.lower() != GZIP_ENDING:
        with place.open("w", encoding="utf-8") as stream:
            yield stream
        return
    # neither the time nor the temporary name goes into the file
    with (
        place.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as stream,
    ):
        yield stream


def _write_special(out: Path, lines: Iterable[str]) -> int:
    count = 0
    try:
        with _opened(out, out) as stream:
            for line in lines:
                stream.write(f"{line}\n")
                count += 1
    except OSError as problem:
        raise SpecFileError(f"{out}: {(problem.strerror or str(problem)).lower()}") from problem
    return count


__all__ = ["check_writable", "write_lines"]
