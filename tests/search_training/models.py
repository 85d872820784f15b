"""Small sequence models in double precision, and all of their answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import energyml as em
from energyml.energy_model import EnergyModel

TAGGER = """\
dim T
labels Tag = {A, B, C}
input x : real[T, 2]
output y : Tag[T]
net d = DECODER
sequence y { step: d, given: x, normalize: NORMALIZE }
"""
TRANSLATOR = """\
dim S
dim T free <= 4
labels Tag = {A, B, stop}
input x : real[S, 2]
output y : Tag[T]
net d = DECODER
sequence y { step: d, given: x, normalize: NORMALIZE, end: stop }
"""
# Tables, a rule and a higher order beside the step network.
BESIDE = """\
param w : real[from: Tag, to: Tag]
param v : real[a: Tag, b: Tag]
factor next [t in T-1] (from: y[t], to: y[t+1]) = w
factor skip [t in T-2] (a: y[t], b: y[t+2]) = v
forbid [t in T-1] y[t] = A and y[t+1] = A
"""
LSTM = "lstm_decoder(hidden: 4, embed: 3, attention: dot)"
GRU = "lstm_decoder(hidden: 4, embed: 3, attention: aligned, cell: gru)"
TRANSFORMER = "transformer_decoder(hidden: 4, heads: 2, layers: 1)"
LENGTHS = (4, 2, 3)
STOP = 2


def tagger(normalize: str = "local", decoder: str = LSTM, beside: bool = False, seed: int = 0) -> EnergyModel:
    """Labels for each position."""
    return _made(TAGGER, normalize, decoder, beside, seed)


def translator(normalize: str = "local", decoder: str = LSTM, beside: bool = False, seed: int = 0) -> EnergyModel:
    """Labels up to an end label."""
    return _made(TRANSLATOR, normalize, decoder, beside, seed)


def _made(text: str, normalize: str, decoder: str, beside: bool, seed: int) -> EnergyModel:
    text = text.replace("NORMALIZE", normalize).replace("DECODER", decoder) + (BESIDE if beside else "")
    model = em.compile(text, seed=seed).double()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(1.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def tagged(seed: int = 0) -> dict[str, Tensor]:
    """Three examples of different lengths for `tagger`."""
    generator = torch.Generator().manual_seed(seed + 2)
    return {"x": torch.randn(3, 4, 2, generator=generator, dtype=torch.float64), "lengths": torch.tensor(LENGTHS)}


def translated(seed: int = 0) -> dict[str, object]:
    """Three examples for `translator`."""
    generator = torch.Generator().manual_seed(seed + 2)
    x = torch.randn(3, 3, 2, generator=generator, dtype=torch.float64)
    return {"x": x, "lengths": {"S": torch.tensor([3, 2, 1])}}


# Labels that no rule forbids, ragged in both models.
TAGS = torch.tensor([[0, 1, 2, 1], [2, 2, -1, -1], [1, 1, 0, -1]])
ENDED = torch.tensor([[0, 1, STOP, -1], [STOP, -1, -1, -1], [1, 1, 0, STOP]])


@dataclass(frozen=True)
class Answers:
    """All answers of each example, best first, by enumeration.

    Attributes:
        labels: [B, N, T], -1 where there is no cell.
        score: [B, N], -inf behind the last.
    """

    labels: Tensor
    score: Tensor

    def index(self, gold: Tensor) -> Tensor:
        """[B]: which answer is the gold one [B, T]."""
        return (self.labels == gold.unsqueeze(1)).all(2).long().argmax(1)

    def nll(self, gold: Tensor) -> Tensor:
        """[B]: the exact negative log-likelihood."""
        return self.score.logsumexp(1) - self.score.gather(1, self.index(gold).unsqueeze(1)).squeeze(1)

    def cost(self, gold: Tensor) -> Tensor:
        """[B, N]: the share of gold cells that an answer has wrong; behind its end it says nothing but "stop"."""
        known, said = gold.unsqueeze(1) >= 0, torch.where(self.labels < 0, STOP, self.labels)
        return ((said != gold.unsqueeze(1)) & known).sum(2).to(self.score.dtype) / known.sum(2)


def every_answer(model: EnergyModel, given: dict[str, object], count: int = 100) -> Answers:
    """All answers, each scored by itself."""
    found = model.infer(using="enumerate", **given).n_best(count)  # type: ignore[arg-type]
    return Answers(found.labels["y"], found.score.detach())
