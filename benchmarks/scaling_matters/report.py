"""Writes docs/results/scaling-matters.md from the stored results.

python -m benchmarks.scaling_matters.report
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.scaling_matters.ocr import PROCEDURES, RESULTS, ROWS

PAGE = Path(__file__).parents[2] / "docs" / "results" / "scaling-matters.md"
TITLES = {
    "marginal_ce": "Cross-entropy", "ssvm": "Structured SVM", "nll": "Log-likelihood",
    "marginal_ce_mf": "Cross-entropy (MF)",
}  # fmt: skip
# Shevchenko & Osokin 2019, Table 2 and the table of unary baselines: accuracy in per cent
PAPER = {
    ("marginal_ce", "stage"): 97.2, ("marginal_ce", "joint"): 96.5, ("marginal_ce", "online"): 97.3,
    ("marginal_ce", "offline"): 97.2, ("marginal_ce", "offline_reg"): 97.1, ("ssvm", "stage"): 97.0,
    ("ssvm", "joint"): 96.4, ("ssvm", "online"): 97.0, ("ssvm", "offline"): 97.0, ("ssvm", "offline_reg"): 96.9,
    ("nll", "stage"): 97.2, ("nll", "joint"): 96.5, ("nll", "online"): 97.2, ("nll", "offline"): 97.1,
    ("nll", "offline_reg"): 97.1, ("marginal_ce_mf", "stage"): 97.1, ("marginal_ce_mf", "joint"): 96.6,
    ("marginal_ce_mf", "online"): 97.1, ("marginal_ce_mf", "offline"): 97.1, ("marginal_ce_mf", "offline_reg"): 97.0,
    ("marginal_ce", "unary"): 91.8,
}  # fmt: skip
HEAD = """# Scaling matters

Shevchenko & Osokin 2019 on OCR (Taskar's words, 6,877 of them; folds 2 to 9 for training, 0 for validation, 1 for
testing): a LeNet-5 and a chain, trained by each procedure. The paper averages over nine test folds and eight seeds;
here it is one test fold and the seeds that the table names, so that differences of a few tenths of a per cent are
within noise. Accuracy is the mean over words of the share of right letters.

    python -m benchmarks.scaling_matters.ocr --root DATA     # resumable; --only picks cells
    python -m benchmarks.scaling_matters.report              # this page

"""
TAIL = """
Minutes are wall time with one thread, other work on the machine included; they are no measurement of speed.
"""


def table(records: Sequence[dict[str, Any]]) -> Iterable[str]:
    yield "| objective | procedure | test | paper | train | epochs | minutes | seeds | learning rate, batch | date |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in ROWS:
        for procedure in PROCEDURES:
            ones = [one for one in records if (one["row"], one["procedure"]) == (row, procedure)]
            if not ones:
                continue
            paper = PAPER.get((row, procedure))
            yield (
                "| "
                + " | ".join(
                    (
                        TITLES[row],
                        procedure,
                        spread([100 * one["test"] for one in ones]),
                        "" if paper is None else f"{paper}",
                        spread([100 * one["train"] for one in ones]),
                        spread([one["epochs"] for one in ones]),
                        spread([one["minutes"] for one in ones]),
                        ", ".join(str(one["seed"]) for one in ones),
                        f"{ones[0]['lr']:g}, {ones[0]['batch']}",
                        max(one["date"] for one in ones),
                    )
                )
                + " |"
            )


def spread(values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ± {statistics.stdev(values):.1f}"


def main() -> None:
    lines = (RESULTS / "ocr.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    text = HEAD + "\n".join(table(records)) + "\n\n"
    text += (
        "Minutes are wall time with one thread, other work on the machine included; they are no measurement of speed.\n"
    )
    missing = [f"{TITLES[r]} {p}" for r in ROWS for p in PROCEDURES
               if (p != "unary" or r == "marginal_ce")
               and not any((o["row"], o["procedure"]) == (r, p) for o in records)]  # fmt: skip
    if missing:
        text += f"\nNot run yet: {', '.join(missing)}; the figures, SGD and temperature tables, chunking and horses.\n"
    PAGE.write_text(text, encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
