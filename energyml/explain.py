"""What `energyml explain` and `energyml info` say: every stop of the road, in words and as data.  Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from energyml.driver import Compiled
from energyml.ir.ground import Instance
from energyml.ir.text import print_graph
from energyml.model.show import show_model
from energyml.plan.backend_card import BackendCard
from energyml.plan.planner import Verdict, judge, objective_refusal, plan, survey
from energyml.plan.structure import Structure, recognise
from energyml.syntax.tree import dump

Stage = Literal["tree", "model", "ir", "plan"]
STAGES: tuple[Stage, ...] = ("tree", "model", "ir", "plan")


def explain(compiled: Compiled, stage: Stage | None, sizes: Mapping[str, int]) -> str:
    """One stop of the road, or a summary of those that matter to a user."""
    match stage:
        case "tree":
            return dump(compiled.spec)
        case "model":
            return show_model(compiled.model)
        case "ir":
            return print_graph(compiled.graph).rstrip()
        case "plan":
            return explain_plan(compiled, sizes)
    return "\n\n".join(
        (
            _titled("Model", show_model(compiled.model)),
            _titled("Terms", _terms(compiled)),
            explain_plan(compiled, sizes),
        )
    )


def _titled(title: str, body: str) -> str:
    return f"{title}\n{_indented(body)}"


def _indented(body: str) -> str:
    return "\n".join(f"  {line}" if line else "" for line in body.splitlines())


def _terms(compiled: Compiled) -> str:
    lines = [line for line in print_graph(compiled.graph).splitlines() if line.startswith("term ")]
    return "\n".join(line.removeprefix("term ") for line in lines) or "none"


def structure_for(compiled: Compiled, sizes: Mapping[str, int]) -> Structure:
    """The structure, with what an instance of the given sizes adds."""
    return recognise(compiled.graph, Instance(sizes)) if sizes else compiled.structure


def explain_plan(compiled: Compiled, sizes: Mapping[str, int]) -> str:
    """Structure, the chosen backend with its cost, objectives and decoders, and a verdict on every backend."""
    structure = structure_for(compiled, sizes)
    choices = compiled.model.choices
    made = plan(structure, choices.infer)
    facts = list(structure.describe())
    if structure.order_of_elimination and not structure.is_sequence:
        facts.append(f"elimination order: {_shortened(structure.order_of_elimination)}")
    parts = [_titled("Structure", "\n".join(facts))]
    chosen = [f"{made.verdict.selection}: {made.why}", made.verdict.describe(structure)]
    method = cast("BackendCard", made.verdict.selection.card).method(structure, made.verdict.selection)
    if method is not None and made.verdict.refusal is None:
        chosen.append(f"method: {method}")
    if made.verdict.cost is not None:
        chosen.append(f"cost of log_partition for a batch of B: {made.verdict.cost.describe(structure.sizes)}")
    parts.append(_titled("Plan", "\n".join(chosen)))
    joined = [
        _joined(one, made.verdict, structure) for one in (*choices.train, *([choices.decode] if choices.decode else []))
    ]
    if joined:
        parts.append(_titled("Objectives and decoders", "\n".join(joined)))
    parts.append(_titled("Backends", "\n".join(_verdict_lines(survey(structure), structure))))
    return "\n\n".join(parts)


def _shortened(order: tuple[str, ...]) -> str:
    shown = ", ".join(order[:12])
    return f"{shown}, ... ({len(order)} cells)" if len(order) > 12 else shown


def _joined(selection: Any, main: Verdict, structure: Structure) -> str:
    own = selection["infer"] if selection.card.kind == "objective" else None
    verdict = judge(own, structure) if own is not None and own.name != "auto" else main
    refusal = objective_refusal(selection, verdict, structure)
    asks = ", ".join(selection.card.asks) or "no query"
    line = f"{selection.name} asks {asks} of {verdict.selection.name}: "
    if refusal is not None:
        return line + f"cannot: {refusal}"
    qualities = ", ".join(dict.fromkeys(verdict.answers[q].value for q in selection.card.asks)) or "yes"
    warning = (
        "; the answer is a bound, so the loss is too"
        if "bound" in qualities and selection.card.kind == "objective"
        else ""
    )
    return line + f"{qualities}{warning}" + ("" if verdict.implemented else " (no implementation in this version)")


def _verdict_lines(verdicts: list[Verdict], structure: Structure) -> list[str]:
    width = max((len(v.selection.name) for v in verdicts), default=0)
    return [f"{v.selection.name:<{width}}  {v.describe(structure)}" for v in verdicts]


def info(compiled: Compiled, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The model as plain data for tools: declarations, terms with their views, structure, choices, verdicts."""
    model, graph = compiled.model, compiled.graph
    structure = structure_for(compiled, sizes)
    choices = model.choices
    return {
        "file": compiled.source.name,
        "labels": {
            n: {"count": len(s.labels) if s.labels is not None else None, "source": s.source}
            for n, s in model.label_sets.items()
        },
        "dims": {n: {"kind": d.kind, "size": d.size, "within": d.within} for n, d in model.dims.items()},
        "inputs": {n: str(i.type) for n, i in model.inputs.items()},
        "variables": {n: {"kind": v.kind, "type": str(v.type)} for n, v in model.variables.items()},
        "nets": {n: {"card": net.selection.name, "role": net.role} for n, net in model.nets.items()},
        "params": {n: str(p.type) for n, p in model.params.items()},
        "terms": [
            {
                "name": t.name,
                "kind": t.kind,
                "domain": [str(b) for b in t.domain],
                "scope": [str(c) for c in t.scope],
                "views": sorted(view.name for view in t.views),
            }
            for t in graph.terms
        ],
        "structure": {
            "shape": structure.shape.value,
            "order": structure.order,
            "width": structure.width,
            "families": list(structure.families),
        },
        "choices": {
            "infer": str(choices.infer) if choices.infer else None,
            "decode": str(choices.decode) if choices.decode else None,
            "train": [str(stage) for stage in choices.train],
            "data": str(choices.data) if choices.data else None,
        },
        "backends": {
            v.selection.name: {
                "serves": v.serves,
                "implemented": v.implemented,
                "refusal": str(v.refusal) if v.refusal else None,
                "answers": {query: quality.value for query, quality in v.answers.items()},
            }
            for v in survey(structure)
        },
    }
