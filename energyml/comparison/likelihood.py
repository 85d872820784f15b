"""How likely inputs and labels are, and whether unlikely ones are searched worse (Tu & Gimpel 2019, section 6.2).

A language model of token sequences is fitted on the training split; the perplexity of each evaluated example, token by
token, is then ranked against its search error (Spearman's rho).  A positive rho says that likely examples have less
search error.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from energyml.data.dataset import Dataset
from energyml.diagnostics import EnergyError
from energyml.driver import SpecFileError
from energyml.model.types import REAL, EdgeType

if TYPE_CHECKING:
    from energyml.energy_model import EnergyModel

MODELS = ("bigram", "lstm")
Sequences = list[np.ndarray]


def perplexities(kind: str, train: Dataset, dataset: Dataset, model: EnergyModel, seed: int) -> dict[str, Tensor]:
    """[N] by column: the mean of -log p of each example's tokens; the first token input, and the gold labels.

    Args:
        kind: `bigram` or `lstm`.
        train: what the language models are fitted on.
        dataset: the examples.
        model: whose inputs and outputs they are.
        seed: of the LSTM.
    """
    found = {}
    for name, count in _columns(model).items():
        if name in train.columns and name in dataset.columns:
            fitted, asked = _sequences(train, name), _sequences(dataset, name)
            # Labels that training never had have numbers beyond the vocabulary.
            size = max(count, 1 + max((int(one.max(initial=0)) for one in (*fitted, *asked)), default=0))
            fit = bigram if kind == "bigram" else lstm
            found[name] = fit(fitted, asked, size, seed)
    return found


def _columns(model: EnergyModel) -> dict[str, int]:
    """The first input that is a sequence of labels, and the outputs that are, with how many labels they have."""
    sets, found = model.graph.label_sets, {}
    for name, given in model.graph.inputs.items():
        if isinstance(given.type, EdgeType) or given.type.element == REAL:
            continue
        axes = given.type.axes
        if len(axes) == 1 and axes[0].extent.kind == "dim":
            found[name] = len(sets[given.type.element].labels or ())
            break
    for variable in model.graph.variables.values():
        if variable.kind == "output" and len(variable.dims) == 1:
            found[variable.name] = len(sets[variable.type.element].labels or ())
    return found


def _sequences(dataset: Dataset, name: str) -> Sequences:
    """The tokens of each example; cells without a label are left out."""
    made = []
    for row in range(len(dataset)):
        batch = dataset.batch([row])
        values = (batch.gold.get(name) if name in batch.gold else batch.tensors[name])[0].numpy()  # type: ignore[index]
        made.append(values[values >= 0])
    return made


def bigram(train: Sequences, asked: Sequences, count: int, seed: int = 0) -> Tensor:
    """[N]: the mean of -log p(token | the one before) by counts that are interpolated (Witten & Bell 1991).

    p(w | v) = (c(v w) + d(v) p(w)) / (c(v) + d(v)), where d(v) is how many different tokens follow v; and p(w)
    is interpolated with the uniform distribution in the same way.  The start of an example counts as a token.
    """
    start = count
    before = np.concatenate([np.r_[start, one[:-1]] for one in train if len(one)] or [np.zeros(0, np.int64)])
    after = np.concatenate([one for one in train if len(one)] or [np.zeros(0, np.int64)])
    single = np.bincount(after, minlength=count).astype(np.float64)
    kinds = max(1, int((single > 0).sum()))
    p_single = (single + kinds / count) / (single.sum() + kinds)
    pairs, times = np.unique(before * (count + 1) + after, return_counts=True)
    totals = np.bincount(before, minlength=count + 1).astype(np.float64)
    follow = np.bincount(pairs // (count + 1), minlength=count + 1).astype(np.float64)
    found = []
    for one in asked:
        if not len(one):
            found.append(float("nan"))
            continue
        previous = np.r_[start, one[:-1]]
        keys = previous * (count + 1) + one
        place = np.searchsorted(pairs, keys).clip(max=max(0, len(pairs) - 1))
        seen = np.where(pairs[place] == keys, times[place], 0.0) if len(pairs) else np.zeros(len(one))
        mass = totals[previous] + follow[previous]
        p = np.where(mass > 0, (seen + follow[previous] * p_single[one]) / np.maximum(mass, 1.0), p_single[one])
        found.append(float(-np.log(p).mean()))
    return torch.tensor(found, dtype=torch.float64)


class _LanguageModel(nn.Module):
    """An LSTM that predicts the next token."""

    def __init__(self, count: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(count + 1, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, count)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T]: -log p of each of tokens [B, T] given those before; 0 where there is none (-1)."""
        start = torch.full_like(tokens[:, :1], self.out.out_features)
        given = torch.cat([start, tokens[:, :-1].clamp(min=0)], 1)
        logits = self.out(self.lstm(self.embed(given))[0])
        return F.cross_entropy(logits.transpose(1, 2), tokens, ignore_index=-1, reduction="none")


def lstm(train: Sequences, asked: Sequences, count: int, seed: int = 0, epochs: int = 5, size: int = 32) -> Tensor:
    """[N]: the mean of -log p by an LSTM of 64 units, five epochs of Adam: small, as the data sets are."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        model = _LanguageModel(count)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        usable = [one for one in train if len(one)]
        for _ in range(epochs):
            order = torch.randperm(len(usable)).tolist()
            for first in range(0, len(order), size):
                tokens = _padded([usable[row] for row in order[first : first + size]])
                loss = model(tokens).sum() / (tokens >= 0).sum()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
    found = torch.full((len(asked),), float("nan"), dtype=torch.float64)
    order = sorted((row for row in range(len(asked)) if len(asked[row])), key=lambda row: len(asked[row]))
    with torch.no_grad():
        for first in range(0, len(order), size):
            rows = order[first : first + size]
            tokens = _padded([asked[row] for row in rows])
            found[rows] = (model(tokens).sum(1) / (tokens >= 0).sum(1)).double()
    return found


def _padded(sequences: Sequence[np.ndarray]) -> Tensor:
    longest = max(len(one) for one in sequences)
    made = np.full((len(sequences), longest), -1, dtype=np.int64)
    for row, one in enumerate(sequences):
        made[row, : len(one)] = one
    return torch.from_numpy(made)


def read_column(path: Path, count: int) -> Tensor:
    """[N]: log-likelihoods from a file with one number a line, in the order of the data."""
    try:
        lines = path.read_text(encoding="utf-8").split()
    except OSError as problem:
        raise SpecFileError(f"{path}: {(problem.strerror or str(problem)).lower()}") from problem
    try:
        values = [float(line) for line in lines]
    except ValueError as problem:
        raise EnergyError(f"{path}: expected one log-likelihood a line: {problem}") from problem
    return checked_column(values, count, str(path))


def checked_column(values: Sequence[float] | Tensor, count: int, name: str = "likelihood") -> Tensor:
    """[N]: a column of log-likelihoods, one for each example."""
    made = torch.as_tensor(values, dtype=torch.float64).flatten()
    if len(made) != count:
        raise EnergyError(f"{name}: {len(made)} log-likelihoods for {count} examples")
    return made


def spearman(one: Tensor, other: Tensor) -> float:
    """Spearman's rho: the correlation of ranks, ties at their mean; NaN where one side is constant."""
    use = one.isfinite() & other.isfinite()
    a, b = _ranks(one[use].numpy()), _ranks(other[use].numpy())
    if len(a) < 2 or a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(((a - a.mean()) * (b - b.mean())).mean() / (a.std() * b.std()))


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, times = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(times)
    ranks: np.ndarray = (ends - (times - 1) / 2)[place]
    return ranks


__all__ = ["MODELS", "bigram", "checked_column", "lstm", "perplexities", "read_column", "spearman"]
