"""Iterations and time of conjugate gradients as the condition number grows, by preconditioner, as a plot."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.exact.timing import Call, seconds
from benchmarks.gaussian import cases
from benchmarks.gaussian.ours import direct
from benchmarks.gaussian.results import figure, store
from energyml.backends.gaussian.iterative import Iterative, Settings
from energyml.backends.gaussian.methods import Methods
from energyml.bind.lowrank import Vectors
from energyml.bind.quadratic import QuadraticForm

PLOT = Path(__file__).parents[2] / "docs" / "performance-condition.svg"
RIDGES = tuple(10.0**-power for power in range(7))
STRENGTHS = tuple(10.0**power for power in range(-5, 2))
MOST = 20_000  # iterations
PRECONDITIONERS = {"grid": ("none", "jacobi", "transform"), "low rank": ("none", "jacobi", "lowrank")}
DIRECT = {"low rank": "woodbury"}
COLOURS = {
    "none": "#555555", "jacobi": "#1b6ca8", "transform": "#2e8b57", "lowrank": "#2e8b57", "woodbury": "#c0392b",
}  # fmt: skip


def doubled(form: QuadraticForm) -> QuadraticForm:
    """The form in double precision: single precision does not reach a residual of 1e-6 where conditions are bad."""
    return form.with_tensors([one.double() for one in form.tensors()])


def largest_eigenvalue(form: QuadraticForm, steps: int = 60) -> float:
    """By power iteration, from below."""
    x = torch.randn(form.sizes, dtype=form.ridge.dtype, generator=torch.Generator().manual_seed(0))
    for _ in range(steps):
        x = form.multiply(x / x.norm())
    return float(x.norm())


def fastest(call: Call) -> float:
    """The least of three times."""
    return min(seconds(call) for _ in range(3))


def forms(quick: bool) -> list[tuple[str, QuadraticForm, Tensor]]:
    """Grids of falling ridge, and low-rank couplings of growing strength above a ridge of 1, with right-hand sides."""
    side, count = (64, 3) if quick else (256, 7)
    grid, low = cases.grid(side, 1, 1, 1.0), cases.low_rank(side // 2, 16, 1)
    values = low.form.vectors[0].values
    grids = [replace(grid.form, ridge=torch.tensor([ridge])) for ridge in RIDGES[:count]]
    couplings = [
        QuadraticForm(low.form.sizes, torch.ones(1), vectors=(Vectors(values, torch.tensor([strength])),))
        for strength in STRENGTHS[:count]
    ]
    made = [("grid", doubled(form), grid.rhs.double()) for form in grids]
    return made + [("low rank", doubled(form), low.rhs.double()) for form in couplings]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Iterations above, milliseconds below; grids left, low rank right."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "energyml", "svg.fonttype": "none", "font.size": 8})
    import matplotlib.pyplot as plt

    drawing, axes = plt.subplots(2, 2, figsize=(8, 4.6), sharex="col")
    titles = {
        "grid": "grid 256², weights in (0, 2), falling ridge",
        "low rank": "low rank 128² x 2 x 16, growing strength",
    }
    for column, (what, title) in enumerate(titles.items()):
        names = [*PRECONDITIONERS[what], *([DIRECT[what]] if what in DIRECT else [])]
        for line, unit in enumerate(("iterations", "milliseconds")):
            axis = axes[line][column]
            for name in names:
                found = [row for row in rows if row["what"] == what and row["preconditioner"] == name and unit in row]
                axis.plot(
                    [row["condition"] for row in found], [row[unit] for row in found], marker="o", markersize=2.5,
                    linewidth=1.2, color=COLOURS[name], label=name if name in DIRECT.values() else f"cg, {name}",
                )  # fmt: skip
            axis.set(xscale="log", yscale="log", ylabel=unit if column == 0 else "")
            axis.minorticks_off()
            axis.grid(alpha=0.25, linewidth=0.4)
        axes[0][column].set_title(title)
        axes[1][column].set_xlabel("condition number")
        axes[1][column].legend(frameon=False, fontsize=6)
    drawing.tight_layout()
    drawing.savefig(path, metadata={"Date": None})
    plt.close(drawing)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for what, form, rhs in forms(options.quick):
        condition = figure(largest_eigenvalue(form) / float(form.ridge[0]))
        for name in PRECONDITIONERS[what]:
            settings = Settings(tol=1e-6, iterations=MOST, preconditioner=name)
            _, outcome = Iterative(form, settings).solve(rhs)
            assert outcome.iterations is not None and outcome.converged is not None
            took = fastest(lambda form=form, settings=settings, rhs=rhs: Iterative(form, settings).solve(rhs))
            rows.append(
                {"what": what, "condition": condition, "preconditioner": name,
                 "iterations": int(outcome.iterations[0]), "converged": bool(outcome.converged[0]),
                 "milliseconds": figure(1e3 * took)}
            )  # fmt: skip
            print(rows[-1], flush=True)
        if what in DIRECT:

            def solve(form: QuadraticForm = form, rhs: Tensor = rhs) -> object:
                methods = Methods("s", form, direct())
                choice = methods.choice("solve")
                assert choice is not None and choice.method == DIRECT["low rank"]
                return methods.solver(choice, attached=False).solve(rhs)

            solve()
            took = fastest(solve)
            rows.append(
                {"what": what, "condition": condition, "preconditioner": DIRECT[what],
                 "milliseconds": figure(1e3 * took)}
            )  # fmt: skip
    store("condition-quick" if options.quick else "condition", rows, ("what", "condition", "preconditioner"))
    if not options.quick:
        draw(rows, PLOT)


if __name__ == "__main__":
    main()
