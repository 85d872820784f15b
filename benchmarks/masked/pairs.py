"""A masked translation model on Multi30k: pairs of sentences, the conditional network, its training, and BLEU."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import energyml as em
from benchmarks.masked.fitting import Fitted, Settings, fit

LONGEST = 15
RARE = 3
UNKNOWN = "<unk>"
# Words, and marks by themselves.
TOKEN = re.compile(r"\w+|[^\w\s]")
HIDDEN = 192
SPEC = """\
labels Source from data
labels Target from data
dim S
dim T  # known: that of the reference
input source : Source[S]
output y : Target[T]
net encoder = blstm(hidden: {half}, embed: {hidden}, dropout: 0.3, out: {hidden})
net words = masked_blstm(hidden: {hidden}, embed: {hidden})
masked y {{ conditionals: words, given: encoder(source), energy: {energy} }}
infer metropolis
"""


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs as words and marks, in lower case.

    Attributes:
        source: of each pair.
        target: of each pair, none of them empty.
    """

    source: list[list[str]]
    target: list[list[str]]

    def __len__(self) -> int:
        return len(self.source)


def read(root: Path, name: str, count: int) -> Pairs:
    """The first pairs of a part that have at most `LONGEST` words on both sides."""
    sides = []
    for side in ("de", "en"):
        with gzip.open(root / "multi30k" / f"{name}.{side}.gz", "rt", encoding="utf-8") as stream:
            sides.append([TOKEN.findall(line.lower()) for line in stream])
    kept = [pair for pair in zip(*sides, strict=True) if all(0 < len(one) <= LONGEST for one in pair)][:count]
    return Pairs([pair[0] for pair in kept], [pair[1] for pair in kept])


def vocabulary(sentences: Sequence[Sequence[str]]) -> list[str]:
    """The words that occur at least `RARE` times, and what stands for all others."""
    counts = Counter(word for sentence in sentences for word in sentence)
    return [UNKNOWN, *sorted(word for word, count in counts.items() if count >= RARE)]


class Encoder:
    """Words to numbers, by the vocabularies of the training pairs."""

    def __init__(self, pairs: Pairs) -> None:
        self.labels = {"Source": vocabulary(pairs.source), "Target": vocabulary(pairs.target)}
        self.numbers = {name: {word: n for n, word in enumerate(words)} for name, words in self.labels.items()}

    def __call__(self, pairs: Pairs, some: Sequence[int]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The source ``[B, S]`` and the target ``[B, T]`` of some pairs, -1 behind their ends, and their lengths."""
        source = _padded([pairs.source[one] for one in some], self.numbers["Source"])
        target = _padded([pairs.target[one] for one in some], self.numbers["Target"])
        return source, target, {"S": (source >= 0).sum(1), "T": (target >= 0).sum(1)}

    def words(self, row: Sequence[int]) -> list[str]:
        """The words of a target, up to its end."""
        return [self.labels["Target"][number] for number in row if number >= 0]


def _padded(sentences: Sequence[Sequence[str]], numbers: dict[str, int]) -> Tensor:
    made = torch.full((len(sentences), max(map(len, sentences))), -1)
    for row, sentence in enumerate(sentences):
        made[row, : len(sentence)] = torch.tensor([numbers.get(word, 0) for word in sentence])
    return made


def compiled(encoder: Encoder, energy: str, seed: int = 0) -> em.EnergyModel:
    """The conditional masked model with one of its energies."""
    return em.compile(SPEC.format(hidden=HIDDEN, half=HIDDEN // 2, energy=energy), labels=encoder.labels, seed=seed)


def trained(model: em.EnergyModel, encoder: Encoder, parts: dict[str, Pairs], settings: Settings) -> Fitted:
    """Masked training: a word at a time in every other batch, a random number of words at once in the others.

    The first is what the energies add up, the second what an answer from nothing and mask-predict ask for.  Both decide
    when to stop.
    """
    torch.manual_seed(0)  # dropped units and hidden words
    turn = 0

    def loss(part: str, some: Sequence[int]) -> Tensor:
        nonlocal turn
        source, target, lengths = encoder(parts[part], some)
        data: dict[str, Any] = {"source": source, "y": target, "lengths": lengths}
        if part == "train":
            model.train()
            turn += 1
            return model.loss(objective="mlm" if turn % 2 else "mlm(hide: some)", **data)
        model.eval()
        return model.loss(objective="mlm", **data) + model.loss(objective="mlm(hide: some)", **data)

    found = fit(model, loss, len(parts["train"]), len(parts["validation"]), settings, seed=0)
    model.eval()
    return found


class Judge:
    """Corpus BLEU by sacrebleu, from counts that add up over sentences; words are compared as the data has them.

    References keep their own words where the vocabulary lacks them, so that `<unk>` never pays.
    """

    def __init__(self) -> None:
        from sacrebleu.metrics.bleu import BLEU

        self.bleu = BLEU(tokenize="none", force=True)

    def counts(self, words: Sequence[str], reference: Sequence[str]) -> list[int]:
        """N-grams that match, n-grams there are (of 1 to 4 words), and the lengths of both, of one sentence."""
        found = self.bleu.corpus_score([" ".join(words)], [[" ".join(reference)]])
        return [*found.counts, *found.totals, found.sys_len, found.ref_len]

    def score(self, counts: Tensor) -> float:
        """BLEU, 0 to 100, of counts ``[sentences, 10]``."""
        total = [int(one) for one in counts.sum(0).tolist()]
        return float(self.bleu.compute_bleu(total[:4], total[4:8], total[8], total[9]).score)
