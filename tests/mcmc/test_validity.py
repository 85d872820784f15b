"""Errors that hold: intervals of independent runs contain the truth, are not much too wide, and wrong runs say so.

Runs are the examples of one batch: their chains draw independently.  ENERGYML_VALIDITY=1 makes 200 runs of every
sampler on every model, and prints a table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.diagnostics import QueryRefused
from energyml.energy_model import BackendRefused
from energyml.inference.trace import Trace
from tests.mcmc.models import CHAIN, GLOBAL, GRID
from tests.mcmc.test_balance import LONG

torch.set_num_threads(1)
RUNS = 200 if LONG else 24
# Of 95% intervals, the least share that contains the truth; of a few runs chance takes some more.
LEAST = 0.9 if LONG else 0.8
# A standard error may be so many times the true deviation.
WIDEST = 3.0
# The share of wrong runs that may say nothing: all chains of a run may cross to the same mode before they are kept.
SILENT = 0.02 if LONG else 0.05


def grid(coupling: float) -> str:
    return GRID.replace("constant(0.7)", f"constant({coupling})").replace("H = 2, W = 2", "H = 3, W = 3")


LONGER = CHAIN.replace("T = 3", "T = 6")
# By name: the spec, and the scale of weights and inputs.
MODELS = {
    "weak": (grid(0.5), 1.0),
    "strong": (grid(1.5), 0.5),
    "bimodal": (grid(2.5), 0.0),
    "frozen": (grid(4.0), 0.3),
    "chain": (LONGER, 1.0),
    "peaked": (LONGER, 5.0),
    "holes": (LONGER + "forbid [t in T-1] y[t] = B and y[t+1] = B\nforbid [t in T-1] y[t] = A and y[t+1] = C\n", 1.0),
    "all different": (CHAIN + "forbid [t in T-1] y[t] = y[t+1]\nforbid y[0] = y[2]\n", 0.5),
    "black box": (GLOBAL + "input u : real[T, Tag]\nfactor one [t in T] (y[t]) = u[t]\n", 1.0),
}
SWEEPS = "sweeps: 300, burn_in: 50"
SAMPLERS = [
    f"gibbs({SWEEPS})", f"gibbs({SWEEPS}, block: colour)", f"gibbs({SWEEPS}, block: chains)", f"metropolis({SWEEPS})",
    f"gradient_gibbs({SWEEPS})", f"langevin({SWEEPS})", f"swendsen_wang({SWEEPS})", f"tempering({SWEEPS})",
    "ais", "ais(steps: 30, chains: 16)", "bridge(sweeps: 200, burn_in: 20)",
    "bridge(sweeps: 60, burn_in: 10, rungs: 4)",
]  # fmt: skip
# What a plain run of the tests looks at.
SHORT = [
    ("weak", f"gibbs({SWEEPS})"), ("bimodal", f"gibbs({SWEEPS})"), ("bimodal", f"swendsen_wang({SWEEPS})"),
    ("frozen", f"gibbs({SWEEPS}, block: colour)"), ("holes", f"gibbs({SWEEPS})"), ("all different", f"gibbs({SWEEPS})"),
    ("peaked", f"gibbs({SWEEPS}, block: chains)"), ("weak", f"langevin({SWEEPS})"),
    ("all different", "bridge(sweeps: 60, burn_in: 10, rungs: 4)"),
    *((model, using) for model in ("strong", "peaked", "holes")
      for using in ("ais(steps: 30, chains: 16)", "bridge(sweeps: 60, burn_in: 10, rungs: 4)")),
]  # fmt: skip
# Samplers that cross every model in these few sweeps: their right answers are quiet.
CONVERGED = {
    ("weak", "gibbs"), ("weak", "metropolis"), ("weak", "swendsen_wang"), ("weak", "tempering"), ("weak", "ais"),
    ("chain", "gibbs"), ("chain", "metropolis"), ("chain", "tempering"), ("chain", "ais"), ("strong", "swendsen_wang"),
    ("bimodal", "swendsen_wang"), ("frozen", "swendsen_wang"), ("weak", "gradient_gibbs"), ("chain", "gradient_gibbs"),
    ("black box", "gibbs"), ("black box", "tempering"), ("black box", "ais"), ("strong", "ais"), ("bimodal", "ais"),
    ("weak", "bridge"), ("chain", "bridge"), ("black box", "bridge"),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Runs:
    """What independent runs gave.

    Attributes:
        deviation: [R, n] from the truth.
        error: [R, n]: the standard errors.
        quiet: [R]: whether the status of a run says nothing.
        useless: [R]: whether it fails.
    """

    deviation: Tensor
    error: Tensor
    quiet: Tensor
    useless: Tensor

    @property
    def covered(self) -> Tensor:
        """[R, n]: whether 95% intervals contain the truth."""
        return (self.deviation.abs() <= 1.96 * self.error + 1e-9).double()

    @property
    def wrong(self) -> Tensor:
        """[R]: whether a run is far from the truth, by its own errors and by any measure."""
        far = (self.deviation.abs() > 4 * self.error) & (self.deviation.abs() > 0.1)
        return far.any(1)

    def width(self, which: Tensor) -> float:
        """The standard error over the true deviation, of some runs."""
        return float((self.error[which].square().mean() / self.deviation[which].square().mean()).sqrt())


def made(name: str) -> tuple[em.EnergyModel, dict[str, Tensor]]:
    """A model with its inputs, of one example."""
    text, scale = MODELS[name]
    model = em.compile(text, seed=3).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for one, parameter in model.named_parameters():
            if one != "J":
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    (output,) = model.graph.discrete
    sizes = [int(model.graph.dims[dim].size or 0) for dim in output.dims]
    count = len(model.graph.label_sets[output.type.element].labels or ())
    shape = (1, *sizes, count)
    given = {one: scale * torch.randn(shape, generator=generator, dtype=torch.float64) for one in model.graph.inputs}
    return model, given


def runs(name: str, using: str) -> Runs | None:
    """Independent runs of a sampler; `None` where it does not serve a model."""
    model, given = made(name)
    with torch.no_grad():
        exact = model.infer(using="enumerate", **given)
        try:
            many = {one: values.expand(RUNS, *values.shape[1:]) for one, values in given.items()}
            found = model.infer(using=using, **many)
            torch.manual_seed(1)
            result = found.ask("log_partition" if "log_partition" in found.answers else "marginals")
        except (BackendRefused, QueryRefused):
            return None
        if "log_partition" in found.answers:
            made_of: Any = found._session
            estimate = made_of.once("estimate", None)
            each = [_of(estimate, slice(run, run + 1)).trouble() for run in range(RUNS)]
            deviation = (result.value - exact.log_partition).unsqueeze(1)
            error = result.statistics["error"].unsqueeze(1)
        else:
            trace = found.trace()
            session: Any = found._session
            missed = session.modes().missed(trace) > 0
            each = [_one(trace, run).trouble() or ((False, "") if missed[run] else None) for run in range(RUNS)]
            deviation = (result.value["y"] - exact.marginals["y"]).flatten(1)
            error = result.statistics["standard_error"]["y"].flatten(1)
    quiet = torch.tensor([one is None for one in each])
    return Runs(deviation, error, quiet, torch.tensor([one is not None and one[0] for one in each]))


def _of(estimate: Any, which: slice) -> Any:
    """An estimate for some examples."""
    return type(estimate)(*(getattr(estimate, name)[which] for name in estimate.__dataclass_fields__))


def _one(trace: Trace, run: int) -> Trace:
    """A trace of one example."""
    assert trace.apart is not None and trace.impossible is not None
    which = slice(run, run + 1)
    return replace(
        trace,
        labels={name: labels[:, :, which] for name, labels in trace.labels.items()},
        score=trace.score[:, :, which],
        acceptance=trace.acceptance[:, which],
        novel=trace.novel[:, which],
        apart=trace.apart[which],
        impossible=trace.impossible[which],
    )


@pytest.mark.parametrize(("model", "using"), [(m, u) for m in MODELS for u in SAMPLERS] if LONG else SHORT)
def test_errors_hold(model: str, using: str) -> None:
    found = runs(model, using)
    if found is None:
        pytest.skip("not served")
    silent = found.wrong & found.quiet
    if LONG:
        some = found.width(found.quiet) if found.quiet.sum() > 1 else float("nan")
        print(
            f"\n{model:13} {using:42} covered {found.covered.mean():.3f}, quiet {found.quiet.double().mean():.2f}, "
            f"width {found.width(found.quiet | ~found.quiet):.2f}, of quiet runs {some:.2f}, "
            f"wrong {found.wrong.double().mean():.3f}, silent {silent.double().mean():.3f}"
        )
    # Tempered chains never cross a wall of -inf: hardly any run is quiet, and a few parts cannot stand for all.
    if not using.startswith("tempering") or found.quiet.double().mean() > 0.1 or found.covered.mean() < 0.7:
        assert found.covered.mean() >= LEAST
    assert silent.double().mean() <= SILENT
    assert not found.useless.any()
    if found.quiet.double().mean() > 0.5:
        assert found.width(found.quiet) <= WIDEST
    if (model, using.partition("(")[0]) in CONVERGED:
        assert found.quiet.double().mean() >= 0.95
