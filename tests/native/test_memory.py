"""A lack of memory at any allocation of any native function is an error in words, and never the end of the process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from energyml import native

HERE = Path(__file__).resolve().parent
COMPILER = shutil.which("c++") or shutil.which("g++")


@pytest.mark.skipif(native.baseline is None, reason="native code is not built, or set aside")
@pytest.mark.skipif(COMPILER is None or not sys.platform.startswith("linux"), reason="a library is preloaded")
@pytest.mark.skipif("ASAN_OPTIONS" in os.environ, reason="the sanitizer has an allocator of its own")
def test_each_allocation_may_fail(tmp_path: Path) -> None:
    assert COMPILER is not None
    library = tmp_path / "failing_memory.so"
    source = str(HERE / "failing_memory.cpp")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", str(library), source, "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.native.scenarios_of_memory"], cwd=HERE.parents[1],
        env={**os.environ, "LD_PRELOAD": str(library)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    failures, rest = done.stdout.splitlines()
    assert int(failures.split()[0]) > 1000
    assert rest == "not called:"
