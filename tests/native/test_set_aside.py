"""`ENERGYML_NATIVE=0` sets built kernels aside, and `doctor` says so."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ASK = """\
from energyml import doctor
from energyml import native
assert native.chains is native.trees is native.elimination is native.fields is native.gibbs is native.beams is None
assert not native.available
print(doctor.examine()[0])
"""


def test_kernels_are_set_aside():
    environment = {**os.environ, "ENERGYML_NATIVE": "0"}
    done = subprocess.run([sys.executable, "-c", ASK], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "set aside by ENERGYML_NATIVE=0: torch serves instead" in done.stdout
