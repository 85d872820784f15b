"""Tu & Gimpel 2019 on three tasks: a BLSTM-CRF by log-likelihood, inference networks, and `energyml compare`.

    python -m benchmarks.approximate_inference.tagging pos --root DATA [--vectors FILE]

`pos` is Twitter part-of-speech (25 labels), `chunking` CoNLL-2000 in BIOES, `ud` UD-EWT with UPOS and features (over
300 labels: the stand-in for CCG's 400).  Each network is fitted twice: to the energy, and as a local baseline to the
gold labels alone.  Gradient descent also runs under the paper's oracle tuning, on some of the sentences.  Training is
resumable; each comparison is kept in results/TASK-SEED.json, and `python -m benchmarks.approximate_inference.report`
writes the page.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import energyml as em
from energyml.backends.relaxed.oracle import tuned
from energyml.comparison.subject import Wanted, from_path
from energyml.data.batches import Batches
from energyml.diagnostics import Source
from energyml.driver import compile_source
from energyml.train.display import Lines
from energyml.train.run import Request, train

RESULTS = Path(__file__).with_name("results")
Sentence = list[tuple[str, str]]

SPEC = """\
labels Word from data(min: {min}, unknown: '<unk>')
labels Tag from data
dim T
input word : Word[T]
output y : Tag[T]
net scores = blstm(out: Tag, hidden: {hidden}, embed: {embed}, dropout: 0.3{vectors})
param W : real[from: Tag, to: Tag] = normal(0.1)
factor unary [t in T] (y[t]) = scores(word)[t]
factor pair [t in T-1] (from: y[t], to: y[t+1]) = W
infer exact
decode map
train nll {{
  optimizer: adam(lr: {lr}), epochs: {epochs}, batch: 10, clip: 5
  stop: plateau(accuracy, patience: {patience}, reduce: 2)
}} {fits}
data conll('train.txt', columns: 'word y', validation: 'validation.txt', test: 'test.txt', unknown: count_wrong)
"""
FIT = """then infnet_loss {{
  infer: {network}
  energy: {energy}
  optimizer: adam(lr: 1e-3), epochs: {epochs}, batch: 10, clip: 5, reduction: cell
  stop: plateau(accuracy, patience: {patience}, reduce: 2)
}} """
ARCHITECTURES = ("cnn", "blstm", "seq2seq")
# The networks that are fitted without the energy, the paper's local baselines, are told by their seed.
LOCAL = "seed: 1"
ORACLE_SENTENCES, ORACLE_STEPS = 300, (5, 10, 20, 50, 100)


@dataclass(frozen=True)
class Task:
    """A task: its sizes, and what is compared."""

    name: str
    hidden: int = 100
    min: int = 1
    epochs: int = 30
    fit_epochs: int = 30
    patience: int = 5
    longest: int | None = None
    examples: int | None = None

    def spec(self, networks: Sequence[str], vectors: str | None, lr: float) -> str:
        """The spec: the chain, then a stage for each network."""
        fits = "".join(
            FIT.format(network=one, energy=0 if LOCAL in one else 1, epochs=self.fit_epochs, patience=self.patience)
            for one in networks
        )
        chosen = "" if vectors is None else f", vectors: '{vectors}'"
        return SPEC.format(
            min=self.min, hidden=self.hidden, embed=50 if vectors else 100, vectors=chosen, lr=lr, epochs=self.epochs,
            patience=self.patience, fits=fits,
        )  # fmt: skip

    def networks(self) -> list[str]:
        """The three architectures, and their local baselines."""
        chosen = [f"{one}(hidden: {self.hidden})" for one in ARCHITECTURES]
        return [*(f"infnet({one})" for one in chosen), *(f"infnet({one}, {LOCAL})" for one in chosen)]

    def backends(self) -> list[str]:
        plain = ["exact", "mean_field(steps: 10)", "bp", *self.networks()]
        # The paper: momentum from a random start, rounded by argmax.
        ascents = [f"relaxed(steps: {steps}, lr: 1, round: argmax)" for steps in (10, 50, 200)]
        ascents += ["relaxed(steps: 50, lr: 10, round: argmax)"]
        # Beyond it: other steps, another start, entropy that falls, and rounding coordinate by coordinate.
        others = (
            "optimizer: adam, lr: 0.5",
            "optimizer: exponentiated, lr: 1",
            "lr: 1, start: unary",
            "lr: 1, entropy: 5 -> 0",
        )
        ascents += [*(f"relaxed(steps: 50, {one}, round: argmax)" for one in others), "relaxed(steps: 50, lr: 1)"]
        best = f"infnet(blstm(hidden: {self.hidden})"
        refined = [f"{best}, tailor: {steps})" for steps in (3, 10)]
        warm = [f"relaxed(steps: {steps}, lr: 10, start: {best}), round: argmax)" for steps in (3, 10)]
        return [*plain, *ascents, *refined, *warm]


TASKS = {
    "pos": Task("pos"),
    "chunking": Task("chunking", epochs=10, fit_epochs=8, patience=2),
    "ud": Task("ud", hidden=200, min=2, epochs=8, fit_epochs=5, patience=2, longest=50, examples=500),
}


# ---------------------------------------------------------------------------------------------------------------- data


def columns(path: Path, word: int, label: int) -> Iterator[Sentence]:
    """The sentences of a gzipped file of columns."""
    found: Sentence = []
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            parts = re.split(r"[ \t]", line.rstrip("\n"))
            if len(parts) > label:
                found.append((visible(parts[word]), parts[label]))
            elif found:
                yield found
                found = []
    if found:
        yield found


def visible(word: str) -> str:
    """A word in lower case, numbers, users and addresses as one word each; without any kind of space."""
    for pattern, by in ((r"^@\w+$", "<user>"), (r"^(https?:|www\.).*", "<url>"), (r"\d", "0"), (r"\s", "_")):
        word = re.sub(pattern, by, word)
    return word.lower() or "_"


def universal(path: Path) -> Iterator[Sentence]:
    """The sentences of a CoNLL-U file, labelled by part of speech and features."""
    found: Sentence = []
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            parts = line.rstrip("\n").split("\t")
            if len(parts) == 10 and parts[0].isdigit():
                found.append((visible(parts[1]), f"{parts[3]}|{parts[5]}"))
            elif not line.strip() and found:
                yield found
                found = []


def bioes(sentence: Sentence) -> Sentence:
    """BIO chunks with their ends and single words marked."""
    labels = [label for _, label in sentence] + ["O"]
    made = []
    for (word, label), after in zip(sentence, labels[1:], strict=True):
        goes_on = after.startswith("I-") and after[2:] == label[2:]
        if label.startswith("B-") and not goes_on:
            label = f"S-{label[2:]}"
        elif label.startswith("I-") and not goes_on:
            label = f"E-{label[2:]}"
        made.append((word, label))
    return made


def prepare(task: Task, root: Path, out: Path) -> None:
    """train.txt, validation.txt and test.txt, as the paper splits the data."""
    if task.name == "pos":
        folder = root / "twitter_pos"
        parts = {
            "train": [*columns(folder / "oct27.train.gz", 0, 1), *columns(folder / "oct27.dev.gz", 0, 1)],
            "validation": list(columns(folder / "oct27.test.gz", 0, 1)),
            "test": list(columns(folder / "daily547.conll.gz", 0, 1)),
        }
    elif task.name == "chunking":
        folder = root / "conll2000"
        known = [bioes(one) for one in columns(folder / "train.txt.gz", 0, 2)]
        cut = len(known) * 9 // 10
        tested = [bioes(one) for one in columns(folder / "test.txt.gz", 0, 2)]
        parts = {"train": known[:cut], "validation": known[cut:], "test": tested}
    else:
        folder = root / "ud_ewt"
        names = {"train": "train", "validation": "dev", "test": "test"}
        parts = {part: list(universal(folder / f"{name}.conllu.gz")) for part, name in names.items()}
        parts["train"] = [one for one in parts["train"] if task.longest is None or len(one) <= task.longest]
    out.mkdir(parents=True, exist_ok=True)
    for part, sentences in parts.items():
        text = "\n".join("".join(f"{word} {label}\n" for word, label in one) for one in sentences)
        (out / f"{part}.txt").write_text(text, encoding="utf-8")


# ----------------------------------------------------------------------------------------------------------------- run


def trained(task: Task, spec: str, out: Path, options: argparse.Namespace) -> int:
    """Train by a spec, or go on where it stopped; the number of epochs."""
    compiled = compile_source(Source(f"{task.name}.energy", spec))
    asked = Request(out=out, root=out.parent / "data", seed=options.seed, resume=True, threads=1)
    done = train(compiled, asked, Lines())
    if done.interrupted:
        raise SystemExit(130)
    return len(done.history)


def vectors_of(options: argparse.Namespace) -> str | None:
    return None if options.vectors is None else str(options.vectors.resolve())


def run(task: Task, options: argparse.Namespace) -> None:
    folder = options.runs / task.name
    prepare(task, options.root, folder / "data")
    out = folder / f"seed{options.seed}"
    epochs = trained(task, task.spec(task.networks(), vectors_of(options), options.lr), out, options)
    found = em.compare(
        out, task.backends(), root=folder / "data", repeats=options.repeats, limit=task.examples, likelihood="lstm",
        tell=lambda text: print(text, flush=True),
    )  # fmt: skip
    print(found)
    RESULTS.mkdir(exist_ok=True)
    kept = RESULTS / f"{task.name}-{options.seed}.json"
    record = {
        "task": task.name, "seed": options.seed, "date": time.strftime("%Y-%m-%d"), "hidden": task.hidden,
        "vectors": options.vectors is not None, "epochs": epochs, **found.plain(), "model": out.name,
    }  # fmt: skip
    kept.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    record["oracle"] = oracle_tuned(out, folder / "data")
    kept.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def oracle_tuned(run: Path, root: Path) -> dict[str, float]:
    """Gradient descent whose step size and number of steps are chosen for each sentence by its gold labels.

    Labels that training never saw are always wrong, and choose nothing.
    """
    subject = from_path(run, Wanted(root=root))
    model, sentences = subject.model.eval(), subject.dataset.sample(ORACLE_SENTENCES, 0)
    found = {"sentences": 0, "words": 0, "right": 0, "energy": 0.0, "exact_energy": 0.0}
    for batch in Batches(sentences, 50, shuffle=False):
        given, gold = {"lengths": batch.lengths, **batch.inputs}, batch.gold["y"]
        chosen = tuned(
            model, using="relaxed(round: argmax)", steps=ORACLE_STEPS, lengths=batch.lengths, **batch.tensors
        )
        with torch.no_grad():
            best = model.infer(using="exact", **given).map()
        found["sentences"] += len(gold)
        found["words"] += int((gold >= 0).sum())
        found["right"] += int(((chosen.answer["y"] == gold) & (gold >= 0)).sum())
        found["energy"] -= float(chosen.answer.score.sum())
        found["exact_energy"] -= float(best.score.sum())
    count = found["sentences"]
    return {
        "sentences": count, "accuracy": found["right"] / found["words"], "energy": found["energy"] / count,
        "search_error": (found["energy"] - found["exact_energy"]) / count,
    }  # fmt: skip


def parsed(about: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line of a study of one task."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--root", type=Path, required=True, help="the folder of the data sets")
    parser.add_argument("--runs", type=Path, default=Path("runs/approximate"), help="where runs are kept")
    parser.add_argument("--vectors", type=Path, help="pretrained word vectors, as text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(__doc__, arguments)
    run(TASKS[options.task], options)


if __name__ == "__main__":
    main()
