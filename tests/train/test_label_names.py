"""Weights carry the names of what they run along: they are put in order by name, or refused."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import energyml as em
from energyml.bind.weights import stored_names
from energyml.data import load_data
from energyml.diagnostics import QueryRefused, Source
from energyml.driver import compile_source
from energyml.train.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from energyml.train.evaluate import evaluate
from energyml.train.loop import Trainer
from energyml.train.run import Request, train

torch.set_num_threads(1)

PLAIN = """
labels Tag from data
dim T = 3
output y : Tag[T]
param u : real[Tag]
param W : real[from: Tag, to: Tag]
factor one [t in T] (y[t]) = u
factor pair [t in T-1] (from: y[t], to: y[t+1]) = W
"""
STEP = """
labels Word from data
labels Tag from data
dim S
dim T free <= 3
input word : Word[S]
output y : Tag[T]
net encoder = blstm(hidden: 2, embed: 2)
net decoder = lstm_decoder(hidden: 4, embed: 2)
sequence y { step: decoder, given: encoder(word), normalize: local, end: 'c' }
"""
NETWORK = """
labels Word from data
labels Tag from data
dim T
input word : Word[T]
output y : Tag[T]
net f = {net}
param W : real[from: Tag, to: Tag]
chain y {{ unary: f(word), pair: W }}
"""


def bound(spec: str, labels: str = "abc", words: str = "xyz", seed: int = 0) -> em.EnergyModel:
    """A model whose label sets have single letters as labels."""
    sets = {"Tag": list(labels), "Word": list(words)}
    return em.compile(
        spec, labels={name: one for name, one in sets.items() if f"labels {name} from" in spec}, seed=seed
    )


def scores(model: em.EnergyModel) -> dict[tuple[str, ...], float]:
    """The score of every answer of three cells, by the names of its labels."""
    labels = model.graph.label_sets["Tag"].labels or ()
    answers = list(itertools.product(range(len(labels)), repeat=3))
    found = model.score(y=torch.tensor(answers)).tolist()
    return {tuple(labels[one] for one in answer): score for answer, score in zip(answers, found, strict=True)}


def by_pickle(weights: dict[str, Any]) -> dict[str, Any]:
    stream = io.BytesIO()
    torch.save(weights, stream)
    stream.seek(0)
    found: dict[str, Any] = torch.load(stream, weights_only=True)
    return found


def by_safetensors(weights: dict[str, Any]) -> dict[str, Any]:
    return dict(safetensors.torch.load(safetensors.torch.save(weights)))


WAYS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "memory": dict,
    "torch.save": by_pickle,
    "safetensors": by_safetensors,
    "another type": lambda weights: {name: one.double() for name, one in weights.items()},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("strict", [True, False])
def test_parameters_are_put_in_order_by_name(way: str, strict: bool) -> None:
    trained, other = bound(PLAIN), bound(PLAIN, "cab", seed=1)
    other.load_state_dict(WAYS[way](trained.state_dict()), strict=strict)
    assert scores(other) == pytest.approx(scores(trained))


@pytest.mark.parametrize("assign", [True, False])
def test_the_same_labels_load_as_they_are(assign: bool) -> None:
    trained, other = bound(PLAIN), bound(PLAIN, seed=1)
    other.load_state_dict(trained.state_dict(), assign=assign)
    assert torch.equal(trained.W, other.W) and torch.equal(trained.u, other.u)
    other.load_state_dict(bound(PLAIN, "bca", seed=2).state_dict(), assign=assign)
    assert scores(other) == pytest.approx(scores(bound(PLAIN, "bca", seed=2)))


def test_a_checkpoint_carries_the_names(tmp_path: Path) -> None:
    trained, other = bound(PLAIN), bound(PLAIN, "bca", seed=1)
    tensors = {f"model.{name}": one for name, one in trained.state_dict().items()}
    write_checkpoint(tmp_path / "one.safetensors", Checkpoint(tensors, {}))
    other.load_state_dict(read_checkpoint(tmp_path / "one.safetensors").part("model"))
    assert scores(other) == pytest.approx(scores(trained))


def test_a_model_inside_of_another_module_is_put_in_order_too() -> None:
    class Outer(nn.Module):
        def __init__(self, model: em.EnergyModel) -> None:
            super().__init__()
            self.tagger = model

    trained, other = Outer(bound(PLAIN)), Outer(bound(PLAIN, "cab", seed=1))
    other.load_state_dict(trained.state_dict())
    assert scores(other.tagger) == pytest.approx(scores(trained.tagger))
    bare = {name: one for name, one in trained.state_dict().items() if not name.endswith("_extra_state")}
    with pytest.warns(UserWarning, match="cannot be checked"), pytest.raises(RuntimeError, match="_extra_state"):
        other.load_state_dict(bare)


def test_axes_are_matched_by_role() -> None:
    trained = bound(PLAIN)
    turned = bound(PLAIN.replace("real[from: Tag, to: Tag]", "real[to: Tag, from: Tag]"), "cab", seed=1)
    turned.load_state_dict(trained.state_dict())
    assert scores(turned) == pytest.approx(scores(trained))


def test_axes_are_matched_by_their_label_sets_where_these_differ() -> None:
    spec = """
    labels A = {a, b}
    labels B = {c, d, e}
    output y : A
    output z : B
    param W : real[A, B]
    factor both (y, z) = W
    """
    trained = em.compile(spec, seed=0)
    turned = em.compile(spec.replace("[A, B]", "[right: B, left: A]"), seed=1)
    turned.load_state_dict(trained.state_dict())
    assert torch.equal(turned.W, trained.W.T)


def test_roles_that_were_renamed_are_refused() -> None:
    renamed = PLAIN.replace("from: Tag, to: Tag", "left: Tag, right: Tag").replace(
        "from: y[t], to:", "left: y[t], right:"
    )
    with pytest.raises(ValueError, match=r"E0516.*`W`: .*the axes \[from: Tag, to: Tag\]"):
        bound(renamed).load_state_dict(bound(PLAIN).state_dict())


def test_other_labels_are_refused_by_name() -> None:
    weights = bound(PLAIN).state_dict()
    for labels, told in (("abd", "they have `c`, which `Tag` lacks; they lack `d`"), ("abcd", "they lack `d`")):
        for strict in (True, False):
            model = bound(PLAIN, labels, seed=1)
            before = scores(model)
            with pytest.raises(
                em.EnergyError, match=rf"E0516.*`u`: its weights were stored for other labels: {told}"
            ) as no:
                model.load_state_dict(weights, strict=strict)
            assert "labels={'Tag': ['a', 'b', 'c']}" in str(no.value)
            assert scores(model) == before
    with pytest.raises(em.EnergyError, match=r"declare the labels of the weights in their order"):
        em.compile(PLAIN.replace("from data", "= {a, b}")).load_state_dict(weights)


@pytest.mark.parametrize(
    "net", ["embedding(out: Tag)", "blstm(out: Tag, hidden: 2, embed: 2)", "cnn1d(out: Tag, hidden: 2)"]
)
def test_networks_load_only_where_labels_have_the_same_order(net: str) -> None:
    spec = NETWORK.format(net=net)
    trained = bound(spec)
    weights = trained.state_dict()
    same = bound(spec, seed=1)
    same.load_state_dict(weights)
    word = torch.tensor([[0, 2, 1]])
    assert torch.equal(same.infer(word=word).log_partition, trained.infer(word=word).log_partition)
    for changes, name in (({"labels": "cab"}, "Tag"), ({"words": "yxz"}, "Word")):
        with pytest.raises(em.EnergyError, match=rf"E0516.*`f`: its weights were stored for another order.*`{name}`"):
            bound(spec, **changes).load_state_dict(weights)
        without = {key: one for key, one in weights.items() if not key.startswith("f.")}
        other = bound(spec, **changes, seed=1)
        other.load_state_dict(without, strict=False)
        order = [list("abc").index(label) for label in other.graph.label_sets["Tag"].labels or ()]
        assert torch.equal(other.W, trained.W[order][:, order])


def test_a_network_with_its_roles_swapped_is_refused() -> None:
    spec = NETWORK.format(net="linear(out: [from: Tag, to: Tag])").replace(
        "chain y { unary: f(word), pair: W }", "factor pair [t in T-1] (from: y[t], to: y[t+1]) = f(word)[t] + W"
    )
    with pytest.raises(
        em.EnergyError, match=r"E0516.*`f`: .*roles \[Word, from: Tag, to: Tag\].*\[Word, to: Tag, from"
    ):
        bound(spec.replace("[from: Tag, to: Tag]", "[to: Tag, from: Tag]")).load_state_dict(bound(spec).state_dict())


def test_step_networks_load_only_where_labels_have_the_same_order() -> None:
    weights = bound(STEP).state_dict()
    bound(STEP, seed=1).load_state_dict(weights)
    with pytest.raises(em.EnergyError, match=r"E0516.*`decoder`: .*another order of the labels of `Tag`"):
        bound(STEP, "bac").load_state_dict(weights)
    with pytest.raises(em.EnergyError, match=r"E0516.*`encoder`: .*another order of the labels of `Word`"):
        bound(STEP, words="yxz").load_state_dict(weights)


def test_inference_networks_load_only_where_labels_have_the_same_order() -> None:
    spec = (
        NETWORK.format(net="embedding(out: Tag)").replace("f(word)", "u").replace("net f = embedding(out: Tag)\n", "")
    )
    spec = spec.replace("input word", "input u : real[T, Tag]\ninput word")
    trained = bound(spec)
    trained.inference_module("infnet(cnn(hidden: 2))")
    bound(spec, seed=1).load_state_dict(trained.state_dict())
    with pytest.raises(em.EnergyError, match=r"E0516.*`infer`: .*another order of the labels of `Tag`"):
        bound(spec, "cab").load_state_dict(trained.state_dict())


def test_fixed_inputs_are_put_in_order_and_renumbered() -> None:
    spec = """
    labels Tag from data
    dim T = 3
    input u : real[T, Tag]
    input known : Tag[T]
    output y : Tag[T]
    param W : real[given: Tag, own: Tag]
    net f = embedding(out: Tag)
    factor one [t in T] (y[t]) = u[t]
    factor two [t in T] (y[t]) = f(known)[t]
    """
    u, known = torch.randn(1, 3, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([[0, 2, -1]])
    trained, other = bound(spec), bound(spec, "cab", seed=1)
    trained.fix(u=u, known=known)
    other.fix(u=torch.zeros(1, 3, 3), known=torch.zeros(1, 3, dtype=torch.long))
    weights = {name: one for name, one in trained.state_dict().items() if not name.startswith("f.")}
    other.load_state_dict(weights, strict=False)
    assert torch.equal(other.fixed["u"], u[..., [2, 0, 1]])
    assert other.fixed["known"].tolist() == [[1, 0, -1]]  # a, c, unknown among c, a, b


def test_weights_without_names_are_refused_or_loaded_with_a_warning() -> None:
    trained, other = bound(PLAIN), bound(PLAIN, "cab", seed=1)
    bare: dict[str, Tensor] = {"u": trained.u.detach(), "W": trained.W.detach()}
    with pytest.raises(
        em.EnergyError, match=r"E0516.*`u`, `W`: the names of labels do not come with the weights"
    ) as no:
        other.load_state_dict(bare)
    assert "get_extra_state()" in str(no.value) and "strict=False" in str(no.value)
    with pytest.warns(UserWarning, match="`u`, `W`: the names of labels do not come with the weights"):
        left = other.load_state_dict(bare, strict=False)
    assert left.missing_keys == ["_extra_state"] and torch.equal(other.W, trained.W)
    other.load_state_dict({**bare, "_extra_state": trained.get_extra_state()})
    assert scores(other) == pytest.approx(scores(trained))


def test_weights_that_no_labels_order_need_no_names() -> None:
    field = """
    dim H = 3
    dim W = 3
    input x : real[H, W]
    field s : real[H, W]
    param strength : real = 0.5
    gaussian s { unary: x, ridge: 1 }
    """
    model = em.compile(field.replace("unary: x", "unary: x * strength"))
    assert not model.load_state_dict({"strength": torch.tensor(0.25)}).missing_keys
    assert model.strength.item() == 0.25


@pytest.mark.parametrize(
    "names", [torch.zeros(3, dtype=torch.uint8), "abc", torch.tensor([123, 125], dtype=torch.uint8)]
)
def test_names_that_cannot_be_read_are_refused(names: object) -> None:
    model = bound(PLAIN)
    with pytest.raises(em.EnergyError, match="does not hold the names of labels"):
        model.load_state_dict({**model.state_dict(), "_extra_state": names})


def test_names_can_be_looked_up() -> None:
    assert stored_names(bound(PLAIN, "cab").state_dict())["labels"] == {"Tag": ["c", "a", "b"]}


def test_data_and_model_number_labels_alike() -> None:
    """Training, evaluation and comparison refuse data whose labels, of inputs or outputs, have other numbers."""
    spec = NETWORK.format(net="embedding(out: Tag)") + "infer exact\ntrain nll { epochs: 1 }\n"
    spec += "data conll('t', columns: 'word y', validation: 1)\n"
    files = {"t": "x a\ny b\nz c\n\nx a\ny a\nx b\n\nx a\ny b\n"}
    source = em.compile(spec, labels={"Tag": list("abc"), "Word": list("xyz")}).compiled
    data = load_data(source, root=files)
    assert data.train is not None and data.labels == {"Tag": ("a", "b", "c"), "Word": ("x", "y", "z")}
    assert evaluate(bound(spec), data.train, ["accuracy"]).keys() == {"accuracy"}
    for changes, name in (({"labels": "bac"}, "Tag"), ({"words": "yxz"}, "Word")):
        other = bound(spec, **changes)
        calls: list[Callable[[], object]] = [
            lambda other=other: evaluate(other, data.train, ["accuracy"]),
            lambda other=other: em.compare(other, "exact", data=data.train),
            lambda other=other: Trainer(other, data.train, None, []),
        ]
        for call in calls:
            with pytest.raises(em.EnergyError, match=f"the data and the model have other labels of `{name}`"):
                call()


@pytest.mark.parametrize("query", ["kl", "cross_entropy"])
def test_models_that_number_labels_otherwise_are_not_compared(query: str) -> None:
    """Both are one distribution over the names of labels, which their numbers do not show."""
    one, other = bound(PLAIN), bound(PLAIN, "cab", seed=1)
    other.load_state_dict(one.state_dict())
    for using in ("exact", "enumerate"):
        with pytest.raises(QueryRefused, match=r"`y` has other labels in the two models, or the same in another order"):
            getattr(one.infer(using=using), query)(other.infer(using=using))
        same = bound(PLAIN, seed=1)
        same.load_state_dict(one.state_dict())
        assert getattr(one.infer(using=using), query)(same.infer(using=using)).isfinite().all()


def test_a_teacher_with_other_labels_of_an_input_is_refused(tmp_path: Path) -> None:
    spec = NETWORK.format(net="embedding(out: Tag)") + "infer exact\ntrain nll { epochs: 1 }\n"
    spec += "data conll('t', columns: 'word y', validation: 0)\n"
    (tmp_path / "t").write_text("x a\ny b\nz c\n\nx a\ny a\nx b\n", encoding="utf-8")
    run = train(compile_source(Source("s", spec)), Request(root=tmp_path, out=tmp_path / "run")).model
    given = {"word": torch.tensor([[0, 1]]), "y": torch.tensor([[0, 1]])}
    noise = f"nce(noise: sampler, run: '{tmp_path / 'run'}', count: 2)"
    same = em.compile(spec, labels={name: list(one.labels or ()) for name, one in run.graph.label_sets.items()}, seed=1)
    assert same.loss(objective=noise, using="exact", **given).isfinite()
    order = list(same.graph.label_sets["Word"].labels or ())[::-1]
    other = em.compile(spec, labels={"Tag": list(same.graph.label_sets["Tag"].labels or ()), "Word": order}, seed=1)
    with pytest.raises(em.EnergyError, match="reads other labels of the input `word`"):
        other.loss(objective=noise, using="exact", **given)
