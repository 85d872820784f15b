"""The card of inference networks, and their architectures."""

from __future__ import annotations

from energyml.cards.card import Card, Selection
from energyml.cards.groups import GroupOf
from energyml.cards.options import CardOf, Flag, Option, Real, Scheduled, Whole
from energyml.plan.backend_card import BackendCard, Refusal
from energyml.plan.structure import Structure
from energyml.queries import Quality, View

_SOURCE = "Tu & Gimpel 2019, section 4"
_HIDDEN = Option("hidden", Whole(), 100, "units of a hidden layer")
_EMBED = Option("embed", Whole(), 50, "size of the embedding of an input that the model has none for")
_REMEDY = "name a network that gives such scores: `infnet(net: NAME)`"


def _refuses(structure: Structure, selection: Selection) -> Refusal | None:
    if structure.has_field:
        return Refusal("it serves labels, and the model has a field", "`exact` and `cg` serve fields")
    if structure.free:
        return Refusal("the length is part of the answer", "a beam searches over lengths")
    if selection["net"] is not None:
        count = len(selection["net"].names)
        if selection["architecture"] is not None:
            return Refusal("`architecture` and `net` both say what the network is", "keep one of them")
        if count != len(structure.cells):
            names = ", ".join(name for name, _, _ in structure.cells)
            return Refusal(
                f"`net` names {count} network{'s' if count > 1 else ''}, and there are scores to give for {names}",
                "name one network for each, joined by `+`",
            )
        return None
    for name, dims, _ in structure.cells:
        if len(dims) != 1:
            over = f"{len(dims)} dims" if dims else "no dim"
            return Refusal(f"its architectures label sequences, and `{name}` runs over {over}", _REMEDY)
    return None


CARDS: tuple[Card, ...] = (
    BackendCard(
        "backend",
        "infnet",
        "a network trained to answer at once",
        (
            Option("architecture", CardOf("architecture"), None, "`blstm` when left out, `cnn` or `seq2seq`"),
            Option("net", GroupOf(("net",), "network"), None, "a network of the file in place of an architecture"),
            Option("plus", Flag(), False, "embedding fine-tuning, character CNN and dropout"),
            Option("weight", Scheduled(Real(0)), 1.0, "weight of the local cross-entropy while it is fitted"),
            Option("anneal", Real(0), 0.0, "the weight falls as exp(-anneal * epoch)"),
            Option("tailor", Whole(0), 0, "steps of instance tailoring"),
            Option("lr", Real(0, open_low=True), 0.1, "step size of tailoring"),
            Option("momentum", Real(0, 1), 0.9, "momentum of tailoring"),
            Option("penalty", Real(0), 10.0, "what the probability of a forbidden answer costs"),
            Option("seed", Whole(0), 0, "seed of the first weights"),
        ),
        1,
        "energyml.backends.infnet.backend:InferenceNetworks",
        _SOURCE,
        view=View.SOFT,
        answers={"map": Quality.LOWER, "soft_decode": Quality.ESTIMATE},
        refuses=_refuses,
        needs_fitting=True,
        preference=80,
    ),
    Card(
        "architecture",
        "blstm",
        "a bidirectional LSTM",
        (_HIDDEN, Option("layers", Whole(1, 2), 1, "layers"), _EMBED),
        0,
        "energyml.backends.infnet.architectures:BLSTM",
        _SOURCE,
    ),
    Card(
        "architecture",
        "cnn",
        "convolutions without pooling: windows of 1 and of `width` positions, side by side",
        (_HIDDEN, Option("width", Whole(), 3, "the larger window, odd"), _EMBED),
        0,
        "energyml.backends.infnet.architectures:CNN",
        _SOURCE,
    ),
    Card(
        "architecture",
        "seq2seq",
        "an aligned decoder that reads its own predictions",
        (_HIDDEN, _EMBED),
        0,
        "energyml.backends.infnet.architectures:Seq2Seq",
        _SOURCE,
    ),
)
