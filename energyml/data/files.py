"""Where data files lie, and their lines: UTF-8 text, plain or gzip, told apart by content.

Paths in a spec are relative to a root: a folder, or files in memory (for notebooks and tests). A file `x` that does not
exist is looked for as `x.gz`. Errors name files as the root shows them, with the line. Files are read from front to
back, so that pipes will do.
"""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias

from energyml.data.problems import BadData

GZIP_MAGIC = b"\x1f\x8b"
GZIP_ENDING = ".gz"
BYTE_ORDER_MARK = "\ufeff"
STANDARD_INPUT = "-"


class Line(NamedTuple):
    """One line of a file, without its line end; counted from 1."""

    file: str
    number: int
    text: str

    @property
    def place(self) -> str:
        """`file:line`, as errors say it."""
        return f"{self.file}:{self.number}"


class Root(ABC):
    """Where relative paths start.

    Attributes:
        remedy: what helps where a file cannot be read; the catalogue's words, which speak of `data` lines, when `None`.
    """

    remedy: str | None = None

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""

    @abstractmethod
    def is_folder(self, name: str) -> bool:
        """Whether there is a folder of that name."""

    @abstractmethod
    def open(self, name: str) -> io.BufferedReader:
        """Open a file; raises `OSError`."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder, sorted; raises `OSError`."""

    @abstractmethod
    def shown(self, name: str) -> str:
        """The file in a message."""

    def find(self, name: str) -> str:
        """The name under which a file is stored, perhaps with `.gz` behind it."""
        for candidate in (name, name + GZIP_ENDING):
            if self.exists(candidate):
                return candidate
        if self.is_folder(name):
            remedy = "name one of the files in it"
            raise BadData("E0801", path=self.shown(name), problem="it is a folder, not a file", help=remedy)
        raise BadData("E0801", path=self.shown(name), problem="there is no such file", help=self.remedy)

    def binary(self, name: str) -> io.BufferedReader:
        """Open a file that must exist."""
        try:
            return self.open(name)
        except OSError as problem:
            reason = (problem.strerror or str(problem)).lower()
            raise BadData("E0801", path=self.shown(name), problem=reason, help=self.remedy) from problem

    def files_in(self, folder: str) -> list[str]:
        """The names of the files in a folder that must exist."""
        try:
            return self.names(folder)
        except OSError as problem:
            reason = (problem.strerror or str(problem)).lower()
            raise BadData("E0801", path=self.shown(folder), problem=reason, help=self.remedy) from problem


class Folder(Root):
    """A folder of the file system."""

    def __init__(self, path: str | os.PathLike[str] = ".") -> None:
        self.path = Path(path).expanduser()

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name, or a pipe or a device."""
        place = self.path / name
        try:
            return place.exists() and not place.is_dir()
        except OSError:  # a name that no file can have, such as one that is too long
            return False

    def is_folder(self, name: str) -> bool:
        """Whether there is a folder of that name."""
        try:
            return (self.path / name).is_dir()
        except OSError:
            return False

    def open(self, name: str) -> io.BufferedReader:
        """Open a file."""
        return (self.path / name).open("rb")

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder."""
        return sorted(one.name for one in (self.path / folder).iterdir() if one.is_file())

    def shown(self, name: str) -> str:
        """The path with the root in front."""
        return str(self.path / name)


class InMemory(Root):
    """Files in memory: text or bytes by path."""

    def __init__(self, contents: Mapping[str, str | bytes]) -> None:
        self.contents = {str(PurePosixPath(name)): one for name, one in contents.items()}

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return str(PurePosixPath(name)) in self.contents

    def is_folder(self, name: str) -> bool:
        """Whether files lie in a folder of that name."""
        return any(PurePosixPath(name) in PurePosixPath(one).parents for one in self.contents)

    def open(self, name: str) -> io.BufferedReader:
        """Open a file."""
        found = self.contents.get(str(PurePosixPath(name)))
        if found is None:
            raise FileNotFoundError(2, "no such file")
        return io.BufferedReader(io.BytesIO(found.encode("utf-8") if isinstance(found, str) else found))

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder."""
        inside = sorted(path.name for path in map(PurePosixPath, self.contents) if path.parent == PurePosixPath(folder))
        if not inside:
            raise FileNotFoundError(2, "no such folder")
        return inside

    def shown(self, name: str) -> str:
        """The path as it is."""
        return name


class WithStandardInput(Root):
    """Another root in which `-` is standard input; a file of that name is `./-`."""

    remedy = "look at the name: `x` is also looked for as `x.gz`, and `-` reads standard input"

    def __init__(self, files: Root) -> None:
        self.files = files

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return name == STANDARD_INPUT or self.files.exists(name)

    def is_folder(self, name: str) -> bool:
        """Whether there is a folder of that name."""
        return name != STANDARD_INPUT and self.files.is_folder(name)

    def open(self, name: str) -> io.BufferedReader:
        """Open a file; standard input stays open when the reader of it is closed."""
        if name != STANDARD_INPUT:
            return self.files.open(name)
        if sys.stdin is None:
            raise FileNotFoundError(2, "there is no standard input")
        return open(sys.stdin.fileno(), "rb", closefd=False)

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder."""
        return self.files.names(folder)

    def shown(self, name: str) -> str:
        """`<stdin>`, or the file."""
        return "<stdin>" if name == STANDARD_INPUT else self.files.shown(name)


RootLike: TypeAlias = Root | str | os.PathLike[str] | Mapping[str, str | bytes]


def as_root(given: RootLike) -> Root:
    """A folder from its path, or files in memory from a mapping."""
    if isinstance(given, Root):
        return given
    return InMemory(given) if isinstance(given, Mapping) else Folder(given)


def lines(root: Root, name: str) -> Iterator[Line]:
    """The lines of a text file, plain or gzip, one at a time: memory does not grow with the file."""
    stored = root.find(name)
    shown = root.shown(stored)
    with root.binary(stored) as raw:
        if not raw.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC):
            yield from _decoded(raw, shown)
            return
        number = 0
        try:
            with gzip.GzipFile(fileobj=raw) as unpacked:
                for line in _decoded(unpacked, shown):
                    number = line.number
                    yield line
        except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
            cut = isinstance(problem, EOFError)
            what = "ends too early" if cut else f"is damaged ({problem})"
            raise BadData("E0802", place=f"{shown}:{number + 1}", problem=what) from problem


def _decoded(stream: io.BufferedReader | gzip.GzipFile, shown: str) -> Iterator[Line]:
    for number, raw in enumerate(stream, start=1):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as problem:
            place, value = f"{shown}:{number}", f"{raw[problem.start]:#04x}"
            raise BadData("E0803", place=place, byte=problem.start + 1, value=value) from problem
        if number == 1:
            text = text.removeprefix(BYTE_ORDER_MARK)
        yield Line(shown, number, text.rstrip("\r\n"))
