"""Results as they come: one JSON line for each run, and runs that are known are not run again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")
Record = dict[str, Any]


class Records:
    """A file of results.

    Args:
        name: of the file.
        key: the fields that tell runs apart.
    """

    def __init__(self, name: str, key: tuple[str, ...]) -> None:
        self.path, self.key = RESULTS / f"{name}.jsonl", key

    def __iter__(self) -> Iterator[Record]:
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                yield json.loads(line)

    def has(self, **fields: object) -> bool:
        """Whether a run is known."""
        return any(all(one[name] == fields[name] for name in self.key) for one in self)

    def add(self, record: Mapping[str, object]) -> None:
        """Store a run, dated."""
        RESULTS.mkdir(exist_ok=True)
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({**record, "date": time.strftime("%Y-%m-%d")}) + "\n")
