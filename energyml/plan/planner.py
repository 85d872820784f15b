"""The capability join: queries x backends x objectives, with reasons."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from energyml import cards
from energyml.cards.card import Card, Selection
from energyml.diagnostics import Report, Span, join_names
from energyml.errors import diagnostic
from energyml.model.declared import Choices
from energyml.objectives.cards import DecoderCard, ObjectiveCard
from energyml.plan.backend_card import BackendCard, Refusal
from energyml.plan.cost import Cost
from energyml.plan.structure import Structure
from energyml.queries import Quality, View

AUTO = "auto"


@dataclass(frozen=True)
class Verdict:
    """What one backend can do for one model.

    Attributes:
        selection: the backend with its options.
        refusal: why it cannot serve the model; `None` when it can.
        implemented: whether this version can run it.
        answers: the queries it answers and their quality.
        structure: the model's.
    """

    selection: Selection
    refusal: Refusal | None
    implemented: bool
    answers: Mapping[str, Quality]
    structure: Structure

    @property
    def cost(self) -> Cost | None:
        """The cost of its main query; finding it may take an elimination order."""
        return None if self.refusal is not None else cast("BackendCard", self.selection.card).cost(self.structure)

    @property
    def serves(self) -> bool:
        """Whether it can serve the model and this version can run it."""
        return self.refusal is None and self.implemented

    def describe(self, structure: Structure) -> str:
        """One line: what it can answer, or why it cannot."""
        if self.refusal is not None:
            return f"cannot: {self.refusal}"
        by_quality: dict[Quality, list[str]] = {}
        for query, quality in self.answers.items():
            by_quality.setdefault(quality, []).append(query)
        parts = [f"{quality.value}: {', '.join(queries)}" for quality, queries in by_quality.items()]
        known = "; ".join(parts)
        return f"can answer {known}" if self.implemented else f"not in this version; it would answer {known}"


def judge(selection: Selection, structure: Structure) -> Verdict:
    """Join one backend's needs with what the model offers."""
    card = cast("BackendCard", selection.card)
    implemented = card.implementation is not None
    refusal = _refusal(selection, structure)
    if refusal is not None:
        return Verdict(selection, _with_true_advice(refusal, structure), implemented, {}, structure)
    return Verdict(selection, None, implemented, card.serving(structure)[1], structure)


def _refusal(selection: Selection, structure: Structure) -> Refusal | None:
    card = cast("BackendCard", selection.card)
    return _view_refusal(card.serving(structure)[0], structure) or card.refuses(structure, selection)


def _view_refusal(view: View, structure: Structure) -> Refusal | None:
    if view in structure.views:
        return None
    term = structure.lacking.get(view, "?")
    reason = f"it needs {view.value} from every term, and `{term}` has none"
    if view is View.QUADRATIC:
        return Refusal(reason, "use it for fields; `exact` or `enumerate` serve labels")
    return Refusal(reason, "`enumerate` serves any small model" if not structure.has_field else "`cg` serves fields")


_QUOTED = re.compile(r"`(\w+)`")
_SHOWN = 3


def _with_true_advice(refusal: Refusal, structure: Structure) -> Refusal:
    """A refusal whose alternative names only backends that serve the model; others take its place where it does not."""
    known = {card.name: card for card in cards.every("backend")}
    named = [known[name] for name in _QUOTED.findall(refusal.alternative) if name in known and name != AUTO]
    if refusal.alternative and all(_refusal(Selection(card), structure) is None for card in named):
        return refusal
    able = [card for card in known.values() if _serves_at_once(card, structure)]
    able.sort(key=lambda card: cast("BackendCard", card).preference)
    names = [card.name for card in able[:_SHOWN]]
    return Refusal(refusal.reason, f"{join_names(names)} can serve it" if names else refusal.alternative)


def _serves_at_once(card: Card, structure: Structure) -> bool:
    """Whether a backend can answer something about the model, without a training of its own."""
    at_once = card.name != AUTO and card.implementation is not None and not cast("BackendCard", card).needs_fitting
    return at_once and _refusal(Selection(card), structure) is None


def survey(structure: Structure) -> list[Verdict]:
    """A verdict on every known backend, the ones that serve first."""
    verdicts = [judge(Selection(card), structure) for card in cards.every("backend") if card.name != AUTO]
    return sorted(verdicts, key=lambda v: (not v.serves, v.refusal is not None, _preference(v)))


def candidates(structure: Structure, queries: Sequence[str]) -> list[Verdict]:
    """The backends that `auto` chooses from, the first choice first: those that can answer all queries at once."""
    serving = [verdict for verdict in survey(structure) if _serves_at_once(verdict.selection.card, structure)]
    return [verdict for verdict in serving if all(query in verdict.answers for query in queries)]


def _preference(verdict: Verdict) -> int:
    return cast("BackendCard", verdict.selection.card).preference


@dataclass(frozen=True)
class Plan:
    """The backend that will answer, and why it was chosen."""

    structure: Structure
    verdict: Verdict
    why: str


def plan(structure: Structure, selection: Selection | None, queries: Sequence[str] = ()) -> Plan:
    """Choose a backend: the one that was asked for, or by `auto` the most preferred one that answers the queries."""
    if selection is not None and selection.name != AUTO:
        return Plan(structure, judge(selection, structure), "chosen in the spec or by the caller")
    verdicts = survey(structure)
    for verdict in candidates(structure, queries):
        better = [v for v in verdicts if _preference(v) < _preference(verdict)]
        return Plan(structure, verdict, _why(verdict, better, structure))
    fallback = next((v for v in verdicts if v.refusal is None), verdicts[0])
    return Plan(structure, fallback, "no backend of this version serves the model")


def _why(verdict: Verdict, passed_over: list[Verdict], structure: Structure) -> str:
    facts = structure.describe()
    reason = (
        f"auto: {facts[0] if facts else 'no structure'}; `{verdict.selection.name}` is the first choice that serves it"
    )
    refused = [f"`{v.selection.name}`: {v.refusal.reason}" for v in passed_over if v.refusal is not None]
    return f"{reason} (not {'; not '.join(refused)})" if refused else reason


def asked(selection: Selection) -> tuple[str, ...]:
    """The queries that an objective or a decoder asks, with the options that were chosen."""
    card = cast("ObjectiveCard | DecoderCard", selection.card)
    alone = getattr(card, "alone", None)
    return () if alone is not None and selection[alone[0]] == alone[1] else card.asks


def objective_refusal(objective: Selection, verdict: Verdict, structure: Structure) -> Refusal | None:
    """Why an objective or a decoder cannot be served by a backend on this model."""
    refusal = _terms_refusal(objective, structure)
    if refusal is not None or verdict.refusal is not None:
        return refusal or verdict.refusal
    backend = cast("BackendCard", verdict.selection.card)
    if "infer" in getattr(objective.card, "players", ()) and not backend.needs_fitting:
        known = cast("list[BackendCard]", cards.every("backend"))
        owners = [f"`infer: {card.name}`" for card in known if card.needs_fitting]
        reason = f"it trains the network of a backend, and `{backend.name}` has none"
        return Refusal(reason, f"write {' or '.join(owners)} in its stage")
    missing = [query for query in asked(objective) if query not in verdict.answers]
    if not missing:
        return None
    reason = f"it asks for {', '.join(missing)}, which `{verdict.selection.name}` does not answer"
    return Refusal(reason, _who_answers(missing, structure))


def _terms_refusal(objective: Selection, structure: Structure) -> Refusal | None:
    """Why an objective that looks at the terms directly cannot, whatever the backend."""
    view = getattr(objective.card, "view", None)
    if view is View.PROPOSE and "masked" not in structure.families:
        reason = "it trains masked conditionals, and the model has no `masked` score"
        return Refusal(reason, "`pseudo_likelihood` takes the conditionals of any other")
    if view is None or view in structure.views:
        return None
    return Refusal(f"it needs {view.value} from every term, and `{structure.lacking.get(view, '?')}` has none")


def _able(queries: Sequence[str], structure: Structure) -> list[str]:
    """The backends that could serve the model and answer the queries, whether or not this version can run them."""
    return [v.selection.name for v in survey(structure) if v.refusal is None and all(q in v.answers for q in queries)]


def _who_answers(queries: Sequence[str], structure: Structure) -> str:
    able = _able(queries, structure)
    return f"{join_names(able[:3])} can answer it" if able else "no backend answers it for this model"


# --------------------------------------------------------------------------------------------------- the file's choices


def check_choices(choices: Choices, structure: Structure, report: Report) -> None:
    """Report the file's own choices that cannot work together; what only lacks an implementation is not a mistake."""
    main = _judged(choices.infer, structure)
    if main is not None and main.refusal is not None:
        _refused_backend(report, main, choices.spans.get("infer"))
    for number, stage in enumerate(choices.train):
        own = stage["infer"]
        verdict = main if own is None else _judged(own, structure)
        if own is not None and verdict is not None and verdict.refusal is not None:
            _refused_backend(report, verdict, choices.spans.get(f"train.{number}.infer"))
            continue
        refusal = _refused_objective(stage, verdict, structure)
        if refusal is not None:
            at = choices.spans.get(f"train.{number}")
            report.add(diagnostic("E0410", at, help=refusal.alternative, objective=stage.name, reason=refusal.reason))
    refusal = _refused_objective(choices.decode, main, structure) if choices.decode is not None else None
    if choices.decode is not None and refusal is not None:
        report.add(
            diagnostic(
                "E0412",
                choices.spans.get("decode"),
                help=refusal.alternative,
                decoder=choices.decode.name,
                reason=refusal.reason,
            )
        )


def _judged(selection: Selection | None, structure: Structure) -> Verdict | None:
    """The verdict on a backend that is named; `None` where the planner is free to choose."""
    return None if selection is None or selection.name == AUTO else judge(selection, structure)


def _refused_backend(report: Report, verdict: Verdict, span: Span | None) -> None:
    assert verdict.refusal is not None
    report.add(
        diagnostic(
            "E0409",
            span,
            help=verdict.refusal.alternative,
            backend=verdict.selection.name,
            reason=verdict.refusal.reason,
        )
    )


def _refused_objective(objective: Selection, verdict: Verdict | None, structure: Structure) -> Refusal | None:
    """Why an objective cannot be served; a backend that is refused was reported, so only the terms count then."""
    if verdict is not None and verdict.refusal is None:
        return objective_refusal(objective, verdict, structure)
    refusal = _terms_refusal(objective, structure)
    if refusal is None and verdict is None and not _able(asked(objective), structure):
        return Refusal(f"it asks for {', '.join(asked(objective))}, which no backend answers for this model")
    return refusal
