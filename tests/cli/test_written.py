"""Files that are written whole or not at all."""

from __future__ import annotations

import gzip
import os
import stat
import threading
from pathlib import Path

import pytest

from energyml.driver import SpecFileError
from energyml.written import check_writable, write_lines, write_text


def test_checking_leaves_everything_as_it_is(tmp_path: Path) -> None:
    empty, new, link = tmp_path / "empty.csv", tmp_path / "new.csv", tmp_path / "link.csv"
    empty.touch()
    link.symlink_to(empty)
    for path in (empty, new, link):
        check_writable(path)
    assert empty.exists() and link.is_symlink() and not new.exists()
    with pytest.raises(SpecFileError, match="is a directory"):
        check_writable(tmp_path)
    with pytest.raises(SpecFileError, match="there is no folder"):
        check_writable(tmp_path / "missing" / "found.csv")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target.jsonl", tmp_path / "link.jsonl"
    target.write_text("before\n")
    link.symlink_to(target)
    assert write_lines(link, ["one", "two"]) == 2
    assert link.is_symlink() and target.read_text() == "one\ntwo\n"


def test_a_name_for_gzip_gets_gzip(tmp_path: Path) -> None:
    for name in ("one.jsonl.gz", "two.GZ"):
        assert write_lines(tmp_path / name, ["eins", "zwei: \u00f6"]) == 2
        assert gzip.decompress((tmp_path / name).read_bytes()).decode() == "eins\nzwei: \u00f6\n"
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "two.GZ").read_bytes()


@pytest.mark.parametrize("name", ["found.jsonl", "found.jsonl.gz"])
def test_lines_that_end_in_an_error_leave_what_was_there(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    out.write_text("before\n")

    def broken() -> object:
        yield "one"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lines(out, broken())  # type: ignore[arg-type]
    assert out.read_text() == "before\n" and list(tmp_path.iterdir()) == [out]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in this file system")
def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    assert write_lines(pipe, ["one", "two"]) == 2
    reader.join(timeout=10)
    assert read == ["one\ntwo\n"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_text_ends_with_one_line_break_and_keeps_odd_characters(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    for text, written in (("", ""), ("a", "a\n"), ("a\n\n", "a\n\n"), ("a\u2028b\x0cc\n", "a\u2028b\x0cc\n")):
        write_text(out, text)
        assert out.read_text(encoding="utf-8") == written
