"""Certificates: how far an answer can be from the best one, and between which bounds log Z lies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from energyml.bind.problem import Problem
from energyml.diagnostics import QueryRefused
from energyml.posterior import Posterior
from energyml.queries import Quality
from energyml.result import Assignment

if TYPE_CHECKING:
    from energyml.energy_model import EnergyModel

# Who is asked for an upper bound of the best score, in this order: whoever is exact at little cost, else the dual.
CHEAP = ("exact(memory: 64)", "enumerate(limit: 4096)")
BEST = (*CHEAP, "dual")
LOWER, UPPER = ("mean_field",), ("trw",)


@dataclass(frozen=True, eq=False, repr=False)
class Certificate:
    """What is known for certain about an answer.

    Attributes:
        score: [B] of the answer; where latents are summed out, possibly a lower bound of it.
        bound: [B], no answer has a larger score.
        gap: [B] = bound - score: how far the answer can be from the best one; inf where the answer is forbidden.
        log_partition: a lower and an upper bound [B] of log Z; `None` where nobody gives one.
        method: the backend that gave the bound.
    """

    score: Tensor
    bound: Tensor
    gap: Tensor
    log_partition: tuple[Tensor | None, Tensor | None]
    method: str

    @property
    def proven(self) -> Tensor:
        """[B]: whether the answer is provably best, but for rounding."""
        return self.gap <= rounding(self.bound)

    def describe(self, example: int = 0) -> str:
        """One example in words."""
        gap, bound = float(self.gap[example]), float(self.bound[example])
        if bound == float("-inf"):
            return f"no answer is possible (by {self.method})"
        if gap == float("inf"):
            return f"the answer is forbidden; the best score is at most {_up(bound, 4)} (by {self.method})"
        if bool(self.proven[example]):
            return f"the best possible, with score {float(self.score[example]):.4g} (by {self.method})"
        known = f"score {float(self.score[example]):.4g}, bound {_up(bound, 4)}"
        return f"at most {_up(gap, 2)} from the best possible: {known} (by {self.method})"

    def __repr__(self) -> str:
        count = len(self.gap)
        if count == 0:
            return f"Certificate(no examples, by {self.method})"
        if count == 1:
            text = self.describe()
        else:
            largest = float(self.gap.max())
            best = int(self.proven.sum())
            text = f"{best} of {count} answers are the best possible"
            if best < count:
                text += f", all are at most {_up(largest, 2)} from it"
            text += f" (by {self.method})"
        lower, upper = self.log_partition
        if lower is not None and upper is not None:
            width = (upper - lower).nan_to_num(0.0)
            if bool((width <= rounding(upper)).all()):
                text += "; log Z exact"
            elif count == 1:
                text += f"; log Z within [{_down(float(lower), 4)}, {_up(float(upper), 4)}]"
            else:
                text += f"; log Z within {_up(float(width.max()), 2)}"
        return f"Certificate({text})"


def _up(value: float, digits: int) -> str:
    """A number with some significant digits, rounded upwards: what it bounds stays bounded."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    step = 10.0**-places
    text = f"{math.ceil(value / step) * step:.{max(0, places)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _down(value: float, digits: int) -> str:
    """The same, rounded downwards."""
    text = _up(-value, digits)
    return text[1:] if text.startswith("-") else f"-{text}"


def rounding(values: Tensor) -> Tensor:
    """What floating-point sums of this size may be off by."""
    share = 1e-9 if values.dtype == torch.float64 else 1e-5
    return share * values.abs().nan_to_num(0.0, 0.0, 0.0).clamp(min=1)


def certify(
    posterior: Posterior,
    answer: Mapping[str, Tensor] | Assignment | None = None,
    *,
    using: str | None = None,
    log_partition: bool = True,
) -> Certificate:
    """A certificate for an answer; arguments as in `Posterior.certificate`."""
    problem = posterior.problem
    if problem.graph.fields:
        raise QueryRefused("certificates are about labels, and the model has a field; its mode is exact by `exact`")
    with torch.no_grad():
        score = _own_score(posterior) if answer is None else _score(posterior, answer)
        method, bound = _best_bound(posterior, using)
        lower, upper = (_log_z(posterior, upper) if log_partition else None for upper in (False, True))
        bound = torch.maximum(bound, score)  # an answer's own score is a bound of rounding
        if upper is not None:
            bound = torch.minimum(bound, torch.maximum(upper, score))
        if lower is not None:
            lower = torch.maximum(lower, score)
        gap = torch.where(bound.isneginf(), 0.0, bound - score)
    return Certificate(score, bound, gap, (lower, upper), method)


# ------------------------------------------------------------------------------------------------------------- scores


def _own_score(posterior: Posterior) -> Tensor:
    if "map" not in posterior.answers:
        raise QueryRefused(f"`{posterior.backend}` does not answer `map`; pass the answer that is to be certified")
    score: Tensor = posterior.ask("map").value.score
    return score


def _score(posterior: Posterior, answer: Mapping[str, Tensor] | Assignment) -> Tensor:
    """[B]: the score of labels [B, *dims] of every output under the evidence."""
    problem = posterior.problem
    labels = answer.labels if isinstance(answer, Assignment) else answer
    outputs = [v.name for v in problem.graph.discrete if v.kind != "latent"]
    missing = [name for name in outputs if name not in labels]
    if missing:
        raise QueryRefused(f"a certificate needs a label for every cell, and the answer has none for `{missing[0]}`")
    checked = problem.answers.labels({name: labels[name] for name in outputs}, problem.env.batch)
    if len(outputs) < len(problem.graph.discrete):
        agreeing = replace(problem, evidence=problem.known(checked))
        summed = _first(agreeing, (*CHEAP, *LOWER), ("log_partition",), (Quality.EXACT, Quality.LOWER))
        if isinstance(summed, list):
            raise QueryRefused(f"the latents of this answer cannot be summed out: {'; '.join(summed)}")
        return summed[1]
    score = problem.score(checked)
    for name, one in checked.items():
        cells = problem.env.batch.cells(name, problem.graph.variables[name].dims)
        wrong = one < 0
        allowed = problem.evidence.allowed.get(name)
        if allowed is not None:
            wrong = wrong | ~allowed.gather(-1, one.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        if cells is not None:
            wrong = wrong & cells
        # A length that is part of the answer leaves cells behind its end without labels.
        if not any(problem.graph.dims[dim].kind == "free" for dim in problem.graph.variables[name].dims):
            score = score.masked_fill(wrong.reshape(len(score), -1).any(1), float("-inf"))
    return score


# ------------------------------------------------------------------------------------------------------------- bounds


def _best_bound(posterior: Posterior, using: str | None) -> tuple[str, Tensor]:
    """Who bounds the best score from above, and the bound [B]."""
    if using is None and posterior.answers.get("map") is Quality.EXACT:
        result = posterior.ask("map")
        if result.quality is Quality.EXACT:
            return posterior.backend, result.value.score
    if using is None and "map_bound" in posterior.answers:
        return posterior.backend, posterior.ask("map_bound").value
    choices = BEST if using is None else (using,)
    found = _first(posterior.problem, choices, ("map_bound", "map", "log_partition"), (Quality.EXACT, Quality.UPPER))
    if isinstance(found, list):
        raise QueryRefused(f"no upper bound of the best score: {'; '.join(found)}")
    return found


def _log_z(posterior: Posterior, upper: bool) -> Tensor | None:
    """[B]: a bound of log Z: exact where that costs little, else the posterior's own; `None` where nobody has one."""
    wanted = (Quality.EXACT, Quality.UPPER if upper else Quality.LOWER)
    own = posterior.answers.get("log_partition")
    if own is not Quality.EXACT:
        found = _first(posterior.problem, CHEAP, ("log_partition",), wanted)
        if not isinstance(found, list):
            return found[1]
    if own in wanted:
        value: Tensor = posterior.ask("log_partition").value
        return value
    found = _first(posterior.problem, UPPER if upper else LOWER, ("log_partition",), wanted)
    return None if isinstance(found, list) else found[1]


def _first(
    problem: Problem, choices: Sequence[str], kinds: Sequence[str], qualities: Sequence[Quality]
) -> tuple[str, Tensor] | list[str]:
    """The first backend that answers one of the queries at one of the qualities, with its value [B]; else reasons."""
    model = cast("EnergyModel", problem.env.module)
    reasons = []
    for using in choices:
        verdict = model.plan(using).verdict
        name = verdict.selection.name
        if not verdict.serves:
            reasons.append(f"`{name}`: {verdict.refusal or 'not in this version'}")
            continue
        kind = next((kind for kind in kinds if verdict.answers.get(kind) in qualities), None)
        if kind is None:
            reasons.append(f"`{name}` gives none")
            continue
        try:
            backend, verdict = model.prepared(using)
            result = Posterior(backend.open(problem), verdict, problem).ask(kind)
        except QueryRefused as refusal:
            reasons.append(str(refusal))
            continue
        if result.quality in qualities:
            return name, result.value.score if isinstance(result.value, Assignment) else result.value
        reasons.append(f"`{name}` gives none: {result.status.message}")
    return reasons


__all__ = ["Certificate", "certify", "rounding"]
