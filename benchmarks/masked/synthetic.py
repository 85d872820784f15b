"""Table 6.1 on synthetic languages: models trained by likelihood, pseudo-likelihood and masked prediction.

    python -m benchmarks.masked.synthetic [--runs 5] [--only 'p/1000/(LL|MLM)/0']      # resumable
    python -m benchmarks.masked.report

Run r of a language draws its training strings from the seed 100 + r and its validation strings (a fifth as many, at
least 100 and at most 1,000) from 200 + r; the network starts from the seed r.  Objectives are paired: they see the same
strings, the same first weights and the same order.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

import torch

from benchmarks.masked.fitting import Settings, fitted, fresh, measures
from benchmarks.masked.generators import Language, languages
from benchmarks.masked.records import Records

RECORDS = Records("synthetic", ("language", "size", "objective", "run"))
SIZES = (1000, 10_000)
OBJECTIVES = ("LL", "PLL", "MLM")
METRICS = {"LL": "nll", "PLL": "pll", "MLM": "mlm"}
HIDDEN, EMBED = 32, 16


def validation_size(size: int) -> int:
    """How many strings decide when training stops."""
    return max(100, min(1000, size // 5))


def run(language: Language, size: int, objective: str, number: int, settings: Settings) -> dict[str, object]:
    """Train and measure one model."""
    train, held = language.draw(size, 100 + number), language.draw(validation_size(size), 200 + number)
    model = fresh(HIDDEN, EMBED, seed=number)
    done = fitted(model, objective, train, held, settings, seed=number)
    local = fresh(HIDDEN, EMBED, seed=number, energy="local")
    local.load_state_dict(model.state_dict())
    return {
        "language": language.name, "size": size, "objective": objective, "run": number, "entropy": language.entropy,
        **{METRICS[name]: value for name, value in measures(model, language).items()},
        "nll_local": measures(local, language)["LL"],
        "validation": done.validation, "steps": done.steps, "taken": done.taken, "seconds": round(done.seconds, 1),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default=".*", help="a regular expression over LANGUAGE/SIZE/OBJECTIVE/RUN")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for number in range(options.runs):
        for language in languages().values():
            for size in SIZES:
                for objective in OBJECTIVES:
                    name = f"{language.name}/{size}/{objective}/{number}"
                    known = RECORDS.has(language=language.name, size=size, objective=objective, run=number)
                    if known or not re.fullmatch(options.only, name):
                        continue
                    record = run(language, size, objective, number, Settings())
                    RECORDS.add(record)
                    print(
                        f"{name}: NLL {record['nll']:.3f} ({record['steps']} steps, {record['seconds']} s)", flush=True
                    )


if __name__ == "__main__":
    main()
