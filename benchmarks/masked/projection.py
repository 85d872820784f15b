"""Figure 6.1: masked conditionals projected onto a joint distribution with little data.

    python -m benchmarks.masked.projection [--runs 3] [--languages p h]      # resumable
    python -m benchmarks.masked.report

A masked model is trained on 100,000 strings.  On each small training set of other strings it is then projected (`KL`),
projected with pseudo-likelihood (`KL+PL`, weight 1), or trained by pseudo-likelihood alone (`PL, warm`: the control
that the thesis lacks); `PL` starts from random weights.  Run r: the masked model has the seeds of Table 6.1 plus 1,000,
the small sets those plus 2,000.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from benchmarks.masked.fitting import Settings, fitted, fresh, measures
from benchmarks.masked.generators import languages
from benchmarks.masked.records import Records
from benchmarks.masked.synthetic import EMBED, HIDDEN, validation_size

RECORDS = Records("projection", ("language", "size", "method", "run"))
TEACHER = 100_000
SIZES = (100, 1000, 10_000, 316, 3162)  # the first are run first
# By method: the objective, and whether it starts from the masked model.
METHODS = {"KL": ("KL", True), "KL+PL": ("KL+PL", True), "PL, warm": ("PLL", True), "PL": ("PLL", False)}
SETTINGS = Settings(steps=500, every=25, patience=3, lr=5e-3)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--languages", nargs="+", default=["p"], choices=sorted(languages()))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for name in options.languages:
        for number in range(options.runs):
            run(name, number)


def run(name: str, number: int) -> None:
    """All sizes and methods after one masked model; the model itself is the size 0."""
    language = languages()[name]
    wanted = [(size, method) for size in SIZES for method in METHODS]
    if all(RECORDS.has(language=name, size=size, method=method, run=number) for size, method in wanted):
        return
    teacher = fresh(HIDDEN, EMBED, seed=1000 + number)
    held = language.draw(validation_size(TEACHER), 1200 + number)
    fitted(teacher, "MLM", language.draw(TEACHER, 1100 + number), held, Settings(), seed=number)
    if not RECORDS.has(language=name, size=0, method="MLM", run=number):
        keep(name, 0, "MLM", number, measures(teacher, language)["LL"], 0, 0.0)
    for size, method in wanted:
        if RECORDS.has(language=name, size=size, method=method, run=number):
            continue
        objective, warm = METHODS[method]
        model = fresh(HIDDEN, EMBED, seed=2000 + number)
        if warm:
            model.load_state_dict(teacher.state_dict())
        train, held = language.draw(size, 2100 + number), language.draw(validation_size(size), 2200 + number)
        settings = SETTINGS
        done = fitted(model, objective, train, held, settings, seed=number)
        keep(name, size, method, number, measures(model, language)["LL"], done.steps, done.seconds)


def keep(language: str, size: int, method: str, number: int, nll: float, steps: int, seconds: float) -> None:
    """Store and show a result."""
    entropy = languages()[language].entropy
    RECORDS.add({
        "language": language, "size": size, "method": method, "run": number, "nll": nll, "entropy": entropy,
        "steps": steps, "seconds": round(seconds, 1),
    })  # fmt: skip
    print(f"{language}/{size}/{method}/{number}: NLL {nll:.3f} ({steps} steps, {seconds:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
