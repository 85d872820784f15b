"""Training by any objective of the product with early stopping, and exact measurements of small models."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

import energyml as em
from benchmarks.masked.generators import Language, every_string

SPEC = """\
labels Symbol = {{a, b, c, d, e}}
dim T = 5
output y : Symbol[T]
net neighbours = masked_blstm(hidden: {hidden}, embed: {embed})
masked y {{ conditionals: neighbours, energy: {energy} }}
infer enumerate
"""
# The names of Table 6.1, and what they are called here.
OBJECTIVES = {
    "LL": "nll",
    "PLL": "pseudo_likelihood",
    "MLM": "mlm",
    "KL": "kl_projection",
    "KL+PL": "kl_projection(weight: 1)",
}


def fresh(hidden: int, embed: int, seed: int, energy: str = "raw") -> em.EnergyModel:
    """A BiLSTM of masked conditionals, as an energy."""
    return em.compile(SPEC.format(hidden=hidden, embed=embed, energy=energy), seed=seed)


@dataclass
class Fitted:
    """What a run did.

    Attributes:
        steps: updates until the best validation loss.
        taken: updates in all.
        validation: that loss.
        seconds: of wall time.
        curve: (step, validation loss) at each look.
    """

    steps: int = 0
    taken: int = 0
    validation: float = float("inf")
    seconds: float = 0.0
    curve: list[tuple[int, float]] = field(default_factory=list)


Loss = Callable[[str, Sequence[int]], Tensor]


@dataclass(frozen=True)
class Settings:
    """How a model is trained.

    Attributes:
        steps: at most so many updates.
        batch: examples in a batch; epochs go through all of them in a new order.
        lr: the learning rate of Adam.
        every: updates between looks at validation.
        patience: looks without a better one before the rate is halved; after twice as many training ends.
    """

    steps: int = 1000
    batch: int = 100
    lr: float = 1e-2
    every: int = 50
    patience: int = 4


def fit(model: em.EnergyModel, loss: Loss, train: int, validation: int, settings: Settings, seed: int) -> Fitted:
    """Adam with a learning rate that is halved at plateaus; ends with the weights of the best validation loss.

    Args:
        model: trained in place.
        loss: the mean loss of some examples (their numbers) of `train` or `validation`.
        train: how many training examples there are.
        validation: how many validation examples.
        settings: of training.
        seed: of the order.
    """
    steps, batch = settings.steps, settings.batch
    began, found = time.perf_counter(), Fitted()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    best, since = copy.deepcopy(model.state_dict()), 0
    order = torch.empty(0, dtype=torch.long)
    for step in range(1, steps + 1):
        if len(order) < min(batch, train):
            order = torch.cat([order, torch.randperm(train, generator=generator)])
        some, order = order[:batch].tolist(), order[batch:]
        optimizer.zero_grad()
        loss("train", some).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        found.taken = step
        if step % settings.every == 0 or step == steps:
            with torch.no_grad():
                value = float(loss("validation", range(validation)))
            found.curve.append((step, value))
            if value < found.validation - 1e-4:
                found.validation, found.steps, since = value, step, 0
                best = copy.deepcopy(model.state_dict())
            else:
                since += 1
                if since == settings.patience:
                    for group in optimizer.param_groups:
                        group["lr"] *= 0.5
                if since >= 2 * settings.patience:
                    break
    model.load_state_dict(best)
    found.seconds = time.perf_counter() - began
    return found


def mean_loss(model: em.EnergyModel, objective: str, y: Tensor) -> Tensor:
    """The mean loss of strings ``[B, 5]``; likelihoods take log Z, which all strings share, from one enumeration."""
    if objective == "LL":
        return model.infer(using="enumerate").log_partition.squeeze(0) - model.score(y=y).mean()
    return model.loss(objective=OBJECTIVES[objective], y=y)


def fitted(
    model: em.EnergyModel, objective: str, train: Tensor, validation: Tensor, settings: Settings, seed: int
) -> Fitted:
    """Train on strings ``[B, 5]`` by an objective; it also decides when to stop."""
    parts = {"train": train, "validation": validation}

    def loss(part: str, some: Sequence[int]) -> Tensor:
        return mean_loss(model, objective, parts[part][torch.as_tensor(list(some))])

    return fit(model, loss, len(train), len(validation), settings, seed)


@torch.no_grad()
def measures(model: em.EnergyModel, language: Language) -> dict[str, float]:
    """The expected -log p, -log pseudo-likelihood and -log degenerate pseudo-likelihood of the language's strings.

    The expectation is over all strings with their true probabilities, so that no test set adds noise: the first is the
    entropy plus the divergence from the language to the model.  Cost: a score for each label of each cell of each.
    """
    strings, weight = every_string(), language.log_p.exp()

    def expected(values: Tensor) -> float:
        return float((weight * values.double()).sum())

    score = model.score(y=strings)
    log_z = model.infer(using="enumerate").log_partition
    found = {"LL": expected(log_z - score)}
    for name in ("PLL", "MLM"):
        found[name] = expected(model.loss(objective=OBJECTIVES[name], y=strings, reduction="none"))
    return found
