"""Rules that name labels, once the labels of a set are known: the checker has looked at those of listed sets only."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator

from energyml import errors
from energyml.diagnostics import Diagnostic, Note, join_names
from energyml.ir.graph import Forbidden, Graph, SchemeRule, Stepwise, Term
from energyml.model.schemes import SCHEMES, misfit

MOST_NAMED = 5


def broken_rules(graph: Graph, learned: Collection[str]) -> list[Diagnostic]:
    """The problems of schemes and end labels; a `forbid` that no label fits is told as a warning.

    Args:
        graph: its label sets are known.
        learned: the label sets whose labels do not stand in the spec.
    """
    found: dict[tuple[str, str], Diagnostic] = {}
    for term in graph.terms:
        for labels in {graph.variables[name].type.element for name in term.variables} & set(learned):
            for one in _of_term(graph, term, labels):
                found.setdefault((one.code, str(one.span)), one)
    return list(found.values())


def _of_term(graph: Graph, term: Term, labels: str) -> Iterator[Diagnostic]:
    declared, body = graph.label_sets[labels], term.body
    known = declared.labels or ()
    here = [Note(f"`{labels}` is declared here", declared.span)]
    match body:
        case SchemeRule(scheme=scheme):
            wrong = {label: problem for label in known if (problem := misfit(SCHEMES[scheme], label))}
            if wrong:
                first, problem = next(iter(wrong.items()))
                others = [label for label in wrong if label != first]
                more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
                beside = [Note(f"nor do {join_names(others[:MOST_NAMED], 'and')}{more}")] if others else []
                facts = {"label": first, "labels": labels, "scheme": scheme, "problem": problem}
                yield errors.diagnostic("E0320", term.span, notes=[*beside, *here], **facts)
        case Stepwise(end=str(end)) if end not in known:
            remedy = f"write `labels {labels} from data(end: '{end}')`, or list it"
            yield errors.diagnostic("E0313", term.span, notes=here, label=end, labels=labels, help=remedy)
        case Forbidden(conditions=conditions):
            for one in conditions:
                own = graph.variables[one.cell.variable].type.element == labels
                if own and one.label is not None and not any(one.matches(label) != one.negated for label in known):
                    warnings.warn(
                        f"`forbid` compares a cell with `{one.label}`, and no label of `{labels}` is like that: "
                        f"`{one}` holds for {'every' if one.negated else 'no'} label",
                        stacklevel=7,
                    )


__all__ = ["broken_rules"]
