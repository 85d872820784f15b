"""Writes docs/results/approximate-inference.md from the stored comparisons.

python -m benchmarks.approximate_inference.report
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.approximate_inference.tagging import LOCAL, RESULTS, TASKS
from energyml.comparison import Comparison, Row

PAGE = Path(__file__).parents[2] / "docs" / "results" / "approximate-inference.md"
TITLES = {
    "pos": "Twitter part-of-speech",
    "chunking": "CoNLL-2000 chunking",
    "ud": "UD-EWT, part of speech and features",
}
ABOUT = {
    "pos": "Trained on oct27's training and development tweets, validated on its test tweets, tested on daily547.",
    "chunking": "In BIOES; a tenth of the training sentences for validation.",
    "ud": "The stand-in for CCG supertagging: one label for each combination of part of speech and features. Sentences "
    "of at most 50 words for training; compared on 500 test sentences.",
}
STUDIES = {
    "windows": "**Windows** (Table 2): filters over {1, 3} and {1, 5} words.",
    "sizes": "**Hidden sizes** (Figure 1).",
    "plus": '**"+"** (Tables 4 and 5): characters are read, embeddings move, more dropout; the energy is a BLSTM-CRF+.',
}
RHO = ("rho.word", "rho.y")
HEAD = """# Approximate inference, weighed

Tu & Gimpel 2019 with a BLSTM-CRF trained by log-likelihood, whose energy is then fixed: every row asks another backend
for the best answer under the same energy. Inference networks (`infnet`) are fitted with energy plus local
cross-entropy; *local* ones, the paper's baselines, with the cross-entropy alone; `relaxed` is gradient ascent on
softmax logits, by argmax as in the paper or rounded coordinate by coordinate; `tailor` moves the network for each
input; `start:` warm-starts the ascent. Word vectors start from GloVe (50 numbers, 6B tokens) instead of the paper's,
words are in lower case, users, addresses and digits are one word each, and there are no character features, so
accuracies are below the paper's; energies, search errors and speeds are what is compared. Nothing was tuned for each
method: step sizes and numbers of steps are in the names. Only the row *oracle* is: its step size (1 to 10,000) and
number of steps (5 to 100) are the best for each sentence by its gold labels, as in the paper, which no prediction can
be.

    python -m benchmarks.approximate_inference.tagging TASK --root DATA --vectors glove.6B.50d.txt    # resumable
    python -m benchmarks.approximate_inference.variants TASK --root DATA --vectors glove.6B.50d.txt   # other shapes
    python -m benchmarks.approximate_inference.speed                                                  # batches, a loop
    python -m benchmarks.approximate_inference.report                                                 # this page

Energies are averages over sentences, lower is better; search error is the energy above the exact one; *solved* is the
share of sentences whose exact answer was found; *rho* is Spearman's correlation of search error with the perplexity of
the words and of the gold labels under small LSTM language models (section 6.2); speeds are by wall clock at batches of
10 with one thread, other work on the machine included, and mean something only against each other.
"""


def records(task: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob(f"{task}-*.json"))]


def table(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "| backend | accuracy | energy | relaxed energy | search error | solved | rho | sentences/s | answer |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    names = dict.fromkeys(row["backend"] for one in found for row in one["rows"])
    for name in names:
        rows = [row for one in found for row in one["rows"] if row["backend"] == name and row["reason"] is None]
        if rows:
            cells = (
                shown(name),
                spread([row["accuracy"] for row in rows], 100, 1),
                spread([row["energy"] for row in rows], 1, 2),
                spread([row["relaxed_energy"] for row in rows if row["relaxed_energy"] is not None], 1, 2),
                spread([max(0.0, row["search_error"]) for row in rows], 1, 2),
                spread([row["solved"] for row in rows], 100, 1),
                ", ".join(spread([row[one] for row in rows if row.get(one) is not None], 1, 2) for one in RHO).strip(
                    ", "
                ),
                spread([row["examples_per_second"] for row in rows], 1, 0),
                rows[0]["quality"],
            )
            yield "| " + " | ".join(cells) + " |"
    tuned = [one["oracle"] for one in found if "oracle" in one]
    if tuned:
        cells = ["`relaxed(round: argmax)`, *oracle*", *(spread([one["accuracy"] for one in tuned], 100, 1),)]
        cells += [
            spread([one["energy"] for one in tuned], 1, 2),
            "",
            spread([one["search_error"] for one in tuned], 1, 2),
        ]
        yield "| " + " | ".join([*cells, "", "", "", f"by the gold labels of {tuned[0]['sentences']} sentences"]) + " |"


def against_local(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """By seed: what the energy adds to a network's fitting, in accuracy and in search error."""
    for name in dict.fromkeys(row["backend"] for one in found for row in one["rows"] if LOCAL in row["backend"]):
        own = name.replace(f", {LOCAL}", "")
        pairs = [({row["backend"]: row for row in one["rows"]}, one["seed"]) for one in found]
        told = [
            f"{100 * (rows[own]['accuracy'] - rows[name]['accuracy']):+.1f} and "
            f"{rows[own]['search_error'] - rows[name]['search_error']:+.2f} (seed {seed})"
            for rows, seed in pairs if own in rows and name in rows
        ]  # fmt: skip
        yield f"- `{own}` less its local baseline, accuracy and search error: {'; '.join(told)}\n"


def shown(name: str) -> str:
    """A backend's name in a table; local baselines, which differ in their seed, are called that."""
    local = f", {LOCAL}"
    return f"`{name.replace(local, '')}`, *local*" if local in name else f"`{name}`"


def variants(task: str) -> Iterator[str]:
    """Table 2, Figure 1, Tables 4 and 5: networks of other shapes."""
    for path in sorted(RESULTS.glob(f"variants-{task}-*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        for study, title in STUDIES.items():
            if study in record:
                split = record[study]["split"]
                yield f"\n{title} Seed {record['seed']}, {split} data, {record['date']}.\n\n"
                yield "| network | accuracy | search error | solved | sentences/s |\n| --- | --- | --- | --- | --- |\n"
                for row in record[study]["rows"]:
                    if row["reason"] is None:
                        cells = (f"{100 * row['accuracy']:.1f}", f"{max(0.0, row['search_error']):.2f}",
                                 f"{100 * row['solved']:.1f}", f"{row['examples_per_second']:,.0f}")  # fmt: skip
                        yield f"| {shown(row['backend'])} | {' | '.join(cells)} |\n"


def spread(values: Sequence[float], factor: float, digits: int) -> str:
    if not values:
        return ""
    scaled = [factor * one for one in values]
    mean = f"{statistics.fmean(scaled):,.{digits}f}"
    return mean if len(scaled) == 1 else f"{mean} ± {statistics.stdev(scaled):,.{digits}f}"


def section(task: str) -> Iterator[str]:
    found = records(task)
    yield f"\n## {TITLES[task]}\n\n"
    if not found:
        yield "Not run yet.\n"
        return
    seeds = ", ".join(str(one["seed"]) for one in found)
    gold = spread([one["gold_energy"] for one in found], 1, 2)
    yield f"{ABOUT[task]} Seeds {seeds}; hidden size {found[0]['hidden']}; {found[0]['examples']} sentences; "
    yield f"{max(one['date'] for one in found)}. The gold labels have energy {gold}.\n\n"
    yield "\n".join(table(found)) + "\n\n"
    yield from against_local(found)
    figure = PAGE.with_name(f"approximate-inference-{task}.svg")
    pictured(found[0]).plot(figure)
    yield f"\n![accuracy against time]({figure.name})\n"
    yield from variants(task)


def pictured(record: dict[str, Any]) -> Comparison:
    """What the picture of speed and accuracy needs, from a stored comparison."""
    rows = [
        Row(
            row["backend"], row["reason"], metrics={"accuracy": row["accuracy"]}, search_error=row["search_error"],
            seconds=row["seconds"],
        )
        for row in record["rows"] if row["reason"] is None
    ]  # fmt: skip
    return Comparison(
        TITLES[record["task"]], f"seed {record['seed']}", record["examples"], record["batch"], record["repeats"], rows,
        record["gold_energy"], record["reference"], record["proven"], record["seconds"], [],
    )  # fmt: skip


def main() -> None:
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    findings = RESULTS / "findings.md"
    parts = [HEAD, findings.read_text(encoding="utf-8") if findings.exists() else ""]
    for task in TASKS:
        parts += section(task)
    PAGE.write_text("".join(parts), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
