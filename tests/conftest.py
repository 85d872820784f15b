"""Settings that all tests share.

Hypothesis draws the same cases in every run, so that a failure is one for everybody; ENERGYML_FUZZ asks for more and
new ones.
"""

import os

# Tests run side by side, one for each core; threads inside them would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

FUZZ = os.environ.get("ENERGYML_FUZZ")

settings.register_profile(
    "energyml", deadline=None, derandomize=FUZZ is None, suppress_health_check=list(HealthCheck), print_blob=True
)
settings.load_profile("energyml")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes are named by their number: gzip puts the time into them, and parallel workers must agree on every name."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None
