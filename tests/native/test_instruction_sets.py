"""Every part of native code by every instruction set that it is compiled for, in processes that use no other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from energyml import native

ROOT = Path(__file__).resolve().parents[2]
ASK = "from energyml import native; print(*native.loaded.values())"
SETS = ("v3", "plain")
TESTED = {
    "v3": ("native/test_chain.py", "native/test_tables.py", "native/test_interleaved.py", "native/test_products.py"),
    "plain": (
        "native/test_chain.py", "native/test_tables.py", "native/test_interleaved.py", "native/test_likelihood.py",
        "native/test_masks.py", "native/test_products.py", "native/test_forest.py", "native/test_stencil.py",
        "mcmc/test_native.py::test_known_numbers", "beam/test_walks.py::test_single_precision_is_close",
    ),
}  # fmt: skip

pytestmark = pytest.mark.skipif(native.baseline is None, reason="native code is not built, or set aside")


def run(said: str, *arguments: str) -> str:
    environment = {**os.environ, "ENERGYML_NATIVE": said, "PYTEST_ADDOPTS": ""}
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("said", SETS)
def test_all_parts_use_an_instruction_set(said: str) -> None:
    chosen = run(said, "-c", ASK).split()
    assert len(chosen) == len(native.PARTS)
    assert set(chosen) <= {said, "plain"}  # a machine may not have the wider one


@pytest.mark.parametrize("said", SETS)
def test_older_instruction_sets(said: str) -> None:
    files = [f"tests/{name}" for name in TESTED[said]]
    assert " passed" in run(said, "-m", "pytest", *files, "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist")


def test_other_words_are_refused() -> None:
    environment = {**os.environ, "ENERGYML_NATIVE": "avx"}
    done = subprocess.run([sys.executable, "-c", ASK], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "ENERGYML_NATIVE takes `v4`, `v3`, `plain` or `0`, found `avx`" in done.stderr
