"""No wrong number with a passing status: every backend, query, constraint and magnitude against exact arithmetic.

Each case goes through every backend, so that its answers are listed once.  `make test` runs a part; `make fuzz` gives
each backend at least 100 cases for each query, constraint and spectrum of scores, new ones each time.
"""

from __future__ import annotations

import os
from collections import defaultdict

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.contract.cases import Case
from tests.contract.settings import BACKENDS, ENGINES, FAMILIES, FUZZ, SAMPLERS, TABLES
from tests.fuzz.judge import Ledger, describe, judge
from tests.fuzz.spectra import SPECTRA, constraints, respread

torch.set_num_threads(1)

# ENERGYML_FUZZ_USING names the backend whose choices are judged; all of them where it is not set.
ALL = [
    using
    for using in (*BACKENDS, *ENGINES, *SAMPLERS.values())
    if using.partition("(")[0] == os.environ.get("ENERGYML_FUZZ_USING", using.partition("(")[0])
]
FRACTION = 0.01  # of right answers may carry a failing status
# What a case must have, in turn; cases without a demand are as the families make them.
DEMANDS = (None, None, None, "none", "labels known", "labels allowed", "-inf")
CASES = FUZZ // 20 if os.environ.get("ENERGYML_FUZZ") else 7  # for each spectrum


@st.composite
def drawn(draw: st.DrawFn, spectrum: str) -> Case:
    """A case of the contract suite with scores of a spectrum."""
    demand = draw(st.sampled_from(DEMANDS))
    seed, holes = draw(st.integers(0, 2**16)), demand == "-inf" or (demand != "none" and draw(st.integers(0, 3)) == 0)
    family = FAMILIES[draw(st.sampled_from([*TABLES, *TABLES, "wholes"]))]
    made = family.map(lambda case: respread(case, spectrum, seed, holes))
    return draw(made if demand in (None, "-inf") else made.filter(lambda case: demand in constraints(case)))


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_no_answer_is_wrong_without_a_word(spectrum: str) -> None:
    ledgers: dict[str, Ledger] = defaultdict(Ledger)

    # A failing case is told as it is: it would be made smaller by judging it hundreds of times.
    @settings(
        max_examples=CASES,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )
    @given(case=drawn(spectrum))
    def run(case: Case) -> None:
        for using in ALL:
            try:
                judge(case, using, spectrum, ledgers[using])
            except AssertionError as wrong:
                raise AssertionError(f"{using}: {wrong}\n{describe(case)}") from wrong

    run()
    if os.environ.get("ENERGYML_FUZZ"):
        for using, ledger in ledgers.items():
            print(f"\n{spectrum}: {using}\n{ledger}")
    for using, ledger in ledgers.items():
        right, alarms = ledger.total("right"), ledger.total("right, with a failing status")
        assert alarms <= max(1, FRACTION * (right + alarms)), f"{using}: right answers with failing statuses:\n{ledger}"
