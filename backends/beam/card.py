"""The cards of hard and relaxed beam search."""

from __future__ import annotations

from energyml.cards.card import Selection
from energyml.cards.options import Flag, Option, Real, Scheduled, Whole, Word
from energyml.plan.backend_card import BackendCard, Refusal
from energyml.plan.structure import Structure
from energyml.queries import Quality, View

_WIDTH = Option("width", Whole(), 5, "hypotheses kept at each step")


def _one_sequence(structure: Structure, selection: Selection) -> Refusal | None:
    """What can be decided from left to right: the cells of one variable along one dim."""
    serves = "`exact` serves tables of any shape, `enumerate` any small model"
    if structure.latent:
        return Refusal(f"it decides labels one after the other, and `{structure.latent[0]}` is summed out", serves)
    if len(structure.cells) != 1:
        return Refusal(f"it decides one variable from left to right, and the model has {len(structure.cells)}", serves)
    name, dims, _ = structure.cells[0]
    if len(dims) != 1:
        return Refusal(f"it decides a sequence, and `{name}` has {len(dims)} dims", serves)
    return None


def _in_groups(structure: Structure, selection: Selection) -> Refusal | None:
    if int(selection["width"]) % int(selection["diverse"]):
        return Refusal(
            f"{selection['diverse']} groups cannot share {selection['width']} hypotheses evenly",
            "let `diverse` divide `width`",
        )
    return _one_sequence(structure, selection)


CARDS = (
    BackendCard(
        "backend",
        "beam",
        "beam search from left to right",
        (
            _WIDTH,
            Option("length_penalty", Real(0), 0.0, "complete answers are ranked by score / length ^ this"),
            Option("finished", Word(("beside", "within")), "beside", "where complete answers of a free length stand"),
            Option("diverse", Whole(), 1, "groups that must differ; they divide `width`"),
            Option("diversity", Real(0), 0.5, "what a label costs that an earlier group takes at the same step"),
        ),
        1,
        implementation="energyml.backends.beam.backend:Beam",
        source="Goyal et al. 2018, algorithm 1; groups: Vijayakumar et al. 2018",
        view=View.STEP,
        answers={
            "map": Quality.LOWER,
            "n_best": Quality.LOWER,
            "log_partition": Quality.LOWER,
            "max_with_cost": Quality.LOWER,
        },
        refuses=_in_groups,
        preference=65,
    ),
    BackendCard(
        "backend",
        "greedy",
        "the best label at each step",
        (),
        0,
        implementation="energyml.backends.beam.backend:Greedy",
        view=View.STEP,
        answers={"map": Quality.LOWER, "max_with_cost": Quality.LOWER},
        refuses=_one_sequence,
        preference=90,
    ),
    BackendCard(
        "backend",
        "ancestral",
        "draws from left to right",
        (
            Option("temperature", Real(0, open_low=True), 1.0, "temperature of each step"),
            Option("nucleus", Real(0, 1), 1.0, "mass that is kept"),
            Option("top", Whole(), None, "labels that are kept"),
        ),
        0,
        implementation="energyml.backends.beam.sampling:Ancestral",
        source="Holtzman et al. 2020 (nucleus)",
        view=View.STEP,
        answers={"sample": Quality.ESTIMATE},
        refuses=_one_sequence,
        preference=85,
    ),
    BackendCard(
        "backend",
        "stochastic_beam",
        "distinct draws from left to right: a beam over perturbed scores",
        (Option("temperature", Real(0, open_low=True), 1.0, "temperature of each step"),),
        0,
        implementation="energyml.backends.beam.sampling:StochasticBeam",
        source="Kool et al. 2019, algorithm 1",
        view=View.STEP,
        answers={"sample": Quality.ESTIMATE},
        refuses=_one_sequence,
        preference=96,
    ),
    BackendCard(
        "backend",
        "best_first",
        "exact search from left to right with a bound on what is left",
        (Option("nodes", Whole(), 20_000, "prefixes of an example that may be extended"),),
        0,
        implementation="energyml.backends.beam.best_first:BestFirst",
        source="Hart et al. 1968",
        view=View.STEP,
        answers={"map": Quality.EXACT, "n_best": Quality.EXACT},
        refuses=_one_sequence,
        preference=97,
    ),
    BackendCard(
        "backend",
        "relaxed_beam",
        "a beam with a continuous top-k, which gradients flow through",
        (
            _WIDTH,
            Option("alpha", Scheduled(Real(0, open_low=True)), 1.0, "peakedness of the relaxed top-k"),
            Option("anneal", Word(("linear", "exponential")), "linear", "how a schedule of alpha moves by epoch"),
            Option("soft_backpointers", Flag(), True, "soft or hard back-pointers"),
            Option("recompute", Flag(), False, "less memory for gradients: steps are computed again"),
        ),
        1,
        implementation="energyml.backends.beam.relaxed_backend:RelaxedBeamBackend",
        source="Goyal et al. 2018, algorithms 2 and 3",
        view=View.STEP,
        answers={"soft_decode": Quality.ESTIMATE, "map": Quality.LOWER, "max_with_cost": Quality.ESTIMATE},
        refuses=_one_sequence,
        preference=95,
    ),
)
