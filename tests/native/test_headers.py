"""Every header of native code parses alone; the folders say what they hold; lines have at most 120 characters."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "energyml" / "native"
HEADERS = sorted(NATIVE.glob("*/*.h"))
SOURCES = sorted([*HEADERS, *NATIVE.glob("*/*.cpp")])
COMPILER = shutil.which("c++") or shutil.which("g++")


def named(path: Path) -> str:
    return path.relative_to(NATIVE).as_posix()


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_every_header_parses_alone(tmp_path: Path) -> None:
    assert COMPILER is not None
    flags = ["-fsyntax-only", "-std=c++17", "-Wno-psabi", "-fopenmp", f"-I{sysconfig.get_path('include')}"]
    failed = {}
    for header in HEADERS:
        done = subprocess.run([COMPILER, *flags, "-x", "c++", str(header)], capture_output=True, text=True)
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        if done.returncode:
            failed[named(header)] = errors
    assert not failed


def test_every_header_is_read_once() -> None:
    assert [named(one) for one in HEADERS if "#pragma once" not in one.read_text()] == []


def test_lines_are_short() -> None:
    found = {named(one): len(line) for one in SOURCES for line in one.read_text().splitlines() if len(line) > 120}
    assert found == {}


def test_every_folder_has_a_readme() -> None:
    folders = {one.parent for one in SOURCES}
    assert [one.name for one in folders if not (one / "README.md").exists()] == []
    assert {
        one.name: count for one in folders if (count := len((one / "README.md").read_text().splitlines())) > 25
    } == {}
