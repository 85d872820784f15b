"""Files that are written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from energyml.driver import SpecFileError


def write_lines(out: Path, lines: Iterable[str]) -> int:
    """Write lines as they come, under another name until all are there; returns how many there were."""
    count = 0
    temporary = out.with_name(f".{out.name}.partial")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            for line in lines:
                stream.write(f"{line}\n")
                count += 1
        temporary.replace(out)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        raise SpecFileError(f"{out}: {(problem.strerror or str(problem)).lower()}") from problem
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return count


__all__ = ["write_lines"]
