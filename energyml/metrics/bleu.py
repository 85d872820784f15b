"""BLEU by sacrebleu."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from energyml.diagnostics import PackageMissing
from energyml.metrics.tally import Judged, Metric
from energyml.metrics.words import joined

ORDER = 4
# Reference lengths, in tokens, at which a new class of sentences begins.
CLASSES = (1, 6, 11, 16, 21, 26, 31, 41, 51)


class Bleu(Metric):
    """Corpus BLEU of the predicted tokens against the gold ones, 0 to 1; n-grams are counted and added up by batch.

    Tokens are compared as the data has them: sacrebleu does not split them again, and pieces of words are joined. A
    gold token that the vocabulary lacks stands in the reference under its own spelling, so that predicting the unknown
    label never pays.
    Source: Papineni et al. 2002; the counts and the smoothing (`exp`) are those of sacrebleu (Post 2018).
    """

    name = "bleu"

    def __init__(self, judged: Judged) -> None:
        super().__init__(judged)
        try:
            from sacrebleu.metrics.bleu import BLEU
        except ImportError as problem:
            raise PackageMissing("BLEU", "sacrebleu", "translation") from problem
        self._bleu = BLEU(tokenize="none", force=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """By class of lengths: n-grams that match, n-grams predicted, and the lengths of predictions and references."""
        return (len(CLASSES), 2 * ORDER + 2)

    def _counted(self, predicted: Tensor, gold: Tensor) -> Tensor:
        # The two go to the host: n-grams of texts are counted there.
        hypotheses = [self._words(row) for row in predicted.flatten(1).tolist()]
        references = [self._words(row) for row in gold.flatten(1).tolist()]
        counts = torch.zeros(self.shape, dtype=torch.int64)
        classes = [max(0, sum(len(one) >= low for low in CLASSES) - 1) for one in references]
        for number in sorted(set(classes)):
            rows = [row for row, one in enumerate(classes) if one == number]
            found = self._bleu.corpus_score(
                [" ".join(hypotheses[row]) for row in rows], [[" ".join(references[row]) for row in rows]]
            )
            counts[number] = torch.tensor([*found.counts, *found.totals, found.sys_len, found.ref_len])
        return counts.to(predicted.device)

    def _words(self, numbers: list[int]) -> list[str]:
        """The tokens of a row up to the end label, joined where labels are pieces of words; padding is left out."""
        words: list[str] = []
        for number in numbers:
            if number < 0:
                continue
            if self.judged.labels[number] == self.judged.end:
                break
            words.append(self.judged.labels[number])
        return joined(words) if self.judged.pieces else words

    def _value(self, sums: list[Any]) -> float:
        return float(self._score(_added(sums)).score) / 100

    def details(self) -> dict[str, float]:
        """Precisions of n-grams, brevity penalty, length ratio, and BLEU by length (Goyal et al. 2019, tables 5 and 6).

        Lengths are those of the references; a class that no reference belongs to is left out.
        """
        sums = self.sums.tolist()
        whole = self._score(_added(sums))
        found = {f"precision_{n}": float(one) / 100 for n, one in enumerate(whole.precisions, start=1)}
        found["brevity_penalty"] = float(whole.bp)
        found["length_ratio"] = whole.sys_len / whole.ref_len if whole.ref_len else float("nan")
        names = [*(f"length_{low}_to_{high - 1}" for low, high in pairwise(CLASSES)), f"length_from_{CLASSES[-1]}"]
        for name, counts in zip(names, sums, strict=True):
            if counts[-1]:
                found[name] = float(self._score([int(one) for one in counts]).score) / 100
        return found

    def _score(self, counts: list[int]) -> Any:
        """The score of some counts, by sacrebleu."""
        matched, tokens = counts[:ORDER], counts[ORDER : 2 * ORDER]
        return self._bleu.compute_bleu(matched, tokens, counts[2 * ORDER], counts[2 * ORDER + 1])


def _added(sums: list[list[float]]) -> list[int]:
    """The counts of all classes together."""
    return [int(sum(column)) for column in zip(*sums, strict=True)]
