"""Objectives, decoders and costs: their options, and the queries that they ask of a backend."""

from __future__ import annotations

from dataclasses import dataclass

from energyml.cards.card import Card
from energyml.cards.groups import GroupOf
from energyml.cards.options import CardOf, Flag, Option, Real, Scheduled, Text, Weights, Whole, Word
from energyml.cards.pairs import LabelPairs
from energyml.queries import View


@dataclass(frozen=True)
class ObjectiveCard(Card):
    """What an objective asks.

    Attributes:
        asks: the queries that any backend may answer for it.
        alone: the option and the value with which it asks nothing, but searches or draws on its own.
        view: a view that every term must offer, where the objective looks at terms directly.
        players: whose parameters move, in turns on each batch: `infer` (those that the backend owns), `model` (the
            energy's); all at once when empty.
    """

    asks: tuple[str, ...] = ()
    view: View | None = None
    players: tuple[str, ...] = ()
    alone: tuple[str, object] | None = None


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
_SHARE = Option("normalize", Flag(), True, "divide by the labelled cells; else the margin grows with their number")
_LOCAL = (
    Option("smoothing", Real(0, 1), 0.0, "share of the local cross-entropy's target that all labels divide equally"),
    Option("entropy", Real(0), 0.0, "weight of the entropy of relaxed labels, which is pushed down"),
)
_WIDTH = Option("width", Whole(), 5, "hypotheses kept at each step")


def _objective(
    name: str,
    summary: str,
    asks: tuple[str, ...],
    *own: Option,
    source: str = "",
    implementation: str | None = None,
    view: View | None = None,
    players: tuple[str, ...] = (),
    alone: tuple[str, object] | None = None,
) -> ObjectiveCard:
    options = (*own, *STAGE_OPTIONS)
    return ObjectiveCard("objective", name, summary, options, 0, implementation, source, asks, view, players, alone)


_SCALING = "Shevchenko & Osokin 2019"
_BEAMS = "Goyal et al. 2018"
_THESIS = "Goyal 2021"
_INFNETS = "Tu & Gimpel"

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
    _objective(
        "teacher_forcing",
        "cross-entropy of each label after the gold labels before it",
        (),
        implementation="energyml.objectives.teacher_forcing:teacher_forcing",
        view=View.STEP,
    ),
    _objective(
        "self_normalized",
        "teacher forcing with an L2 penalty on the local log-normaliser",
        (),
        Option("weight", Real(0), 0.1, "weight of the penalty"),
        source="Goyal et al. 2019, section 3",
        implementation="energyml.objectives.self_normalized:self_normalized",
        view=View.STEP,
    ),
    _objective(
        "scheduled_sampling",
        "teacher forcing on a mixture of gold and own predictions",
        (),
        Option("choose", Word(("greedy", "sample")), "greedy", "how the own prediction is made"),
        Option("relax", Word(("hard", "fixed", "annealed")), "hard", "whether gradients flow through it"),
        Option("mixing", CardOf("mixing"), None, "share of gold labels by epoch; `inverse_sigmoid` when left out"),
        Option("alpha", Scheduled(Real(0, open_low=True)), 1.0, "peakedness of the relaxed prediction"),
        source=f"{_THESIS}, chapter 3",
        implementation="energyml.objectives.scheduled_sampling:scheduled_sampling",
        view=View.STEP,
    ),
    _objective(
        "direct_loss",
        "expected decomposable cost of relaxed labels, as gradient steps or a relaxed beam give them",
        ("soft_decode",),
        _COST,
        source=f"{_BEAMS}, section 2",
        implementation="energyml.objectives.direct_loss:direct_loss",
    ),
    _objective(
        "beam_hinge",
        "cost-augmented hinge on a relaxed or hard beam",
        ("soft_decode", "max_with_cost"),
        _COST,
        Option("relax", Flag(), True, "the stage's relaxed beam, or the hard beam of the footnote"),
        Option("width", Whole(), 5, "hypotheses of the hard beam"),
        source=f"{_BEAMS}, section 2.5",
        implementation="energyml.objectives.beam_hinge:beam_hinge",
        view=View.STEP,
        alone=("relax", False),
    ),
    _objective(
        "infnet_loss",
        "fits an inference network to a fixed energy: relaxed energy plus local cross-entropy",
        ("soft_decode",),
        Option("energy", Real(0), 1.0, "weight of the energy; 0 leaves the local cross-entropy: the local baseline"),
        *_LOCAL,
        source=f"{_INFNETS} 2019, section 4",
        implementation="energyml.objectives.infnet_loss:infnet_loss",
        view=View.SOFT,
        players=("infer",),
    ),
    _objective(
        "spen",
        "an energy and its inference network against each other, in turns",
        ("soft_decode",),
        Option("loss", Word(("margin", "contrastive")), "margin", "margin-rescaled hinge, or the perceptron's"),
        _COST,
        *_LOCAL,
        source=f"{_INFNETS} 2018",
        implementation="energyml.objectives.spen:spen",
        view=View.SOFT,
        players=("infer", "model"),
    ),
    _objective(
        "beam_nll",
        "log-likelihood with the normaliser summed over a beam",
        (),
        _WIDTH,
        Option("early", Flag(), True, "stop where the gold labels leave the beam"),
        source="Andor et al. 2016, section 2.3; Collins & Roark 2004",
        implementation="energyml.objectives.beam_nll:beam_nll",
        view=View.STEP,
    ),
    _objective(
        "minimum_risk",
        "expected cost over the best answers or over samples",
        ("n_best",),
        _COST,
        Option("count", Whole(), 5, "how many answers"),
        Option("over", Word(("best", "samples")), "best", "which answers"),
        Option("sharpness", Real(0, open_low=True), 1.0, "what scores are multiplied by"),
        source="Smith & Eisner 2006; Shen et al. 2016",
        implementation="energyml.objectives.minimum_risk:minimum_risk",
        alone=("over", "samples"),
    ),
    _objective(
        "distill",
        "divergence of the score of whole sequences from a teacher that is normalised at each step",
        (),
        Option("teacher", Text(), None, "the folder of a trained run; the model's own steps when left out"),
        Option("count", Whole(2), 16, "sequences that are drawn from the teacher"),
        source="Goyal et al. 2019, section 3.2; Hinton et al. 2015",
        implementation="energyml.objectives.distill:distill",
        view=View.STEP,
    ),
    _objective(
        "mlm",
        "masked-language-model training: the degenerate pseudo-likelihood",
        (),
        Option(
            "hide",
            Word(("one", "some")),
            "one",
            "each position by itself, or a random number of them at once (Ghazvininejad et al. 2019)",
        ),
        source=f"{_THESIS}, section 6.2.1",
        implementation="energyml.objectives.mlm:mlm",
        view=View.PROPOSE,
    ),
    _objective(
        "kl_projection",
        "divergence of the true conditionals from those of a frozen masked model",
        (),
        Option("teacher", Text(), None, "the folder of a trained run; the model as the stage began when left out"),
        Option("weight", Real(0), 0.0, "weight of the pseudo-likelihood that is added; the thesis uses 1"),
        source=f"{_THESIS}, section 6.2.2",
        implementation="energyml.objectives.kl_projection:kl_projection",
        view=View.PROPOSE,
    ),
    _objective(
        "nce",
        "noise-contrastive estimation: the data told apart from noise",
        (),
        Option("count", Whole(), 10, "answers of noise for each example"),
        Option("noise", Word(("uniform", "unigram", "sampler")), "unigram", "where they come from"),
        Option("loss", Word(("ranking", "binary")), "ranking", "which one is the data's, or each by itself"),
        Option("run", Text(), None, "the trained run that the sampler draws from; the model itself when left out"),
        source="Gutmann & Hyvärinen 2010; Ma & Collins 2018",
        implementation="energyml.objectives.nce:nce",
        view=View.SCORE,
    ),
    _objective(
        "contrastive_divergence",
        "gradient from a few sampler steps",
        (),
        Option("steps", Whole(), 1, "sampler steps"),
        Option("chains", Whole(), 1, "chains of each example"),
        Option("persistent", Flag(), False, "keep the chains between batches"),
        source="Hinton 2002; Tieleman 2008",
        implementation="energyml.objectives.contrastive_divergence:contrastive_divergence",
        view=View.SCORE,
    ),
    _objective(
        "score_matching",
        "slopes and curvatures of a field's score, without log Z",
        (),
        source="Hyvärinen 2005",
        implementation="energyml.objectives.score_matching:score_matching",
        view=View.QUADRATIC,
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
        "share of wrong cells, or their number",
        (Option("weights", Weights(), None, "cost of predicting a label wrongly"), _SHARE),
        1,
        source=f"{_SCALING}, eq. 8",
    ),
    Card(
        "cost",
        "confusion",
        "cost of each mistake by gold and predicted label, averaged over cells or summed",
        (
            Option("costs", LabelPairs(), summary="cost of predicting a label where another is right"),
            Option("otherwise", Real(0), 1.0, "cost of mistakes that are not listed"),
            _SHARE,
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
