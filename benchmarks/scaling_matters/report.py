"""Writes docs/results/scaling-matters.md from the stored results.

python -m benchmarks.scaling_matters.report
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.scaling_matters.chunking import CHUNKING
from benchmarks.scaling_matters.horses import HORSES
from benchmarks.scaling_matters.ocr import OCR
from benchmarks.scaling_matters.study import Study

PAGE = Path(__file__).parents[2] / "docs" / "results" / "scaling-matters.md"
TITLES = {
    "marginal_ce": "Cross-entropy", "ssvm": "Structured SVM", "nll": "Log-likelihood",
    "marginal_ce_mf": "Cross-entropy (MF)",
}  # fmt: skip
# Shevchenko & Osokin 2019, Table 2 and the table of unary baselines: accuracy, F1 or Jaccard in per cent
PAPER = {
    "ocr": {
        ("marginal_ce", "stage"): 97.2, ("marginal_ce", "joint"): 96.5, ("marginal_ce", "online"): 97.3,
        ("marginal_ce", "offline"): 97.2, ("marginal_ce", "offline_reg"): 97.1, ("ssvm", "stage"): 97.0,
        ("ssvm", "joint"): 96.4, ("ssvm", "online"): 97.0, ("ssvm", "offline"): 97.0, ("ssvm", "offline_reg"): 96.9,
        ("nll", "stage"): 97.2, ("nll", "joint"): 96.5, ("nll", "online"): 97.2, ("nll", "offline"): 97.1,
        ("nll", "offline_reg"): 97.1, ("marginal_ce_mf", "stage"): 97.1, ("marginal_ce_mf", "joint"): 96.6,
        ("marginal_ce_mf", "online"): 97.1, ("marginal_ce_mf", "offline"): 97.1,
        ("marginal_ce_mf", "offline_reg"): 97.0, ("marginal_ce", "unary"): 91.8,
    },
}  # fmt: skip
HEAD = """# Scaling matters

Shevchenko & Osokin 2019, trained by each procedure. Every run stops by the paper's plateau rule (appendix B). Settings
that differ from the study's own are named. Differences of a few tenths of a per cent are within noise where a row has
one seed.

    python -m benchmarks.scaling_matters.ocr --root DATA     # resumable; --only picks cells
    python -m benchmarks.scaling_matters.chunking --root DATA --vectors glove.6B.50d.txt
    python -m benchmarks.scaling_matters.horses --root DATA
    python -m benchmarks.scaling_matters.report              # this page

Minutes are wall time with one thread, other work on the machine included; they are no measurement of speed.
"""
ABOUT = {
    "ocr": """\
Taskar's words, 6,877 of them: folds 2 to 9 for training, 0 for validation, 1 for testing; a LeNet-5 and a chain.
The paper averages over nine test folds and eight seeds; here it is one test fold and the seeds that the table names.
Accuracy is the mean over words of the share of right letters.""",
    "chunking": """\
CoNLL-2000, a fifth of the training sentences for validation; F1 of chunks. Two linear layers over characters, word
vectors and part of speech; `blstm_` rows have one BiLSTM layer of 150 units instead. Word vectors start from GloVe
(50 numbers, 6B tokens) instead of the paper's SENNA vectors.""",
    "horses": """Weizmann horses at 64 x 64 pixels, one fold; Jaccard index of the horse.""",
}


def table(study: Study) -> Iterator[str]:
    yield "| objective | procedure | test | paper | train | epochs | minutes | seeds | settings | date |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    records, paper = study.records(), PAPER.get(study.name, {})
    for row in study.rows:
        for procedure in study.procedures:
            ones = [one for one in records if (one["row"], one["procedure"]) == (row, procedure)]
            for settings in dict.fromkeys(settings_of(one) for one in ones):
                same = [one for one in ones if settings_of(one) == settings]
                yield "| " + " | ".join(line(row, procedure, same, paper.get((row, procedure)), settings)) + " |"


def line(
    row: str, procedure: str, ones: Sequence[dict[str, Any]], paper: float | None, settings: str
) -> tuple[str, ...]:
    return (
        TITLES[row],
        procedure,
        spread([100 * one["test"] for one in ones]),
        "" if paper is None else f"{paper}",
        spread([100 * one["train"] for one in ones]),
        spread([one["epochs"] for one in ones]),
        spread([one["minutes"] for one in ones]),
        ", ".join(str(one["seed"]) for one in ones),
        settings,
        max(one["date"] for one in ones),
    )


def settings_of(one: dict[str, Any]) -> str:
    alpha = f", alpha {one['alpha']:g}" if one["alpha"] != 1 else ""
    return f"{one.get('optimizer', 'adam')} {one['lr']:g}, batch {one['batch']}{alpha}"


def spread(values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ± {statistics.stdev(values):.1f}"


def differences(study: Study) -> Iterator[str]:
    """Paired differences to joint training: the same objective, seed and settings."""
    records = study.records()
    for row in study.rows:
        for procedure in study.procedures:
            pairs = [
                100 * (one["test"] - other["test"])
                for one in records
                for other in records
                if (one["row"], one["procedure"]) == (row, procedure)
                and (other["row"], other["procedure"]) == (row, "joint")
                and (one["seed"], settings_of(one)) == (other["seed"], settings_of(other))
            ]
            if pairs and procedure not in ("joint", "unary"):
                signed = ", ".join(f"{one:+.2f}" for one in pairs)
                yield f"{TITLES[row]}, {procedure} less joint: {signed}"


def main() -> None:
    parts = [HEAD]
    for study, title in ((OCR, "OCR"), (CHUNKING, "Chunking"), (HORSES, "Horses")):
        if not study.records():
            parts.append(f"\n## {title}\n\nNot run yet.\n")
            continue
        parts.append(f"\n## {title}\n\n{ABOUT[study.name]}\n\n" + "\n".join(table(study)) + "\n")
        found = list(differences(study))
        if found:
            parts.append("\nBy seed, in per cent:\n\n" + "\n".join(f"- {one}" for one in found) + "\n")
        known = {(one["row"], one["procedure"]) for one in study.records()}
        missing = [f"{TITLES[r]} {p}" for r in study.rows for p in study.procedures if (r, p) not in known]
        if missing:
            parts.append(f"\nNot run yet: {', '.join(missing)}.\n")
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text("".join(parts), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
