"""Writes docs/results/beams.md from the stored results.

python -m benchmarks.beams.report
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.beams import blurring
from benchmarks.beams.scheduled import SCHEDULED
from benchmarks.beams.study import RESULTS, Study
from benchmarks.beams.tagging import TAGGING
from benchmarks.beams.translation import LONGEST, SIZES, TRANSLATION

PAGE = Path(__file__).parents[2] / "docs" / "results" / "beams.md"
HEAD = """# Training what a beam decodes

Goyal et al. 2018 (a continuous relaxation of beam search), Goyal et al. 2019 (local and global normalisation) and
chapter 3 of Goyal's thesis (scheduled sampling), at a size that a core can train in minutes, on stand-ins for data that
is not free. Numbers of the papers stand beside ours for the direction of differences alone: tasks, sizes and hence
levels are others.

    python -m benchmarks.beams.tagging --root DATA       # resumable; --only picks runs, --seeds names seeds
    python -m benchmarks.beams.scheduled --root DATA
    python -m benchmarks.beams.translation --root DATA
    python -m benchmarks.beams.blurring                  # why soft beams end answers of raw scores
    BENCH_CLOCK=cpu python -m benchmarks.beams.steps     # the time of a training step
    python -m benchmarks.beams.report                    # this page

Means ± standard deviations over seeds; the best epoch by validation is taken for every row. *Soft* is the decoder of
section 2.4 of the first paper (soft search, hard back-pointers, alpha 10), *beam* the hard beam, both of width 3.
Differences are paired: the same seed, the same start; the interval is that of Student's t at 95%. Tried on the way with
one seed, and not in these tables: five epochs of search-aware tagging at 1e-3 on 4,000 sentences (worse on validation
from the second epoch on); on 2,500 sentences two epochs each at 2e-4, at 1e-3, with alpha from 3 to 100, and of the
global row at 5e-4. The rate of the tables, 3e-4, was chosen after these and not compared with others.
"""
TAGS = """\
UD-EWT with part of speech and features as one label (over 200 of them in this sample): the stand-in for CCG
supertagging. The decoder starts from zeros and sees the encoder's state of its own position, so that with the encoder
that reads from left to right it knows nothing of the words to come. 2,000 training sentences of at most 30 words
(a sixth of the data), 400 of the development set, 1,000 of the test set; 128 units (64 each way in the
encoder of both directions), words that occur once are unknown, batches of 16. Starts take ten epochs of Adam at 2e-3,
search-aware training five more at 3e-4, with alpha from 1 to 10 in equal ratios unless a row says otherwise; a row of
plain teacher forcing gets the same five epochs. Test accuracy.
"""
MULTI30K = """\
Multi30k, German to English, the stand-in for IWSLT14: {train:,} pairs of at most {longest} words for the starts, the
first {small:,} of them for search-aware training; the first {val:,} validation and {test:,} test pairs. 128 units,
Bahdanau attention, words in lower case that occur at least three times (about 2,000 on each side), BLEU on words. Six
epochs for a start, two for search-aware training and for teacher forcing that goes on with the same pairs. One seed:
differences of half a point mean nothing.
"""
STEPS = """\
Forward and backward pass of the tagger (batches of {batch}, {length} words, {labels} labels, {hidden} units), random
weights, one thread, {clock} time, {date}. The paper says "roughly k"; the bar is 1.5 k.

"""
ENCODERS = {"forward": "from left to right", "both": "both directions"}
# Goyal et al. 2019, Tables 2 and 3: accuracy with each encoder
PAPER = {
    ("ce", "greedy"): (76.54, 92.59), ("ce", "beam"): (77.76, 93.29), ("local_ce", "soft"): (83.9, 93.76),
    ("global_ce", "soft"): (83.93, 93.73), ("l2", "greedy"): (73.12, 91.23), ("l2", "beam"): (73.83, 91.94),
    ("local_l2", "soft"): (83.35, 92.78), ("global_l2", "soft"): (85.50, 92.63),
}  # fmt: skip
# Goyal et al. 2018, Table 1: test accuracy by hard beam and by soft beam
BLURRED = """\
The same weights, decoded by raw scores. Overlap is the probability that the labels of the first hypothesis share with
those of the two others before any has ended; ends are hard choices. Both over the first {count} test sentences;
the row of the hard beam whose finished hypotheses stay within is the limit of the soft ones.
"""
PAPER_ALPHA = {
    "ce": (82.42, 82.00), "hinge_annealed": (83.54, 83.05), "hinge_constant": (83.36, 82.85),
    "direct_constant": (82.65, 82.82), "local_ce": (85.82, 85.78),
}  # fmt: skip
# Goyal 2021, Table 3.1 (test F1 of named entities) and Table 3.2
PAPER_SCHEDULED = {
    "ce": 53.32, "greedy_hard": 54.83, "greedy_fixed": 55.88, "greedy_annealed": 56.33, "sample_hard": 54.60,
    "sample_fixed": 56.25, "sample_annealed": 54.20, "annealed_k100": 56.33, "annealed_k10": 55.88,
    "annealed_k1": 55.30,
    "annealed_always": 54.83,
}  # fmt: skip
# Goyal et al. 2019, Table 4: BLEU
PAPER_BLEU = {
    ("ce", "greedy"): 26.24, ("ce", "beam"): 27.62, ("ce", "beam of raw scores"): 4.30, ("l2", "greedy"): 25.42,
    ("l2", "beam"): 26.63, ("local_ce", "soft"): 29.28, ("global_ce", "soft"): 26.24, ("local_l2", "soft"): 27.71,
    ("global_l2", "soft"): 29.27,
}  # fmt: skip
# Student's t at 97.5% by degrees of freedom
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


class Records:
    """The results of a study, by variant, row and seed."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.known = {(one["variant"], one["row"], one["seed"]): one for one in study.records()}

    def of(self, variant: str, row: str) -> list[dict[str, Any]]:
        return [one for (v, r, _), one in sorted(self.known.items()) if (v, r) == (variant, row)]

    def seeds(self, variant: str, row: str) -> str:
        return ", ".join(str(one["seed"]) for one in self.of(variant, row))

    def score(self, variant: str, row: str, way: str, split: str = "test") -> str:
        ones = [one["scores"][split] for one in self.of(variant, row)]
        return spread([100 * one[way] for one in ones if way in one])

    def differences(self, variant: str, one: tuple[str, str], other: tuple[str, str]) -> list[float]:
        """100 times the differences of two (row, way)s on the test set, by seed."""
        return [
            100 * (a["scores"]["test"][one[1]] - b["scores"]["test"][other[1]])
            for a in self.of(variant, one[0])
            for b in self.of(variant, other[0])
            if a["seed"] == b["seed"] and one[1] in a["scores"]["test"] and other[1] in b["scores"]["test"]
        ]

    def about(self) -> str:
        """When it was run, how long an epoch takes, and what is missing."""
        if not self.known:
            return "Not run yet.\n"
        dates = sorted({one["date"] for one in self.known.values()})
        missing = [
            f"{variant} {row}"
            for row, chosen in self.study.rows.items()
            for variant in chosen.only or self.study.variants
            if not self.of(variant, row)
        ]
        told = f"Run on {dates[0]}" + (f" to {dates[-1]}" if len(dates) > 1 else "") + "."
        return told + (f" Not run yet: {', '.join(missing)}.\n" if missing else "\n")


def spread(values: Sequence[float], digits: int = 2) -> str:
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def interval(values: Sequence[float]) -> str:
    """A mean difference with its interval, or a single one."""
    if len(values) < 2:
        return f"{values[0]:+.2f} (one seed)"
    mean = statistics.fmean(values)
    half = STUDENT[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    each = ", ".join(f"{one:+.2f}" for one in values)
    verdict = "beyond noise" if abs(mean) > half else "within noise"
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}], {verdict} (by seed: {each})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


# ------------------------------------------------------------------------------------------------------------- tagging


def tagging() -> Iterator[str]:
    found = Records(TAGGING)
    yield f"\n## Tagging\n\n{TAGS}\n{found.about()}"
    if not found.known:
        return
    for start, title in (("ce", "a regular start"), ("l2", "a self-normalised start")):
        yield f"\n### Local and global normalisation from {title}\n\n"
        yield table(["row", "decoded by", *ENCODERS.values(), "paper", "seeds"], list(_normalised(found, start)))
    yield "\n### Local log-normalisers after gold prefixes\n\n"
    head = ["start", "encoder", "train mean", "train variance", "dev mean", "dev variance", "accuracy (beam)"]
    yield table(head, [_normalizers(found, row, variant, "train") for row in ("ce", "l2") for variant in ENCODERS])
    yield "\nOn CCG the paper has mean 21.08 and variance 9.57 (train) by cross-entropy, 0.6 and 0.29 by the penalty.\n"
    yield "\n### Direct loss and hinge, constant and annealed alpha\n\n"
    yield "Encoder from left to right, scores locally normalised; every row but the first starts from the first.\n\n"
    yield table(
        ["row", "greedy", "beam", "soft", "paper (beam, soft)", "dev beam", "dev soft", "seeds"],
        list(_alphas(found)),
    )
    yield "\n### Where a beam of 3 loses the gold answer (development set)\n\n"
    yield table(
        ["row", "encoder", "share lost", "of these, by step 2", "mean step"],
        [_lost(found, row, variant) for row in TAGGING.rows for variant in ENCODERS if found.of(variant, row)],
    )
    yield "\n### Differences on the test set, in points of accuracy\n\n"
    yield "".join(f"- {line}\n" for line in _claims(found))


def _normalised(found: Records, start: str) -> Iterator[list[str]]:
    rows = [
        ("pretrain-greedy", start, "greedy"), ("pretrain-beam", start, "beam"),
        ("pretrain, raw scores", start, "beam of raw scores"), ("teacher forcing goes on", f"{start}_longer", "beam"),
        ("teacher forcing goes on, raw scores", f"{start}_longer", "beam of raw scores"),
        ("locally normalised", f"local_{start}", "soft"), ("", f"local_{start}", "beam"),
        ("globally normalised", f"global_{start}", "soft"), ("", f"global_{start}", "beam"),
    ]  # fmt: skip
    for title, row, way in rows:
        if any(found.of(variant, row) for variant in ENCODERS):
            paper = PAPER.get((row, way))
            seeds = " / ".join(found.seeds(variant, row) for variant in ENCODERS)
            scores = [found.score(variant, row, way) for variant in ENCODERS]
            yield [title, way, *scores, "" if paper is None else f"{paper[0]} / {paper[1]}", seeds]


def _normalizers(found: Records, row: str, variant: str, first: str) -> list[str]:
    ones = [one["reports"] for one in found.of(variant, row)]
    keys = ("log_z_mean", "log_z_variance")
    values = [spread([one[split][key] for one in ones]) for split in (first, "validation") for key in keys]
    way = "beam"
    title = {"ce": "regular", "l2": "self-normalised"}[row]
    return [title, ENCODERS.get(variant, variant), *values, found.score(variant, row, way)]


def _alphas(found: Records) -> Iterator[list[str]]:
    titles = {
        "ce": "cross-entropy", "hinge_annealed": "hinge, annealed", "hinge_constant": "hinge, alpha 1",
        "hinge_count": "hinge, annealed, margin by number",
        "direct_constant": "direct loss, alpha 1", "local_ce": "direct loss, annealed",
    }  # fmt: skip
    for row, title in titles.items():
        if found.of("forward", row):
            tested = [found.score("forward", row, way) for way in ("greedy", "beam", "soft")]
            seen = [found.score("forward", row, way, "validation") for way in ("beam", "soft")]
            paper = ", ".join(map(str, PAPER_ALPHA.get(row, ())))
            yield [title, *tested, paper, *seen, found.seeds("forward", row)]


def _lost(found: Records, row: str, variant: str) -> list[str]:
    ones = [one["reports"]["validation"] for one in found.of(variant, row)]
    early = [sum(one["left_at"][:3]) / max(1, sum(one["left_at"])) for one in ones]
    mean = [sum(t * n for t, n in enumerate(one["left_at"])) / max(1, sum(one["left_at"])) for one in ones]
    lost = spread([100 * one["gold_left"] for one in ones], 1)
    return [row, ENCODERS.get(variant, variant), lost, spread([100 * one for one in early], 1), spread(mean, 1)]


def _claims(found: Records) -> Iterator[str]:
    compared = [
        ("search-aware local less its start, both by beam", ("local_ce", "beam"), ("ce", "beam")),
        ("search-aware local less teacher forcing that goes on, both by beam", ("local_ce", "beam"),
         ("ce_longer", "beam")),
        ("search-aware local by soft beam less teacher forcing that goes on by beam", ("local_ce", "soft"),
         ("ce_longer", "beam")),
        ("global less local from a regular start, by soft beam", ("global_ce", "soft"), ("local_ce", "soft")),
        ("global less local from a self-normalised start, by soft beam", ("global_l2", "soft"), ("local_l2", "soft")),
        ("global less local from a regular start, by beam", ("global_ce", "beam"), ("local_ce", "beam")),
        ("global less local from a self-normalised start, by beam", ("global_l2", "beam"), ("local_l2", "beam")),
        ("global from a self-normalised start less global from a regular one, by soft beam", ("global_l2", "soft"),
         ("global_ce", "soft")),
        ("raw scores less normalised scores of the regular start, by beam", ("ce", "beam of raw scores"),
         ("ce", "beam")),
        ("global from a regular start less raw scores of teacher forcing that goes on, by beam", ("global_ce", "beam"),
         ("ce_longer", "beam of raw scores")),
        ("annealed less constant alpha, direct loss by beam", ("local_ce", "beam"), ("direct_constant", "beam")),
        ("annealed direct loss less annealed hinge, by beam", ("local_ce", "beam"), ("hinge_annealed", "beam")),
    ]  # fmt: skip
    for title, one, other in compared:
        for variant, encoder in ENCODERS.items():
            values = found.differences(variant, one, other)
            if values:
                yield f"{title}, {encoder}: {interval(values)}"


# -------------------------------------------------------------------------------------------------- scheduled sampling


def scheduled() -> Iterator[str]:
    found = Records(SCHEDULED)
    yield "\n## Scheduled sampling\n\n"
    yield """\
Twitter part-of-speech, the stand-in for German named entities: trained on oct27's training and development tweets,
validated on 250 of its test tweets, tested on daily547. 64 units as in the thesis, 12 epochs from random weights,
mixing by the inverse sigmoid with k = 3 (gold labels are kept with probability 0.75 at first, 0.07 at the end, which is
where the thesis's k = 10 ends after 50 epochs) unless the row says otherwise. Nothing was tuned: alpha is 5 where it
is fixed and goes from 1 to 10 where it is annealed.
"""
    yield f"\n{found.about()}"
    if not found.known:
        return
    rows = []
    for row in SCHEDULED.rows:
        if found.of("both", row):
            tested = [found.score("both", row, way) for way in ("greedy", "beam")]
            less = found.differences("both", (row, "greedy"), ("ce", "greedy"))
            told = "" if row == "ce" else interval(less).partition(" (by")[0]
            rows.append([
                row, *tested, found.score("both", row, "greedy", "validation"), told, str(PAPER_SCHEDULED[row]),
                found.seeds("both", row),
            ])  # fmt: skip
    head = ["row", "greedy", "beam", "dev greedy", "less `ce`, by greedy", "thesis (F1)", "seeds"]
    yield "\n" + table(head, rows)


# --------------------------------------------------------------------------------------------------------- translation


def translation() -> Iterator[str]:
    found = Records(TRANSLATION)
    variant = next(iter(TRANSLATION.variants))
    yield "\n## Translation\n\n"
    yield MULTI30K.format(longest=LONGEST, **SIZES)
    yield f"\n{found.about()}"
    if not found.known:
        return
    titles = {"greedy": "pretrain-greedy", "beam": "pretrain-beam", "beam of raw scores": "pretrain-beam, raw scores"}
    rows = [[title, *(_bleu(found, variant, row, way) for row in ("ce", "l2"))] for way, title in titles.items()]
    for kind in ("local", "global"):
        for way in ("soft", "beam"):
            cells = [_bleu(found, variant, f"{kind}_{start}", way) for start in ("ce", "l2")]
            rows.append([f"{kind}ly normalised, {way}", *cells])
    rows.append(["teacher forcing goes on, beam", _bleu(found, variant, "ce_longer", "beam"), ""])
    yield "\nBLEU, and that of the paper in brackets:\n\n" + table(["", "regular start", "self-normalised start"], rows)
    yield "\n### Local log-normalisers\n\n"
    head = ["start", "", "train mean", "train variance", "dev mean", "dev variance", "BLEU (beam)"]
    yield table(head, [_normalizers(found, row, variant, "train") for row in ("ce", "l2") if found.of(variant, row)])
    yield "\nThe paper has 24.7 and 115.4 (train) by cross-entropy, 0.65 and 0.18 with the penalty.\n"
    ways = [(row, "beam") for row in TRANSLATION.rows] + [("ce", "beam of raw scores"), ("l2", "beam of raw scores")]
    kept = [(row, way, one["details"].get(way)) for row, way in ways for one in found.of(variant, row)]
    known = [(row, way, one) for row, way, one in kept if one]
    lengths = sorted({key for _, _, one in known for key in one if key.startswith("length_") and "ratio" not in key},
                     key=lambda key: int(key.split("_")[-1]))  # fmt: skip
    yield "\n### Precisions, lengths, and BLEU by the length of the reference\n\n"
    head = ["row", "decoded by", "n-gram precisions", "length ratio", *(key[7:].replace("_", " ") for key in lengths)]
    yield table(head, [_broken_down(row, way, one, lengths) for row, way, one in known])
    if lines := blurring.table():
        yield f"\n### Raw scores and the end of answers\n\n{BLURRED.format(count=blurring.LOOKED_AT)}\n"
        yield "\n".join(lines) + "\n"


def _bleu(found: Records, variant: str, row: str, way: str) -> str:
    ours, paper = found.score(variant, row, way), PAPER_BLEU.get((row, way))
    return ours + (f" ({paper})" if ours and paper is not None else "")


def _broken_down(row: str, way: str, one: dict[str, float], lengths: Sequence[str]) -> list[str]:
    precisions = "/".join(f"{100 * one[f'precision_{n}']:.1f}" for n in (1, 2, 3, 4))
    by_length = [f"{100 * one[key]:.1f}" if key in one else "" for key in lengths]
    return [row, way, precisions, f"{one['length_ratio']:.3f}", *by_length]


# --------------------------------------------------------------------------------------------------------------- speed


def speed() -> Iterator[str]:
    path = RESULTS / "steps.jsonl"
    yield "\n## The time of a training step\n\n"
    if not path.exists():
        yield "Not run yet.\n"
        return
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    yield STEPS.format(**rows[0])
    cells = [
        [row["objective"], str(row["width"]), f"{row['teacher_forcing_ms']:.1f}", f"{row['searched_ms']:.1f}",
         f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})", f"{row['bar']:.1f}"]
        for row in rows
    ]  # fmt: skip
    yield table(["objective", "width", "teacher forcing, ms", "through the beam, ms", "ratio", "bar"], cells)


def main() -> None:
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    findings = RESULTS / "findings.md"
    parts = [HEAD, findings.read_text(encoding="utf-8") if findings.exists() else ""]
    parts += [*tagging(), *scheduled(), *translation(), *speed()]
    PAGE.write_text("".join(parts), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
