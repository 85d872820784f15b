"""The cards of samplers."""

from __future__ import annotations

from energyml.cards.card import Selection
from energyml.cards.options import Flag, Option, Real, Scheduled, Whole, Word
from energyml.plan.backend_card import BackendCard, Refusal
from energyml.plan.structure import Structure
from energyml.queries import Quality, View

_SWEEPS = Option("sweeps", Whole(), 1000, "passes over all cells that are kept")
_CHAINS = Option("chains", Whole(), 4, "independent chains")
_BURN_IN = Option("burn_in", Whole(0), 100, "sweeps that are thrown away")
_RUN = (_SWEEPS, _CHAINS, _BURN_IN)
_TEMPERATURE = Option("temperature", Real(0, open_low=True), 1.0, "temperature of the proposal")
_NUCLEUS = Option("nucleus", Real(0, 1), 1.0, "mass of the proposal that is kept")
_ORDER = Option("order", Word(("sequential", "random")), "sequential", "order of cells, each once in a sweep")
_HIDE = Option(
    "hide",
    Word(("one", "some")),
    "one",
    "from the network: each cell by itself, or all that are predicted together, as `mlm(hide: some)` trains",
)
_BLOCK = Option(
    "block",
    Word(("none", "colour", "chains")),
    "none",
    "cells drawn together: none, those of a colour, or along a variable's last dim",
)
_ENGINE = Option(
    "engine", Word(("auto", "native", "torch")), "auto", "what draws from tables: native code on the CPU, or torch"
)
_RUNGS = Option("rungs", Whole(), 8, "temperatures")
_HOTTEST = Option("hottest", Real(1), 10.0, "the highest temperature")
_SAMPLES = {"sample": Quality.ESTIMATE, "marginals": Quality.ESTIMATE}


def _labels_only(structure: Structure, selection: Selection) -> Refusal | None:
    if structure.has_field:
        return Refusal("it moves labels, and a field has none", "`nuts` samples fields")
    if not structure.cells:
        return Refusal("the model has no labels to move")
    return None


def _blocks(structure: Structure, selection: Selection) -> Refusal | None:
    refusal = _labels_only(structure, selection)
    # Colours need no tables: where any label may depend on any other, each cell is a colour of its own.
    if refusal is None and selection["block"] == "chains" and View.TABLE not in structure.views:
        return Refusal(
            f"`block: chains` needs a table from every term, and `{structure.lacking[View.TABLE]}` has none",
            "`block: none` serves it",
        )
    return refusal


def _followed(structure: Structure, selection: Selection) -> Refusal | None:
    if structure.free:
        return Refusal("it follows relaxed scores, and the length is part of the answer", "`gibbs` serves it")
    if View.TABLE not in structure.views:  # tables know all differences of scores; others need a slope
        lacking = next((view for view in (View.SOFT, View.GRAD) if view not in structure.views), None)
        if lacking is not None:
            return Refusal(
                f"it needs {lacking.value}, and `{structure.lacking[lacking]}` has none", "`gibbs` serves it"
            )
    return _labels_only(structure, selection)


def _fields_only(structure: Structure, selection: Selection) -> Refusal | None:
    if not structure.has_field:
        return Refusal("it moves real values, and the model has no field", "`gibbs` samples labels")
    if structure.cells:
        return Refusal(
            "it moves real values, and the model has labels beside them", "sample them in specs of their own"
        )
    if View.GRAD not in structure.views:
        return Refusal(f"it follows gradients, and `{structure.lacking[View.GRAD]}` has none", "`cg` solves fields")
    return None


CARDS = (
    BackendCard(
        "backend",
        "gibbs",
        "one cell at a time from its conditional, or blocks of cells",
        (*_RUN, _BLOCK, _ENGINE),
        0,
        "energyml.backends.mcmc.backend:Gibbs",
        "Geman & Geman 1984",
        view=View.CONDITIONAL,
        answers=_SAMPLES,
        refuses=_blocks,
        preference=75,
    ),
    BackendCard(
        "backend",
        "metropolis",
        "proposals from masked conditionals, accepted or rejected",
        (
            *_RUN,
            Option("block", Scheduled(Whole()), 1, "cells proposed together"),
            _TEMPERATURE,
            _NUCLEUS,
            Option("mixture", Real(0, 1), 0.0, "share of proposals from before the nucleus was cut out"),
            _ORDER,
            Option("anneal", Flag(), False, "lower the energy's temperature towards a mode (no samples)"),
            Option("anneal_by", Real(0), 0.04, "by how much a sweep lowers it, down to 0.05"),
            Option("forced", Whole(0), 0, "sweeps at the beginning that accept everything"),
            _HIDE,
        ),
        0,
        "energyml.backends.mcmc.backend:MetropolisHastings",
        "Goyal 2021, algorithm 4",
        view=View.PROPOSE,
        answers=_SAMPLES,
        refuses=_labels_only,
        preference=76,
    ),
    BackendCard(
        "backend",
        "gradient_gibbs",
        "one cell at a time, chosen by the differences of scores",
        _RUN,
        0,
        "energyml.backends.mcmc.backend:WithGradients",
        "Grathwohl et al. 2021",
        view=View.SCORE,
        answers=_SAMPLES,
        refuses=_followed,
        preference=78,
    ),
    BackendCard(
        "backend",
        "langevin",
        "all cells at once, each near its label and towards higher scores",
        (
            *_RUN,
            Option("step_size", Real(0, open_low=True), 0.5, "larger steps change more cells"),
            Option("adjusted", Flag(), True, "accept or reject; without it the draws are only near the model's"),
        ),
        0,
        "energyml.backends.mcmc.backend:Langevin",
        "Zhang, Liu & Liu 2022",
        view=View.SCORE,
        answers=_SAMPLES,
        refuses=_followed,
        preference=79,
    ),
    BackendCard(
        "backend",
        "swendsen_wang",
        "clusters of equal labels, where neighbours attract each other",
        _RUN,
        0,
        "energyml.backends.mcmc.backend:Clusters",
        "Swendsen & Wang 1987",
        view=View.TABLE,
        answers=_SAMPLES,
        refuses=_labels_only,
        preference=80,
    ),
    BackendCard(
        "backend",
        "tempering",
        "Gibbs sampling at several temperatures that exchange answers",
        (*_RUN, _BLOCK, _RUNGS, _HOTTEST, _ENGINE),
        0,
        "energyml.backends.mcmc.backend:Tempered",
        "Geyer 1991",
        view=View.CONDITIONAL,
        answers=_SAMPLES,
        refuses=_blocks,
        preference=81,
    ),
    BackendCard(
        "backend",
        "ais",
        "annealed importance sampling: log Z with its error",
        (
            Option("steps", Whole(), 200, "temperatures from uniform labels to the model"),
            Option("chains", Whole(2), 64, "independent weights"),
            _BLOCK,
            _ENGINE,
        ),
        0,
        "energyml.backends.mcmc.backend:AnnealedImportance",
        "Neal 2001",
        view=View.CONDITIONAL,
        answers={"log_partition": Quality.ESTIMATE},
        refuses=_blocks,
        preference=82,
    ),
    BackendCard(
        "backend",
        "bridge",
        "bridge sampling along a ladder of temperatures: log Z with its error",
        (_SWEEPS, _CHAINS, _BURN_IN, _BLOCK, _RUNGS, _HOTTEST, _ENGINE),
        0,
        "energyml.backends.mcmc.backend:BridgeSampling",
        "Meng & Wong 1996",
        view=View.CONDITIONAL,
        answers={"log_partition": Quality.ESTIMATE},
        refuses=_blocks,
        preference=83,
    ),
    BackendCard(
        "backend",
        "mask_predict",
        "predict all cells, then again those that the network is least sure of",
        (
            Option("rounds", Whole(), 10, "predictions"),
            Option("pick", Word(("confidence", "random")), "confidence", "which cells are predicted again"),
            _HIDE,
            Option("chains", Whole(), 1, "random starts, the best answer of which counts"),
        ),
        1,
        "energyml.backends.mcmc.backend:Predict",
        "Ghazvininejad et al. 2019",
        view=View.PROPOSE,
        answers={"map": Quality.LOWER},
        refuses=_labels_only,
        preference=98,
    ),
    BackendCard(
        "backend",
        "degenerate_gibbs",
        "masked conditionals as if they were the model's own (not a valid sampler)",
        (*_RUN, _TEMPERATURE, _NUCLEUS, _ORDER),
        0,
        "energyml.backends.mcmc.backend:Degenerate",
        "Goyal 2021, section 6.2",
        view=View.PROPOSE,
        answers={"sample": Quality.READOUT, "marginals": Quality.READOUT},
        refuses=_labels_only,
        preference=99,
    ),
    BackendCard(
        "backend",
        "nuts",
        "the no-U-turn sampler for fields",
        (Option("draws", Whole(), 1000, "kept draws"), Option("warmup", Whole(), 500, "draws that tune it"), _CHAINS),
        0,
        "energyml.backends.mcmc.nuts:Nuts",
        "Hoffman & Gelman 2014",
        view=View.SCORE,
        answers={"sample": Quality.ESTIMATE, "variance": Quality.ESTIMATE},
        refuses=_fields_only,
        preference=77,
    ),
)
