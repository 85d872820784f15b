"""Progress of a run: bars with the time left on a terminal, lines elsewhere, JSON lines for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from energyml.train.folder import json_text, record_line
from energyml.train.settings import Progress
from energyml.train.stages import Stage


class Lines(Progress):
    """A line for each stage, epoch and note."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout

    def _say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def stage(self, stage: Stage, number: int, count: int) -> None:
        """Its number and title."""
        self._say(f"stage {stage.title}" + (f" ({number + 1} of {count})" if count > 1 else ""))

    def epoch(self, record: Mapping[str, Any]) -> None:
        """The record in a line."""
        self._say(f"  {record_line(record)}")

    def note(self, text: str) -> None:
        """The note, marked as one."""
        self._say(f"note: {text}")


class JsonLines(Progress):
    """One JSON object for each stage, epoch and note."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout

    def _say(self, kind: str, **facts: Any) -> None:
        print(json_text({"event": kind, **facts}), file=self.stream, flush=True)

    def stage(self, stage: Stage, number: int, count: int) -> None:
        """Its number and title."""
        self._say("stage", title=stage.title, number=number + 1, count=count)

    def epoch(self, record: Mapping[str, Any]) -> None:
        """The record as it is."""
        self._say("epoch", **record)

    def note(self, text: str) -> None:
        """The note."""
        self._say("note", text=text)


class Bars(Lines):
    """Lines, and below them a bar for the epoch that runs, with the time that it still takes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._began: float | None = None
        self._drawn = 0.0

    def _say(self, text: str) -> None:
        self.stream.write("\r\x1b[K")
        super()._say(text)

    def step(self, done: int, count: int, loss: float) -> None:
        """Redraw the bar, at most ten times a second."""
        now = time.monotonic()
        if self._began is None or done <= 1:
            self._began = now
        if now - self._drawn < 0.1 and done < count:
            return
        self._drawn = now
        left = (now - self._began) / max(1, done - 1) * (count - done) if done > 1 else 0.0
        full = round(24 * done / max(1, count))
        bar = "━" * full + "╺" * (24 - full)
        self.stream.write(f"\r\x1b[K  {bar} {done}/{count}, loss {loss:.4f}, {_time(left)} left")
        self.stream.flush()

    def epoch(self, record: Mapping[str, Any]) -> None:
        """The record replaces the bar."""
        self._began = None
        super().epoch(record)


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def display(*, quiet: bool = False, as_json: bool = False) -> Progress:
    """What fits where output goes."""
    if quiet:
        return Progress()
    if as_json:
        return JsonLines()
    return Bars() if sys.stdout.isatty() else Lines()


__all__ = ["Bars", "JsonLines", "Lines", "display"]
