"""Running a page of the documentation: its fenced blocks are executed, and what they print is written into it.

`energyml.docgen` says what each kind of block means.
"""

from __future__ import annotations

import io
import math
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from energyml import errors
from energyml.diagnostics import EnergyError, render_all
from energyml.driver import check_text

WIDTH = "80"  # of a terminal, for the text of `--help`


class PageError(EnergyError):
    """A block of a page that does not do what the page says."""


def shows(text: str, code: str) -> bool:
    """Whether a text is about an error: it has its code, or its message with some facts."""
    kind = errors.CATALOGUE.get(code)
    wording = ".+".join(map(re.escape, re.split(r"\{\w+\}", kind.message))) if kind else "$^"
    return f"[{code}]" in text or re.search(wording, text) is not None


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the flags after it, its lines, and the line where it starts."""

    fence: str
    language: str
    flags: dict[str, str]
    lines: list[str]
    number: int

    def text(self) -> str:
        """What is inside, with a final line break."""
        return "".join(f"{line}\n" for line in self.lines)


def pieces(text: str) -> Iterator[str | Block]:
    """The lines of a page, with every fenced block as one piece."""
    opened: Block | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if opened is None and re.match(r"```\w", line):
            language, *words = line[3:].split()
            flags = {key: value for key, _, value in (word.partition("=") for word in words)}
            opened = Block(line, language, flags, [], number)
        elif opened is not None and line == "```":
            yield opened
            opened = None
        elif opened is not None:
            opened.lines.append(line)
        else:
            yield line
    if opened is not None:
        raise PageError(f"the block of line {opened.number} is never closed")


@dataclass
class Page:
    """One page while it is run, from top to bottom."""

    name: str
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    printed: str = ""
    parts: dict[str, str] = field(default_factory=dict)

    def rewritten(self, text: str) -> str:
        """Run the page; returns it with the outputs that it shows written anew."""
        lines: list[str] = []
        for piece in pieces(text):
            if isinstance(piece, str):
                lines.append(piece)
                continue
            try:
                shown = self._block(piece)
            except Exception as problem:
                raise PageError(f"{self.name}:{piece.number}: {type(problem).__name__}: {problem}") from problem
            lines += [piece.fence, *shown, "```"]
        for name, spec in self.parts.items():
            self._check(spec, f"{self.name} part={name}", {})
        return "\n".join(lines) + "\n"

    def _block(self, block: Block) -> list[str]:
        if "file" in block.flags:
            path = Path(block.flags["file"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text(), encoding="utf-8")
        if block.language == "energy":
            self._energy(block)
        elif block.language == "python" and "file" not in block.flags:
            self._python(block)
        elif block.language == "console":
            return self._console(block)
        elif block.language == "text" and "output" in block.flags:
            shown, self.printed = self.printed.splitlines(), ""
            return block.lines if "near" in block.flags and close(block.lines, shown) else shown
        return block.lines

    def _energy(self, block: Block) -> None:
        part = block.flags.get("part")
        if part is not None:
            self.parts[part] = self.parts.get(part, "") + block.text()
        else:
            self._check(block.text(), f"{self.name}:{block.number}", block.flags)

    def _check(self, spec: str, name: str, flags: dict[str, str]) -> None:
        report = check_text(spec, name)
        codes = {found.code for found in report.errors}
        if "bad" in flags:
            if not codes or (flags["bad"] and flags["bad"] not in codes):
                raise PageError(f"expected {flags['bad'] or 'an error'}, found {', '.join(codes) or 'none'}")
        elif codes:
            raise PageError(str(render_all(report.source, report.ordered())))

    def _python(self, block: Block) -> None:
        out = io.StringIO()
        code = compile("\n" * block.number + block.text(), self.name, "exec")
        expected = block.flags.get("fails")
        try:
            with redirect_stdout(out):
                exec(code, self.names)
        except EnergyError as problem:
            if expected is None or not shows(str(problem), expected):
                raise
        else:
            if expected is not None:
                raise PageError(f"expected {expected}, but nothing was raised")
        self.printed += out.getvalue()

    def _console(self, block: Block) -> list[str]:
        shown: list[str] = []
        commands = [line.removeprefix("$ ") for line in block.lines if line.startswith("$ ")]
        for command in commands:
            words = shlex.split(command)
            if words[0] != "energyml":
                raise PageError(f"`{words[0]}` is not run here; use a `sh` block")
            code, out = run_command(words)
            if code != int(block.flags.get("exit", "0")):
                raise PageError(f"`{command}` ended with {code}:\n{out}")
            lines = [line.rstrip() for line in out.rstrip("\n").splitlines()]
            most = int(block.flags.get("first", len(lines)))
            shown += [f"$ {command}", *lines[:most], *(["..."] if len(lines) > most else [])]
        near = "near" in block.flags and close(block.lines, shown)
        return shown if "exact" in block.flags and not near else block.lines


_DECIMAL = re.compile(r"(-?\d+\.\d+(?:e[+-]?\d+)?)")


def close(old: list[str], new: list[str]) -> bool:
    """Whether two outputs are equal but for small differences in their decimal numbers."""
    before, after = (_DECIMAL.split("\n".join(lines)) for lines in (old, new))
    if before[::2] != after[::2]:
        return False
    numbers = zip(before[1::2], after[1::2], strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=1e-3, abs_tol=1e-3) for a, b in numbers)


def run_command(words: list[str]) -> tuple[int, str]:
    """Run `energyml ...` in this process; returns its exit code and all that it prints."""
    from energyml.cli import main

    out = io.StringIO()
    before = sys.argv, os.environ.get("COLUMNS")
    sys.argv, os.environ["COLUMNS"] = words, WIDTH
    try:
        with redirect_stdout(out), redirect_stderr(out):
            main()
    except SystemExit as stop:
        return int(stop.code or 0), out.getvalue()
    finally:
        sys.argv = before[0]
        os.environ.pop("COLUMNS")
        if before[1] is not None:
            os.environ["COLUMNS"] = before[1]
