"""Settings that all tests share.

Hypothesis draws the same cases in every run, so that a failure is one for everybody; ENERGYML_FUZZ asks for more and
new ones.
"""

import os

from hypothesis import HealthCheck, settings

FUZZ = os.environ.get("ENERGYML_FUZZ")

settings.register_profile(
    "energyml", deadline=None, derandomize=FUZZ is None, suppress_health_check=list(HealthCheck), print_blob=True
)
settings.load_profile("energyml")
