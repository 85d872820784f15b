"""Chains by every instruction set that the kernels are compiled for: the same tests, in processes that use no other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from energyml.backends import native

ROOT = Path(__file__).resolve().parents[2]
ASK = "from energyml.backends.native import kernels; print(kernels.instructions())"
SETS = {"v3": "x86-64-v3", "plain": "plain"}
TESTED = ("test_chain.py", "test_tables.py", "test_abreast.py", "test_likelihood.py", "test_masks.py")

pytestmark = pytest.mark.skipif(not native.available, reason="the native kernels are not built, or set aside")


def run(said: str, *arguments: str) -> str:
    environment = {**os.environ, "ENERGYML_NATIVE": said, "PYTEST_ADDOPTS": ""}
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("said", SETS)
def test_older_instruction_sets(said: str) -> None:
    chosen = run(said, "-c", ASK).strip()
    assert chosen in (SETS[said], "plain")  # a machine may not have the wider one
    files = [f"tests/native/{name}" for name in TESTED]
    assert " passed" in run(said, "-m", "pytest", *files, "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist")
