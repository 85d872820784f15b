"""Stages, balance, stopping and options of training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import energyml as em
from energyml.bind.gains import Normalised, magnitude
from energyml.cards.options import Spread
from energyml.diagnostics import EnergyError, SpecError
from energyml.driver import compile_source, read_source
from energyml.train.balance import Online, make_balance, powers
from energyml.train.folder import load_run
from energyml.train.overrides import overridden
from energyml.train.plateau import Plateau
from energyml.train.run import Request, train
from energyml.train.stages import groups, parameters_of, plan_stages
from tests.train.small import STAGE, write_task


def compiled(tmp_path: Path, stage: str = STAGE):
    return compile_source(read_source(write_task(tmp_path, stage)))


def test_the_three_stages_of_a_chain(tmp_path: Path) -> None:
    spec = compiled(tmp_path, f"{STAGE}, procedure: staged()")
    stages = plan_stages(spec.model.choices.train, spec.graph)
    assert [stage.objective.name for stage in stages] == ["marginal_ce"] * 3
    assert [stage.only for stage in stages] == [("f",), ("W",), ()]
    assert [stage.without for stage in stages] == [("y.pair",), (), ()]
    done = train(spec, Request(limit=1))
    assert [record["stage"].split(".")[0] for record in done.history] == ["1a", "1b", "1c"]


def test_a_stage_moves_only_what_it_names(tmp_path: Path) -> None:
    spec = compiled(tmp_path, f"{STAGE}, only: W")
    before = em.compile(spec.source.text, seed=0).state_dict()
    after = train(spec, Request(limit=1)).model.state_dict()
    for name, value in before.items():
        assert torch.equal(value, after[name]) == (name != "W")


def test_groups_are_found_or_named(tmp_path: Path) -> None:
    spec = compiled(tmp_path, f"{STAGE}, balance: online()")
    chosen = spec.model.choices.train[0]["balance"]
    assert groups(chosen, spec.graph) == (("y.unary",), ("y.pair",))
    assert parameters_of(("y.unary",), spec.graph) == ("f",)
    with pytest.raises(SpecError, match="the name of a term, or several joined by `\\+`"):
        compiled(tmp_path, f"{STAGE}, balance: online(scale: y.unry)")
    field = compile_source(read_source(Path(__file__).parents[2] / "examples" / "horses.energy"))
    assert groups(field.model.choices.train[0]["balance"], field.graph) == (("s.unary",), ("s.pair",))


def test_online_balance_picks_the_scale_with_the_least_loss() -> None:
    online = Online(("a",), ("b",), grid=powers(Spread(0.25, 4.0)))
    online.after_epoch(lambda gains: [abs(float(one["a"]) - 2) for one in gains])
    assert online.alpha == 2.0 and not online.notes
    online.after_epoch(lambda gains: [-float(one["a"]) for one in gains])
    assert online.alpha == 4.0 and "edge of the grid" in online.notes[0]
    online.after_epoch(lambda gains: [float("nan") for _ in gains])
    assert online.alpha == 4.0


def test_the_chosen_scale_is_saved_and_used(tmp_path: Path) -> None:
    spec = compiled(tmp_path, f"{STAGE}, balance: online(subset: 30, grid: 2^-3..2^3)")
    done = train(spec, Request(out=tmp_path / "run"))
    from energyml.train.folder import load_run

    model, _ = load_run(tmp_path / "run")
    best = max(done.history, key=lambda record: record["validation.accuracy"])
    assert model.gains == {"y.unary": best["alpha"]}


def test_losses_under_many_gains_are_those_of_each(tmp_path: Path) -> None:
    model = em.compile(compiled(tmp_path).source.text, seed=0).eval()
    x, y = torch.randn(3, 5, 4), torch.randint(3, (3, 5))
    found = model.losses_under([{"y.unary": 0.5}, {"y.unary": 3.0}], x=x, y=y)
    for alpha, losses in zip((0.5, 3.0), found, strict=True):
        model.gains["y.unary"] = alpha
        assert torch.allclose(losses, model.loss(x=x, y=y, reduction="none"))
        model.gains.clear()


def test_a_constant_balance_stays_and_is_used_at_prediction(tmp_path: Path) -> None:
    spec = compiled(tmp_path, f"{STAGE}, balance: constant(alpha: 0.25)")
    done = train(spec, Request(out=tmp_path / "run", limit=2))
    assert dict(done.model.gains) == {"y.unary": 0.25}
    assert dict(load_run(tmp_path / "run")[0].gains) == {"y.unary": 0.25}


def test_offline_balance_divides_by_mean_magnitudes(tmp_path: Path) -> None:
    spec = compiled(tmp_path, f"{STAGE}, balance: offline(alpha: 3.0)")
    model = em.compile(spec.source.text, seed=0).double().eval()
    balance = make_balance(spec.model.choices.train[0]["balance"], model.graph)
    assert balance.gains() == {"y.unary": Normalised(3.0, ("y.unary",)), "y.pair": Normalised(1.0, ("y.pair",))}
    x, lengths = torch.randn(2, 4, 4, dtype=torch.float64), torch.tensor([4, 2])
    env = model.problem(x=x, lengths=lengths).env
    unary = model._modules["f"](x, masks={})
    wanted = torch.stack([unary[0].abs().mean(), unary[1, :2].abs().mean()])
    assert torch.allclose(magnitude(("y.unary",), env), wanted)
    model.gains.update(balance.gains())
    found = model.infer(x=x, lengths=lengths)
    scaled = unary * (3 / wanted)[:, None, None]
    pair = model.W / model.W.abs().mean()
    plain = em.compile(
        "labels Tag = {A, B, C}\ndim T\ninput u : real[T, Tag]\ninput w : real[from: Tag, to: Tag]\n"
        "output y : Tag[T]\nchain y { unary: u, pair: w }"
    )
    peer = plain.infer(u=scaled, w=pair.expand(2, 3, 3), lengths=lengths)
    assert torch.allclose(found.log_partition, peer.log_partition)
    assert torch.allclose(balance.ratio(env), torch.full((2,), 3.0, dtype=torch.float64))


def test_a_zero_table_gives_numbers() -> None:
    text = "labels Tag = {A, B}\ndim T\ninput u : real[T, Tag]\noutput y : Tag[T]\n"
    text += (
        "param W : real[from: Tag, to: Tag] = zeros\nchain y { unary: u, pair: W }\ntrain nll { balance: offline() }"
    )
    model = em.compile(text)
    spec = model.compiled.model.choices.train[0]
    model.gains.update(make_balance(spec["balance"], model.graph).gains())
    loss = model.loss(u=torch.randn(2, 3, 2), y=torch.zeros(2, 3, dtype=torch.long))
    loss.backward()
    assert loss.isfinite() and model.W.grad.isfinite().all()


def test_scaling_is_initialisation_and_learning_rate_under_sgd() -> None:
    """Appendix C: SGD with alpha times V phi equals V initialised alpha times larger with learning rate alpha²."""
    text = """
labels Tag = {A, B, C}
dim T
input x : real[T, 4]
output y : Tag[T]
net f = linear(out: Tag, bias: false)
param W : real[from: Tag, to: Tag]
chain y { unary: f(x), pair: W }
"""
    alpha, lr, steps = 3.0, 0.05, 5
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 5, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (4, 5), generator=generator)
    scaled, larger = em.compile(text, seed=0).double(), em.compile(text, seed=0).double()
    scaled.gains["y.unary"] = alpha
    with torch.no_grad():
        for parameter in larger._modules["f"].parameters():
            parameter.mul_(alpha)
    rates = ((scaled, lr), (larger, alpha**2 * lr))
    optimizers = [
        torch.optim.SGD([{"params": m._modules["f"].parameters(), "lr": rate}, {"params": [m.W], "lr": lr}])
        for m, rate in rates
    ]
    for _ in range(steps):
        for model, optimizer in zip((scaled, larger), optimizers, strict=True):
            optimizer.zero_grad()
            model.loss(x=x, y=y, objective="nll").backward()
            optimizer.step()
    for one, other in zip(scaled._modules["f"].parameters(), larger._modules["f"].parameters(), strict=True):
        assert torch.allclose(alpha * one, other)
    assert torch.allclose(scaled.W, larger.W)


def test_a_plateau_lowers_the_rate_and_then_stops() -> None:
    plateau = Plateau("accuracy", True, patience=4, reduce=1, threshold=1e-3)
    steps = [plateau.step(value) for value in (0.5, 0.6, 0.6005, 0.6005, 0.6, 0.6)]
    assert steps == [(False, False)] * 3 + [(True, False), (False, False), (True, True)]
    loss = Plateau("loss", False, patience=1, reduce=9, threshold=0.0)
    assert [loss.step(value)[1] for value in (1.0, 0.9, 0.95)] == [False, False, True]


@pytest.mark.parametrize("higher", [True, False])
def test_the_rate_falls_when_torch_lowers_it(higher: bool) -> None:
    """Appendix B uses ReduceLROnPlateau, with an absolute threshold."""
    values = torch.randint(0, 12, (60,), generator=torch.Generator().manual_seed(3)).double().div(2000).tolist()
    values[7] = float("nan")
    plateau = Plateau("accuracy", higher, patience=10**9, reduce=2, threshold=1e-3)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    peer = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, "max" if higher else "min", patience=2, threshold=1e-3, threshold_mode="abs", eps=0.0
    )
    rate = 1.0
    for value in values:
        peer.step(value)
        rate *= 0.1 if plateau.step(value)[0] else 1.0
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)
    assert rate < 1e-6


@pytest.mark.parametrize("second", [STAGE, f"{STAGE}, balance: online(subset: 30)"])
def test_the_next_stage_goes_on_with_the_scale(tmp_path: Path, second: str) -> None:
    first = f"{STAGE}, balance: online(subset: 30)"
    spec = compiled(tmp_path, f"{first} }} then nll {{ {second}, only: W")
    alone = train(compiled(tmp_path, first), Request())
    both = train(spec, Request(changes=("2.epochs=1", "2.optimizer.lr=1e-12")))
    chosen = alone.model.gains["y.unary"]
    assert chosen != 1.0
    if second == STAGE:
        assert both.model.gains == {"y.unary": chosen}
    wanted = max(one["validation.accuracy"] for one in alone.history)
    assert both.history[-1]["validation.accuracy"] == pytest.approx(wanted, abs=0.1)


def test_a_ratio_needs_both_groups(tmp_path: Path) -> None:
    """A chain of one cell has no pairs: no ratio, no penalty, and finite gradients."""
    spec = compiled(tmp_path, f"{STAGE}, balance: offline(alpha: 2.0, regularized: true, weight: 0.5)")
    model = em.compile(spec.source.text, seed=0).double().eval()
    balance = make_balance(spec.model.choices.train[0]["balance"], model.graph)
    env = model.problem(x=torch.randn(2, 4, 4, dtype=torch.float64), lengths=torch.tensor([4, 1])).env
    ratio, penalty = balance.ratio(env), balance.penalty(env)
    assert penalty is not None and ratio[0].isfinite() and ratio[1].isnan()
    assert torch.allclose(penalty, torch.stack([0.5 * (ratio[0] - 2).square(), torch.zeros_like(ratio[1])]))
    penalty.sum().backward()
    assert model.W.grad.isfinite().all()
    done = train(spec, Request(limit=1))
    assert 0 < done.history[0]["ratio"] < 1e3


def test_a_penalty_weighs_the_same_whatever_the_reduction(tmp_path: Path) -> None:
    from energyml.data.load import load_data
    from energyml.train.loss import StageLoss

    spec = compiled(tmp_path, f"{STAGE}, balance: offline(alpha: 2.0, regularized: true)")
    model = em.compile(spec.source.text, seed=0).eval()
    batch = load_data(spec).train.batch(range(8))
    [stage] = plan_stages(spec.model.choices.train, model.graph)
    [plain] = plan_stages(compiled(tmp_path).model.choices.train, model.graph)
    penalised, none = (make_balance(one["balance"], model.graph) for one in (stage, plain))
    env = model.problem(lengths=batch.lengths, **batch.inputs).env
    for reduction in ("cell", "example"):
        changed = overridden([stage.objective], [f"reduction={reduction}"], spec.model)[0]
        asked = plan_stages([changed], model.graph)[0]
        both = [StageLoss(model, asked, balance, None, 1)(batch) for balance in (penalised, none)]
        assert torch.allclose(both[0] - both[1], penalised.penalty(env).mean(), atol=1e-5)


def test_several_outputs_stop_by_their_mean(tmp_path: Path) -> None:
    from energyml.train.loop import _is_better, _judged

    record = {"loss": 5.0, "validation.f1.y": 0.25, "validation.f1.z": 0.75, "validation.f1x": 9.0}
    assert _judged(record, "f1") == 0.5
    assert _judged({"loss": 5.0, "validation.f1": 0.25}, "f1") == 0.25 and _judged({"loss": 5.0}, "f1") == 5.0
    assert _is_better(0.1, float("nan"), True) and not _is_better(float("nan"), 0.1, True)
    spec = compiled(tmp_path, f"{STAGE}, stop: plateau(accuracy, patience: 2, reduce: 1)")
    text = spec.source.text.replace("output y : Tag[T]", "output y : Tag[T]\noutput z : Tag[T]")
    text = text.replace("infer exact", "factor q[t in T](z[t]) = f(x)[t]\ninfer exact")
    text = text.replace(", test: 'test.jsonl'", "")
    lines = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    both = "".join(json.dumps({**one, "z": one["y"]}) + "\n" for one in lines)
    (tmp_path / "train.jsonl").write_text(both, encoding="utf-8")
    (tmp_path / "two.energy").write_text(text, encoding="utf-8")
    done = train(compile_source(read_source(tmp_path / "two.energy")), Request())
    means = [(one["validation.accuracy.y"] + one["validation.accuracy.z"]) / 2 for one in done.history]
    assert len(done.history) == 3
    epochs = 1 + means.index(max(means))
    kept = train(compile_source(read_source(tmp_path / "two.energy")), Request(changes=(f"epochs={epochs}",)))
    assert all(torch.equal(one, done.model.state_dict()[name]) for name, one in kept.model.state_dict().items())


def test_stages_of_shared_networks(tmp_path: Path) -> None:
    """The second stage moves what the first one did not; a group without parameters of its own has no stage."""
    spec = compiled(tmp_path, f"{STAGE}, procedure: staged()")
    text = spec.source.text.replace(
        "param W : real[from: Tag, to: Tag] = normal(0.1)\n", "input W : real[from: Tag, to: Tag]\n"
    )
    given = em.compile(text).compiled
    stages = plan_stages(given.model.choices.train, given.graph)
    assert [stage.title.split(".")[0] for stage in stages] == ["1a", "1c"]
    assert [stage.only for stage in stages] == [("f",), ()]


def test_options_from_outside(tmp_path: Path) -> None:
    spec = compiled(tmp_path)
    chosen = spec.model.choices.train
    made = overridden(chosen, ["optimizer.lr=0.5", "epochs=7", "balance=online(subset: 5)", "1.batch=3"], spec.model)
    assert made[0]["optimizer"]["lr"] == 0.5 and made[0]["epochs"] == 7 and made[0]["batch"] == 3
    assert made[0]["balance"].name == "online" and made[0]["balance"]["subset"] == 5
    for change, message in (
        ("optimizer.rate=1", "no option `rate`"),
        ("epoch=1", "did you mean `epochs`"),
        ("epochs", "expected OPTION=VALUE"),
        ("4.epochs=1", "there are 1"),
        ("epochs.x=1", "has no options of its own"),
        ("1=2", "`1=2` names no option; expected OPTION=VALUE, as in `1.epochs=5`"),
        ("optimizer.=2", "names no option"),
        ("balance.subset=5", "`none` has no options; .*`subset`: write `balance=online\\(subset: 5\\)`"),
        ("1.cost=5", "`marginal_ce` has no option `cost`; its options are [a-z_, ]*$"),
        ("1.optimizer.subset=5", "`adam` has no option `subset`; its options are lr, weight_decay$"),
    ):
        with pytest.raises(EnergyError, match=message):
            overridden(chosen, [change], spec.model)
    with pytest.raises(SpecError, match="epochs"):
        overridden(chosen, ["epochs=many"], spec.model)


@pytest.mark.parametrize("objective", ["nll", "ssvm", "marginal_ce", "pseudo_likelihood"])
def test_every_objective_learns(tmp_path: Path, objective: str) -> None:
    spec = compiled(tmp_path)
    done = train(spec, Request(train=objective, changes=("epochs=6", "optimizer.lr=0.02")))
    assert done.history[-1]["loss"] < done.history[0]["loss"]
    assert done.history[-1]["validation.accuracy"] > 0.5
