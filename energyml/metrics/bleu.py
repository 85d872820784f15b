"""BLEU by sacrebleu."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from energyml.data.problems import PackageMissing
from energyml.metrics.tally import Judged, Metric

ORDER = 4


class Bleu(Metric):
    """Corpus BLEU of the predicted tokens against the gold ones, 0 to 1; n-grams are counted and added up by batch.

    Tokens are compared as the data has them: sacrebleu does not split them again. A gold token that the vocabulary
    lacks stands in the reference under its own spelling, so that predicting the unknown label never pays.
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
        """n-grams that match, n-grams of the predictions, and the lengths of predictions and references."""
        return (2 * ORDER + 2,)

    def _counted(self, predicted: Tensor, gold: Tensor) -> Tensor:
        # The two go to the host: n-grams of texts are counted there.
        hypotheses = [self._text(row) for row in predicted.flatten(1).tolist()]
        references = [self._text(row) for row in gold.flatten(1).tolist()]
        found = self._bleu.corpus_score(hypotheses, [references])
        counts = [*found.counts, *found.totals, found.sys_len, found.ref_len]
        return torch.tensor(counts, dtype=torch.int64, device=predicted.device)

    def _text(self, numbers: list[int]) -> str:
        """The tokens of a row up to the end label; padding is left out."""
        words: list[str] = []
        for number in numbers:
            if number < 0:
                continue
            if self.judged.labels[number] == self.judged.end:
                break
            words.append(self.judged.labels[number])
        return " ".join(words)

    def _value(self, sums: list[Any]) -> float:
        counts = [int(one) for one in sums]
        matched, tokens = counts[:ORDER], counts[ORDER : 2 * ORDER]
        found = self._bleu.compute_bleu(matched, tokens, counts[2 * ORDER], counts[2 * ORDER + 1])
        return float(found.score) / 100
