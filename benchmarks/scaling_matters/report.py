"""Writes docs/results/scaling-matters.md from the stored results.

python -m benchmarks.scaling_matters.report
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.scaling_matters.chunking import CHUNKING
from benchmarks.scaling_matters.horses import HORSES
from benchmarks.scaling_matters.ocr import OCR
from benchmarks.scaling_matters.study import Study

PAGE = Path(__file__).parents[2] / "docs" / "results" / "scaling-matters.md"
FINDINGS = Path(__file__).with_name("results") / "findings.md"
TITLES = {
    "marginal_ce": "Cross-entropy", "ssvm": "Structured SVM", "nll": "Log-likelihood",
    "marginal_ce_mf": "Cross-entropy (MF)",
}  # fmt: skip
# Shevchenko & Osokin 2019, Tables 2 to 4, that of unary baselines and that of the BiLSTM: accuracy, F1 or Jaccard in
# per cent
PAPER = {
    "ocr": {
        ("marginal_ce", "stage"): 97.2, ("marginal_ce", "joint"): 96.5, ("marginal_ce", "online"): 97.3,
        ("marginal_ce", "offline"): 97.2, ("marginal_ce", "offline_reg"): 97.1, ("ssvm", "stage"): 97.0,
        ("ssvm", "joint"): 96.4, ("ssvm", "online"): 97.0, ("ssvm", "offline"): 97.0, ("ssvm", "offline_reg"): 96.9,
        ("nll", "stage"): 97.2, ("nll", "joint"): 96.5, ("nll", "online"): 97.2, ("nll", "offline"): 97.1,
        ("nll", "offline_reg"): 97.1, ("marginal_ce_mf", "stage"): 97.1, ("marginal_ce_mf", "joint"): 96.6,
        ("marginal_ce_mf", "online"): 97.1, ("marginal_ce_mf", "offline"): 97.1,
        ("marginal_ce_mf", "offline_reg"): 97.0, ("marginal_ce", "unary"): 91.8, ("marginal_ce", "temperature"): 96.5,
        ("marginal_ce", "stage_tuned"): 97.2, ("nll", "stage_tuned"): 97.2, ("marginal_ce_mf", "stage_tuned"): 97.1,
    },
    "chunking": {
        ("marginal_ce", "unary"): 86.2, ("marginal_ce", "stage"): 89.5, ("marginal_ce", "joint"): 87.9,
        ("marginal_ce", "online"): 89.6, ("nll", "stage"): 89.4, ("nll", "joint"): 87.9, ("nll", "online"): 89.5,
        ("marginal_ce", "blstm_joint"): 94.9, ("nll", "blstm_joint"): 94.8,
    },
    "horses": {
        ("marginal_ce", "unary"): 84.1, ("marginal_ce", "stage"): 86.5, ("marginal_ce", "joint"): 85.6,
        ("marginal_ce", "online"): 86.6,
    },
}  # fmt: skip
PAPER_SGD = {
    ("marginal_ce", "stage"): 97.1, ("marginal_ce", "joint"): 96.4, ("marginal_ce", "online"): 97.2,
    ("marginal_ce", "offline"): 97.2, ("marginal_ce", "offline_reg"): 97.1,
}  # fmt: skip
# What is run for cross-entropy alone.
FIRST_ROW_ONLY = (
    "unary", "joint_long", "joint_pairs", "stage_tuned", "constant", "temperature", "temperature_norm", "joint_sigmoid",
    "blstm_unary", "blstm_joint", "blstm_online",
)  # fmt: skip
HEAD = """# Scaling matters

Shevchenko & Osokin 2019, trained by each procedure. Every run stops by the paper's plateau rule (appendix B). Settings
that differ from the study's own are named. Differences of a few tenths of a per cent are within noise where a row has
one seed.

    python -m benchmarks.scaling_matters.ocr --root DATA     # resumable; --only picks cells
    python -m benchmarks.scaling_matters.chunking --root DATA --vectors glove.6B.50d.txt
    python -m benchmarks.scaling_matters.horses --root DATA
    python -m benchmarks.scaling_matters.report              # this page

*Time* is that of a run relative to joint training of the same objective: epochs times the processor time of an epoch,
where that was taken (one thread; runs that were not interrupted).
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
    "horses": """\
Weizmann horses at 64 x 64 pixels, one fold; Jaccard index of the horse. At most 25 epochs in each stage. The paper has
full images and a larger network.""",
}


def table(study: Study) -> Iterator[str]:
    yield "| objective | procedure | test | paper | train | epochs | time | seeds | settings | date |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    records, paper = study.records(), PAPER.get(study.name, {})
    for row in study.rows:
        for procedure in study.procedures:
            ones = [one for one in records if (one["row"], one["procedure"]) == (row, procedure)]
            for settings in dict.fromkeys(settings_of(one) for one in ones):
                same = [one for one in ones if settings_of(one) == settings]
                time = relative_time(procedure, same, [one for one in records if one["row"] == row])
                known = PAPER_SGD if settings.startswith("sgd") else paper
                yield "| " + " | ".join(line(row, procedure, same, known.get((row, procedure)), settings, time)) + " |"


def line(
    row: str, procedure: str, ones: Sequence[dict[str, Any]], paper: float | None, settings: str, time: str
) -> tuple[str, ...]:
    return (
        TITLES[row],
        procedure,
        spread([100 * one["test"] for one in ones]),
        "" if paper is None else f"{paper}",
        spread([100 * one["train"] for one in ones]),
        spread([one["epochs"] for one in ones]),
        time,
        ", ".join(str(one["seed"]) for one in ones),
        settings,
        max(one["date"] for one in ones),
    )


def relative_time(procedure: str, ones: Sequence[dict[str, Any]], row: Sequence[dict[str, Any]]) -> str:
    """How many times as long as joint training; an epoch of longer joint training costs the same."""
    base = joint_of(procedure)
    joint = [one for one in row if one["procedure"] == base and settings_of(one) == settings_of(ones[0])]
    joint = joint or [one for one in row if one["procedure"] == base]
    cost = an_epoch([one for one in row if one["procedure"] in (base, "joint_long")])
    own = cost if procedure in (base, "joint_long") else an_epoch(ones)
    if not joint or cost is None or own is None:
        return ""
    epochs = [statistics.fmean(one["epochs"] for one in some) for some in (ones, joint)]
    return f"{own * epochs[0] / (cost * epochs[1]):.1f}"


def joint_of(procedure: str) -> str:
    """Joint training of the same network."""
    return "blstm_joint" if procedure.startswith("blstm_") else "joint"


def an_epoch(ones: Sequence[dict[str, Any]]) -> float | None:
    """Processor minutes of an epoch, of the runs whose time is known."""
    timed = [one for one in ones if one.get("processor_minutes")]
    return sum(one["processor_minutes"] for one in timed) / sum(one["epochs"] for one in timed) if timed else None


def settings_of(one: dict[str, Any]) -> str:
    alpha = f", alpha {one['alpha']:g}" if one["alpha"] != 1 else ""
    return f"{one.get('optimizer', 'adam')} {one['lr']:g}, batch {one['batch']}{alpha}"


def spread(values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ± {statistics.stdev(values):.1f}"


def differences(study: Study) -> Iterator[str]:
    """Paired differences to joint training: the same objective and seed, with the study's own settings."""
    own = (study.lr, 1.0, study.batch, "adam")
    records = [
        one for one in study.records() if (one["lr"], one["alpha"], one["batch"], one.get("optimizer", "adam")) == own
    ]
    for row in study.rows:
        for procedure in study.procedures:
            base = joint_of(procedure)
            pairs = [
                100 * (one["test"] - other["test"])
                for one in records
                for other in records
                if (one["row"], one["procedure"]) == (row, procedure)
                and (other["row"], other["procedure"]) == (row, base)
                and one["seed"] == other["seed"]
            ]
            if pairs and procedure not in (base, "unary"):
                signed = ", ".join(f"{one:+.2f}" for one in pairs)
                yield f"{TITLES[row]}, {procedure} less {base}: {signed}{interval(pairs)}"


def interval(pairs: Sequence[float]) -> str:
    """The mean difference with its 95% interval by Student's t, where there are several seeds."""
    if len(pairs) < 2:
        return ""
    from scipy.stats import t

    mean, half = statistics.fmean(pairs), statistics.stdev(pairs) / len(pairs) ** 0.5 * t.ppf(0.975, len(pairs) - 1)
    return f" (mean {mean:+.2f}, 95% from {mean - half:+.2f} to {mean + half:+.2f})"


def figures() -> Iterator[str]:
    """Figure 1: accuracy against the scale of the unary potentials, and how their ratio moves in training."""
    own = [one for one in OCR.records() if one["row"] == "marginal_ce" and one["seed"] == 0 and one["lr"] == OCR.lr]
    own = [one for one in own if one.get("optimizer", "adam") == "adam"]
    scaled = {one["alpha"]: one for one in own if one["procedure"] in ("constant", "joint")}
    if len(scaled) > 2:
        with draw("alpha", "scale of the unary potentials", "test accuracy, per cent", log_x=True) as axes:
            alphas = sorted(scaled)
            axes.plot(alphas, [100 * scaled[alpha]["test"] for alpha in alphas], "o-")
        yield "\n![test accuracy against a constant scale of the unary potentials](scaling-matters-alpha.svg)\n"
    curves = {
        one["procedure"] if one["alpha"] == 1 else f"{one['procedure']}, alpha {one['alpha']:g}": one["ratios"]
        for one in own if one["procedure"] in ("joint", "joint_sigmoid", "stage", "stage_tuned", "constant")
    }  # fmt: skip
    if curves:
        with draw("ratio", "epoch", "unary potentials / pair potentials", log_y=True) as axes:
            for name, ratios in curves.items():
                axes.plot(range(1, len(ratios) + 1), ratios, label=name)
            axes.legend()
        yield "\n![the ratio of unary to pair potentials by epoch](scaling-matters-ratio.svg)\n"


@contextmanager
def draw(name: str, x: str, y: str, *, log_x: bool = False, log_y: bool = False) -> Iterator[Any]:
    """The axes of a figure that is written beside the page."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "energyml"  # the same picture gives the same file
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    yield axes
    axes.set(xlabel=x, ylabel=y, xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
    axes.grid(alpha=0.3)
    figure.savefig(PAGE.with_name(f"scaling-matters-{name}.svg"), metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parts = [HEAD, FINDINGS.read_text(encoding="utf-8") if FINDINGS.exists() else ""]
    for study, title in ((OCR, "OCR"), (CHUNKING, "Chunking"), (HORSES, "Horses")):
        if not study.records():
            parts.append(f"\n## {title}\n\nNot run yet.\n")
            continue
        parts.append(f"\n## {title}\n\n{ABOUT[study.name]}\n\n" + "\n".join(table(study)) + "\n")
        found = list(differences(study))
        if found:
            parts.append("\nBy seed, in per cent:\n\n" + "\n".join(f"- {one}" for one in found) + "\n")
        known = {(one["row"], one["procedure"]) for one in study.records()}
        first = next(iter(study.rows))
        asked = [(r, p) for r in study.rows for p in study.procedures if r == first or p not in FIRST_ROW_ONLY]
        missing = [f"{TITLES[row]} {procedure}" for row, procedure in asked if (row, procedure) not in known]
        if study is OCR:
            parts += figures()
        if missing:
            parts.append(f"\nNot run yet: {', '.join(missing)}.\n")
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text("".join(parts), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
