"""What an inference network reads, and what it answers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import energyml as em
from energyml.backends.infnet.backend import NotFitted
from energyml.energy_model import BackendRefused, EnergyModel
from tests.infnet.toys import CHOICES, SPELLED, TAGGER, gold, tagger, trained, with_options, words


def spelled(batch: int = 4, length: int = 5, most: int = 3) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([length, 3, 1, 4][:batch])
    inner = torch.randint(0, most + 1, (batch, length), generator=generator)
    return {
        "char": torch.randint(4, (batch, length, most), generator=generator),
        "word": torch.randint(6, (batch, length), generator=generator),
        "shape": torch.randn(batch, length, 2, generator=generator, dtype=torch.float64),
        "about": torch.randn(batch, 3, generator=generator, dtype=torch.float64),
        "lengths": {"T": lengths, "M": inner},
    }


def part(given: dict[str, Any], row: int) -> dict[str, Any]:
    """One example of a batch."""
    here = slice(row, row + 1)
    made = {name: one[here] for name, one in given.items() if name != "lengths"}
    lengths = given["lengths"]
    made["lengths"] = {k: v[here] for k, v in lengths.items()} if isinstance(lengths, dict) else lengths[here]
    return made


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("tailor", [0, 2])
def test_a_batch_is_its_examples(choice: str, tailor: int) -> None:
    model, given = tagger(SPELLED), spelled()
    model.inference_module(choice)
    using = with_options(choice, f"tailor: {tailor}")
    with torch.no_grad():
        together = model.infer(using=using, **given)
        best, soft = together.map(), together.ask("soft_decode").value
        assert torch.equal(model.score(**given, **best.labels), best.score)
        for row in range(4):
            alone = model.infer(using=using, **part(given, row))
            torch.testing.assert_close(alone.map().score[0], best.score[row])
            for name, one in alone.ask("soft_decode").value.items():
                torch.testing.assert_close(one[0], soft[name][row])


@pytest.mark.parametrize("choice", CHOICES)
def test_padding_and_gaps_change_nothing(choice: str) -> None:
    model, given = tagger(), words()
    model.inference_module(choice)
    ask = dict(using=choice, **given)
    with torch.no_grad():
        plain = model.infer(**ask).ask("soft_decode").value["y"]
        exists = torch.arange(6) < given["lengths"].unsqueeze(1)
        padded = torch.where(exists, given["word"], 99)
        ask["word"] = padded
        torch.testing.assert_close(model.infer(**ask).ask("soft_decode").value["y"], plain)
        assert (plain[~exists] == 0).all()
        mask = torch.rand(5, 6, generator=torch.Generator().manual_seed(1)) < 0.6
        found = model.infer(mask=mask, **ask)
        holes = found.ask("soft_decode").value["y"]
        assert (holes[~(mask & exists)] == 0).all() and (found.map().labels["y"][~(mask & exists)] == -1).all()


def test_embeddings_start_from_those_of_the_model() -> None:
    model = tagger()
    table = model._modules["scores"].features.embeddings[0].weight
    kept = model.inference_module("infnet")
    assert kept is not None
    weights = {name: one for name, one in kept.state_dict().items() if name.endswith("tables.0.weight")}
    assert [torch.equal(one, table) for one in weights.values()] == [True]
    assert not set(weights) & {name for name, _ in kept.named_parameters()}
    moving = model.inference_module("infnet(plus: true)")
    assert moving is not None and set(weights) <= {name for name, _ in moving.named_parameters()}


def test_characters_are_read_with_plus() -> None:
    model, given = tagger(SPELLED), spelled()
    other = {**given, "char": (given["char"] + 1) % 4}
    for choice, reads in (("infnet(cnn(hidden: 4))", False), ("infnet(cnn(hidden: 4), plus: true)", True)):
        model.inference_module(choice)
        with torch.no_grad():
            one, two = (model.infer(using=choice, **each).ask("soft_decode").value["y"] for each in (given, other))
        assert torch.equal(one, two) is not reads


def test_inputs_of_the_whole_example_are_read() -> None:
    model, given = tagger(SPELLED), spelled()
    model.inference_module("infnet")
    other = {**given, "about": given["about"] + 1}
    with torch.no_grad():
        one, two = (model.infer(using="infnet", **each).ask("soft_decode").value["y"] for each in (given, other))
    assert not torch.equal(one, two)


def test_dropout_only_while_training() -> None:
    model, given = tagger(), words()
    model.inference_module("infnet(plus: true)")

    def ask() -> torch.Tensor:
        with torch.no_grad():
            return model.infer(using="infnet(plus: true)", **given).ask("soft_decode").value["y"]

    assert torch.equal(ask(), ask())
    model.train()
    assert not torch.equal(ask(), ask())


def test_a_network_of_the_spec() -> None:
    text = TAGGER + "net reader = cnn1d(out: Tag, hidden: 3)\n"
    model, given = tagger(text), words()
    y = gold(given)
    for choice in ("infnet(net: reader)", "infnet(net: scores)"):
        net = model.inference_module(choice)
        assert net is not None
        own = {id(one) for one in model._modules["scores"].parameters()}
        assert not own & {id(one) for one in net.parameters()}
        before = model.loss(objective="infnet_loss", using=choice, y=y, **given)
        trained(net.parameters(), lambda c=choice: model.loss(objective="infnet_loss", using=c, y=y, **given), 5)
        assert model.loss(objective="infnet_loss", using=choice, y=y, **given) < before
        with torch.no_grad():
            found = model.infer(using=with_options(choice, "tailor: 2"), **given).ask("map")
        assert not found.statistics["one_by_one"]


def test_networks_that_do_not_fit() -> None:
    model = tagger(TAGGER + "net states = blstm(hidden: 3)\nnet wrong = mlp(out: Word)\n")
    for name, message in (("states", "the states of its last layer"), ("wrong", r"gives \[Word\]")):
        with pytest.raises(em.EnergyError, match=message):
            model.inference_module(f"infnet(net: {name})")
    with pytest.raises(BackendRefused, match="keep one of them"):
        model.inference_module("infnet(cnn, net: scores)")
    with pytest.raises(BackendRefused, match="one network for each"):
        model.inference_module("infnet(net: scores + states)")
    with pytest.raises(em.SpecError, match="declared: `scores`"):
        model.inference_module("infnet(net: nobody)")
    with pytest.raises(em.EnergyError, match="4 is even"):
        model.inference_module("infnet(cnn(width: 4))")


def test_what_it_cannot_serve() -> None:
    grid = """\
labels Tag = {A, B}
dim H, W
input u : real[H, W, Tag]
output y : Tag[H, W]
factor site [i in H, j in W] (y[i, j]) = u[i, j]
"""
    with pytest.raises(BackendRefused, match=r"label sequences, and `y` runs over 2 dims; name a network"):
        em.compile(grid).infer(using="infnet", u=torch.zeros(1, 2, 2, 2))
    text = grid + "net f = mlp(out: Tag, hidden: 3)\nfactor more [i in H, j in W] (y[i, j]) = f(u)[i, j]\n"
    made, u = em.compile(text), torch.randn(2, 3, 4, 2)
    made.inference_module("infnet(net: f)")
    assert made.infer(using="infnet(net: f, tailor: 1)", u=u).map().labels["y"].shape == (2, 3, 4)
    with pytest.raises(em.EnergyError, match="does not answer `log_partition`"):
        made.infer(using="infnet(net: f)", u=u).ask("log_partition")


def test_a_network_that_nobody_fitted_is_refused() -> None:
    model, given = tagger(), words()
    with pytest.raises(NotFitted, match=r"`infnet` has not been fitted.*then infnet_loss \{ infer: infnet \}"):
        model.infer(using="infnet", **given).map()
    model.inference_module("infnet(cnn)")
    model.infer(using="infnet", **given).map()  # the only one there is
    with pytest.raises(NotFitted, match=r"fitted: `infnet\(architecture: cnn\)`"):
        model.infer(using="infnet(seq2seq)", **given).map()
    model.inference_module("infnet(seq2seq)")
    with pytest.raises(NotFitted):
        model.infer(using="infnet", **given).map()


def test_equal_choices_share_a_network() -> None:
    model = tagger()
    net = model.inference_module("infnet")
    for choice in (
        "infnet(blstm)",
        "infnet(blstm(hidden: 100, layers: 1), tailor: 3)",
        "infnet(plus: false, weight: 9)",
    ):
        assert model.inference_module(choice) is net
    assert list(model.owned) == ["infnet"]
    assert all(name.startswith("infer.infnet.") for name in model.state_dict() if name.startswith("infer"))
    assert model.inference_module("infnet(seed: 9)") is not net


def test_evidence_is_kept() -> None:
    model, given = tagger(), words()
    model.inference_module("infnet")
    allowed = torch.ones(5, 6, 3, dtype=torch.bool)
    allowed[:, 0] = torch.tensor([False, False, True])
    allowed[1, 0] = False
    with torch.no_grad():
        posterior = model.infer(using="infnet(tailor: 2)", evidence={"y": allowed}, **given)
        with pytest.warns(UserWarning, match="forbidden answer for 1 of 5"):
            best = posterior.map()
    assert best.labels["y"][0, 0] == 2 and (best.labels["y"][1] == -1).all() and best.score[1].isneginf()


def copies(model: EnergyModel, given: dict[str, Any]) -> dict[str, EnergyModel]:
    loaded = tagger(seed=7)
    loaded.load_state_dict(model.state_dict())
    again = pickle.loads(pickle.dumps(model))
    return {"state_dict": loaded, "deepcopy": copy.deepcopy(model), "pickle": again}


def test_a_network_goes_where_its_model_goes() -> None:
    model, given = tagger(), words()
    for choice in ("infnet(seq2seq(hidden: 4), plus: true)", "infnet(net: scores)"):
        model.inference_module(choice)
    with torch.no_grad():
        for made in copies(model, given).values():
            for choice in model.owned:
                wanted = model.infer(using=choice, **given).ask("soft_decode").value["y"]
                assert torch.equal(made.infer(using=choice, **given).ask("soft_decode").value["y"], wanted)
    single = copy.deepcopy(model).float()
    assert single.infer(using="infnet(net: scores)", **given).ask("soft_decode").value["y"].dtype == torch.float32


def test_relaxed_labels_start_from_its_answer() -> None:
    model, given = tagger(), words()
    model.inference_module("infnet")
    with torch.no_grad():
        begun = model.infer(using="infnet", **given).ask("map")
        found = model.infer(using="relaxed(start: infnet, steps: 30, lr: 1)", **given).map()
    assert (found.score >= begun.value.score - 1e-9).all() and (found.score > begun.value.score).any()
