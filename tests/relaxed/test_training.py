"""The expected cost of relaxed labels, and energies that are trained through the steps that maximise them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import energyml as em
from tests.train.test_commands import energyml

torch.set_num_threads(1)

SPEN = (Path(__file__).parents[2] / "examples" / "spen.energy").read_text(encoding="utf-8")
LABELS = {"Word": [f"w{i}" for i in range(12)], "Tag": ["A", "B", "C"]}
CHAIN = """\
labels Tag = {A, B, C}
dim T
input u : real[T, Tag]
output y : Tag[T]
param W : real[from: Tag, to: Tag] = normal(1)
chain y { unary: u, pair: W }
"""
USING = "relaxed(steps: 3, lr: 0.5)"


def scores(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_loss_is_the_expected_share_of_wrong_labels() -> None:
    model, u = em.compile(CHAIN, seed=0).double(), scores(2, 4, 3)
    gold, lengths = torch.tensor([[0, 1, 2, 1], [2, -1, 0, -1]]), torch.tensor([4, 3])
    p = model.infer(u=u, lengths=lengths, using=USING).ask("soft_decode").value["y"]
    wrong = 1 - p.gather(-1, gold.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    wanted = torch.stack([wrong[0].mean(), wrong[1, [0, 2]].mean()])
    given = {"objective": "direct_loss", "using": USING, "lengths": lengths, "u": u, "y": gold}
    each = model.loss(reduction="none", **given)
    torch.testing.assert_close(each, wanted)
    torch.testing.assert_close(model.loss(**given), wanted.mean())
    torch.testing.assert_close(model.loss(reduction="sum", **given), wanted.sum())
    torch.testing.assert_close(model.loss(reduction="cell", **given), wanted.sum() / 6)
    none = model.loss(**{**given, "y": torch.full_like(gold, -1), "reduction": "none"})
    assert none.tolist() == [0, 0]


def test_costs_weigh_mistakes() -> None:
    model, u = em.compile(CHAIN, seed=0).double(), scores(1, 3, 3)
    gold = torch.tensor([[0, 1, 1]])
    p = model.infer(u=u, using=USING).ask("soft_decode").value["y"]
    table = torch.tensor([1.0, 1.0, 2.0]).double()
    wanted = ((p * table).sum(-1) - (p * table).gather(-1, gold.unsqueeze(-1)).squeeze(-1)).mean(1)
    found = model.loss(
        objective="direct_loss(cost: hamming(weights: {C: 2}))", using=USING, reduction="none", u=u, y=gold
    )
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("gradients", ["unrolled", "implicit"])
def test_gradients_are_those_of_the_loss(gradients: str) -> None:
    model, u = em.compile(CHAIN, seed=0).double(), scores(2, 3, 3).requires_grad_()
    steps = "steps: 3, lr: 0.5" if gradients == "unrolled" else "steps: 400, lr: 0.3, momentum: 0.6, tol: 1e-14"
    using = f"relaxed({steps}, entropy: 2, gradients: {gradients})"
    gold = torch.tensor([[0, 1, 2], [2, -1, 0]])

    def loss(u: Tensor) -> Tensor:
        return model.loss(objective="direct_loss", using=using, u=u, y=gold)

    found = torch.autograd.grad(loss(u), u)[0]
    along, small = scores(2, 3, 3), 1e-5
    with torch.no_grad():
        ahead, back = loss(u + small * along), loss(u - small * along)
    torch.testing.assert_close((found * along).sum(), (ahead - back) / (2 * small), atol=1e-6, rtol=1e-4)


def task(count: int) -> tuple[Tensor, Tensor]:
    """Words, and tags that the word and the word before decide."""
    word = torch.randint(0, 12, (count, 6), generator=torch.Generator().manual_seed(1))
    tag = word % 3
    tag[:, 1:] = (tag[:, 1:] + (word[:, :-1] >= 6)) % 3
    return word, tag


def test_a_network_over_the_whole_answer_learns() -> None:
    text = SPEN.replace("hidden: 100", "hidden: 16").replace("hidden: 50", "hidden: 8")
    model = em.compile(text, labels=LABELS, seed=0)
    word, tag = task(24)
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    losses = []
    for _ in range(40):
        loss = model.loss(word=word, y=tag)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    # A constant moves no label, so that the last bias has no gradient; all weights have one.
    weights = [one for name, one in model.get_submodule("whole").named_parameters() if name.endswith("weight")]
    assert weights and all(one.grad is not None and bool(one.grad.abs().sum() > 0) for one in weights)
    assert losses[-1] < 0.5 * losses[0]
    right = (model.infer(word=word).map()["y"] == tag).float().mean()
    assert right > 0.7


def test_the_example_trains_and_predicts_as_commands(tmp_path: Path) -> None:
    word, tag = task(16)
    (tmp_path / "pos").mkdir()
    sentences = [
        "".join(f"w{w}\t{'ABC'[t]}\n" for w, t in zip(words[: 3 + n % 4], tags[: 3 + n % 4], strict=True))
        for n, (words, tags) in enumerate(zip(word.tolist(), tag.tolist(), strict=True))
    ]
    (tmp_path / "pos" / "train.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    (tmp_path / "spen.energy").write_text(SPEN.replace("hidden: 100", "hidden: 8"), encoding="utf-8")
    run = tmp_path / "run"
    trained = energyml("train", tmp_path / "spen.energy", "--out", run, "--set", "epochs=2", "--root", tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert "epoch   2, loss" in trained.stdout
    (tmp_path / "new.txt").write_text("\n".join(sentences[:3]) + "\n", encoding="utf-8")
    told = energyml("predict", run, tmp_path / "new.txt")
    assert told.returncode == 0, told.stderr
    found = [json.loads(line) for line in told.stdout.splitlines()]
    assert [len(one["y"]) for one in found] == [3, 4, 5] and {tag for one in found for tag in one["y"]} <= set("ABC")
