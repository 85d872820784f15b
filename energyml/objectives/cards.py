"""Objectives, decoders and costs: their options, and the queries that they ask of a backend."""

from __future__ import annotations

from dataclasses import dataclass

from energyml.cards.card import Card
from energyml.cards.groups import GroupOf
from energyml.cards.options import CardOf, Flag, Option, Real, Scheduled, Weights, Whole, Word
from energyml.cards.pairs import LabelPairs
from energyml.queries import View


@dataclass(frozen=True)
class ObjectiveCard(Card):
    """What an objective asks.

    Attributes:
        asks: the queries that any backend may answer for it.
        view: a view that every term must offer, where the objective looks at terms directly.
    """

    asks: tuple[str, ...] = ()
    view: View | None = None


@dataclass(frozen=True)
class DecoderCard(Card):
    """What a decoder asks."""

    asks: tuple[str, ...] = ()


STAGE_OPTIONS: tuple[Option, ...] = (
    Option("epochs", Whole(), 20, "passes over the training data"),
    Option("batch", Whole(), 32, "examples in a batch"),
    Option("optimizer", CardOf("optimizer"), None, "how parameters move"),
    Option("stop", CardOf("stop"), None, "when to stop before the last epoch"),
    Option("balance", CardOf("balance"), None, "how groups of terms are scaled against each other"),
    Option("infer", CardOf("backend"), None, "the backend of this stage; the file's own when left out"),
    Option("clip", Real(0, open_low=True), None, "largest gradient norm"),
    Option("seed", Whole(0), 0, "seed of all random choices"),
    Option("reduction", Word(("cell", "example", "sum")), None, "what the loss is averaged over"),
    Option("procedure", CardOf("procedure"), None, "which parameters move when; `joint` when left out"),
    Option("only", GroupOf(("net", "param"), "network or parameter"), None, "what moves; all when left out"),
    Option("without", GroupOf(("term",), "term"), None, "terms that are left out of the score"),
)
_COST = Option("cost", CardOf("cost"), None, "the decomposable cost; normalised Hamming when left out")
_WIDTH = Option("width", Whole(), 5, "hypotheses kept at each step")
_ALPHA = Option("alpha", Scheduled(Real(0, open_low=True)), 1.0, "peakedness of the relaxed top-k")


def _objective(
    name: str,
    summary: str,
    asks: tuple[str, ...],
    *own: Option,
    source: str = "",
    implementation: str | None = None,
    view: View | None = None,
) -> ObjectiveCard:
    return ObjectiveCard("objective", name, summary, (*own, *STAGE_OPTIONS), 0, implementation, source, asks, view)


_SCALING = "Shevchenko & Osokin 2019"
_BEAMS = "Goyal et al. 2018"
_THESIS = "Goyal 2021"

CARDS: tuple[Card, ...] = (
    _objective(
        "nll",
        "negative log-likelihood, -log p(y | x)",
        ("log_partition",),
        source=f"{_SCALING}, eq. 4",
        implementation="energyml.objectives.nll:nll",
    ),
    _objective(
        "marginal_ce",
        "cross-entropy of each cell's marginal",
        ("marginals",),
        source=f"{_SCALING}, eq. 5",
        implementation="energyml.objectives.marginal_ce:marginal_ce",
    ),
    _objective(
        "ssvm",
        "structured hinge loss with a decomposable cost",
        ("max_with_cost",),
        _COST,
        source=f"{_SCALING}, eq. 7-8",
        implementation="energyml.objectives.ssvm:ssvm",
    ),
    _objective(
        "softmax_margin",
        "log-likelihood with cost-augmented scores",
        ("log_prob_with_cost",),
        _COST,
        source="Gimpel & Smith 2010",
        implementation="energyml.objectives.softmax_margin:softmax_margin",
    ),
    _objective(
        "pseudo_likelihood",
        "each cell given all others",
        (),
        source="Besag 1975",
        implementation="energyml.objectives.pseudo_likelihood:pseudo_likelihood",
        view=View.CONDITIONAL,
    ),
    _objective("teacher_forcing", "log-likelihood of a locally normalised sequence score", (), view=View.STEP),
    _objective(
        "self_normalized",
        "teacher forcing with an L2 penalty on the local log-normaliser",
        (),
        Option("weight", Real(0), 0.1, "weight of the penalty"),
        source="Goyal et al. 2019, section 3",
        view=View.STEP,
    ),
    _objective(
        "scheduled_sampling",
        "teacher forcing on a mixture of gold and own predictions",
        (),
        Option("choose", Word(("greedy", "sample")), "greedy", "how the own prediction is made"),
        Option("relax", Word(("hard", "fixed", "annealed")), "hard", "whether gradients flow through it"),
        Option("mixing", CardOf("mixing"), None, "share of gold tokens by epoch"),
        _ALPHA,
        source=f"{_THESIS}, chapter 3",
        view=View.STEP,
    ),
    _objective(
        "direct_loss",
        "expected decomposable cost of relaxed labels, as a relaxed beam gives them",
        ("soft_decode",),
        _COST,
        source=f"{_BEAMS}, section 2",
    ),
    _objective(
        "beam_hinge",
        "cost-augmented hinge on a relaxed or hard beam",
        ("soft_decode",),
        _COST,
        Option("relax", Flag(), True, "soft beam, or the hard beam of the footnote"),
        source=f"{_BEAMS}, section 2.5",
    ),
    _objective("beam_nll", "log-likelihood with the normaliser summed over a beam", ("n_best",), _WIDTH),
    _objective("minimum_risk", "expected cost over the best answers or over samples", ("n_best",), _COST),
    _objective(
        "mlm",
        "masked-language-model training: the degenerate pseudo-likelihood",
        (),
        source=f"{_THESIS}, chapter 6",
        view=View.PROPOSE,
    ),
    _objective(
        "kl_projection",
        "projection of a masked model onto its own Gibbs chain",
        ("sample",),
        source=f"{_THESIS}, section 6.1",
        view=View.PROPOSE,
    ),
    _objective("nce", "noise-contrastive estimation", ("sample",)),
    _objective(
        "contrastive_divergence",
        "gradient from a few sampler steps",
        ("sample",),
        Option("steps", Whole(), 1, "sampler steps"),
        Option("persistent", Flag(), False, "keep the chains between batches"),
    ),
    DecoderCard("decoder", "map", "the best answer", asks=("map",)),
    DecoderCard("decoder", "marginal_argmax", "the most probable label of each cell", asks=("marginals",)),
    DecoderCard("decoder", "sample", "draws", (Option("count", Whole(), 1, "how many"),), 1, asks=("sample",)),
    DecoderCard(
        "decoder", "n_best", "the best answers", (Option("count", Whole(), 5, "how many"),), 1, asks=("n_best",)
    ),
    DecoderCard("decoder", "mode", "the best value of a field, and its read-out", asks=("mode",)),
    Card(
        "cost",
        "hamming",
        "share of wrong cells",
        (Option("weights", Weights(), None, "cost of predicting a label wrongly"),),
        1,
        source=f"{_SCALING}, eq. 8",
    ),
    Card(
        "cost",
        "confusion",
        "cost of each mistake by gold and predicted label, averaged over cells",
        (
            Option("costs", LabelPairs(), summary="cost of predicting a label where another is right"),
            Option("otherwise", Real(0), 1.0, "cost of mistakes that are not listed"),
        ),
        1,
    ),
    Card("mixing", "always", "always the own prediction"),
    Card("mixing", "inverse_sigmoid", "k / (k + exp(epoch / k))", (Option("k", Real(1), 10.0, "how slowly"),), 1),
    Card("mixing", "exponential", "k ^ epoch", (Option("k", Real(0, 1), 0.9, "base"),), 1),
    Card(
        "mixing",
        "linear",
        "first -> last over the epochs",
        (Option("share", Scheduled(Real(0, 1)), 1.0, "share of gold tokens"),),
        1,
    ),
)
