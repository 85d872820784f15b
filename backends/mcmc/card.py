"""The cards of samplers."""

from __future__ import annotations

from energyml.cards.card import Selection
from energyml.cards.options import Flag, Option, Real, Scheduled, Whole, Word
from energyml.plan.backend_card import BackendCard, Refusal
from energyml.plan.structure import Structure
from energyml.queries import Quality, View

_SWEEPS = Option("sweeps", Whole(), 1000, "passes over all cells")
_CHAINS = Option("chains", Whole(), 4, "independent chains")
_BURN_IN = Option("burn_in", Whole(0), 100, "sweeps that are thrown away")
_SAMPLES = {"sample": Quality.ESTIMATE, "marginals": Quality.ESTIMATE}


def _labels_only(structure: Structure, selection: Selection) -> Refusal | None:
    return Refusal("it moves labels, and a field has none", "`nuts` samples fields") if structure.has_field else None


def _fields_only(structure: Structure, selection: Selection) -> Refusal | None:
    if not structure.has_field:
        return Refusal("it moves real values, and the model has no field", "`gibbs` samples labels")
    if View.GRAD not in structure.views:
        return Refusal(f"it follows gradients, and `{structure.lacking[View.GRAD]}` has none", "`cg` solves fields")
    return None


CARDS = (
    BackendCard(
        "backend",
        "gibbs",
        "one cell at a time from its conditional",
        (
            _SWEEPS,
            _CHAINS,
            _BURN_IN,
            Option("block", Word(("none", "colour", "chains")), "none", "cells drawn together"),
        ),
        0,
        view=View.CONDITIONAL,
        answers=_SAMPLES,
        refuses=_labels_only,
        preference=75,
    ),
    BackendCard(
        "backend",
        "metropolis",
        "proposals from masked conditionals, accepted or rejected",
        (
            _SWEEPS,
            _CHAINS,
            _BURN_IN,
            Option("block", Scheduled(Whole()), 1, "cells proposed together"),
            Option("temperature", Real(0, open_low=True), 1.0, "temperature of the proposal"),
            Option("nucleus", Real(0, 1), 1.0, "mass of the proposal that is kept"),
            Option("anneal", Flag(), False, "lower the energy's temperature towards a mode"),
        ),
        0,
        source="Goyal 2021, algorithm 4",
        view=View.PROPOSE,
        answers=_SAMPLES,
        refuses=_labels_only,
        preference=76,
    ),
    BackendCard(
        "backend",
        "degenerate_gibbs",
        "masked conditionals as if they were the model's own (not a valid sampler)",
        (_SWEEPS, _CHAINS, _BURN_IN),
        0,
        source="Goyal 2021, section 6.2",
        view=View.PROPOSE,
        answers=_SAMPLES,
        refuses=_labels_only,
        preference=99,
    ),
    BackendCard(
        "backend",
        "nuts",
        "the no-U-turn sampler for fields",
        (Option("draws", Whole(), 1000, "kept draws"), Option("warmup", Whole(), 500, "draws that tune it"), _CHAINS),
        0,
        view=View.SCORE,
        answers={"sample": Quality.ESTIMATE, "variance": Quality.ESTIMATE},
        refuses=_fields_only,
        preference=77,
    ),
)
