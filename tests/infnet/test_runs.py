"""Inference networks in the training loop: stages, checkpoints, and what the commands make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from energyml.data.load import load_data
from energyml.diagnostics import EnergyError
from energyml.driver import check_text, compile_source, read_source
from energyml.loading import bind
from energyml.train.folder import load_run
from energyml.train.loop import Trainer
from energyml.train.report import evaluation, predicted_lines
from energyml.train.run import Request, train
from energyml.train.settings import Interrupted, Settings
from energyml.train.stages import plan_stages
from tests.train.small import write_task

NLL = "train nll { epochs: 1, batch: 8, optimizer: adam(lr: 1e-2) }"
FIT = "infnet_loss { epochs: 2, batch: 8, optimizer: adam(lr: 1e-2), infer: infnet(cnn(hidden: 6), weight: 1 -> 0.5) }"
SPEN = "train spen { epochs: 1, batch: 8, optimizer: adam(lr: 1e-2), infer: infnet(cnn(hidden: 6)) }"


def task(folder: Path, line: str) -> Path:
    """A task whose spec has another `train` line."""
    spec = write_task(folder, count=32)
    lines = [line if one.startswith("train ") else one for one in spec.read_text(encoding="utf-8").splitlines()]
    spec.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return spec


def run(spec: Path, out: Path | None = None, **more: Any) -> Any:
    return train(compile_source(read_source(spec)), Request(out=out, **more))


def parts(state: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The energy's tensors, and those of its networks."""
    own = {name: one for name, one in state.items() if name.startswith("infer.")}
    return {name: one for name, one in state.items() if name not in own}, own


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_stage_fits_a_network_to_a_fixed_energy(tmp_path: Path) -> None:
    alone = run(task(tmp_path, NLL)).model
    spec = task(tmp_path, f"{NLL} then {FIT}")
    done = run(spec, tmp_path / "run")
    energy, own = parts(done.model.state_dict())
    assert own and same(energy, alone.state_dict())
    losses = [one["loss"] for one in done.history if "infnet_loss" in one["stage"]]
    assert len(losses) == 2 and losses[1] < losses[0]

    model, _ = load_run(tmp_path / "run")
    assert same(model.state_dict(), done.model.state_dict()) and not model.training
    for infer in ("infnet", "infnet(cnn(hidden: 6), tailor: 2)", "exact", "relaxed(start: infnet)"):
        assert 0 < evaluation(tmp_path / "run", infer=infer).values["accuracy"] <= 1
    lines = list(predicted_lines(tmp_path / "run", [str(tmp_path / "test.jsonl")], infer="infnet"))
    assert len(lines) == 16 and set(json.loads(lines[0])) == {"y"}
    with pytest.raises(EnergyError, match=r"`infnet\(architecture: seq2seq\)` has not been fitted"):
        evaluation(tmp_path / "run", infer="infnet(seq2seq)")


@pytest.mark.parametrize("line", [f"{NLL} then {FIT}", SPEN])
def test_an_interrupted_fit_goes_on(tmp_path: Path, line: str) -> None:
    spec = task(tmp_path, line)
    whole = run(spec).model
    compiled = compile_source(read_source(spec))
    data, kept = load_data(compiled), []
    batches = 0

    def stopping() -> bool:
        nonlocal batches
        batches += 1
        return batches % 2 == 0

    for _ in range(10):
        model = bind(compiled, labels=data.labels, seed=0)
        settings = Settings(stopping=stopping)
        trainer = Trainer(
            model, data.train, data.validation, plan_stages(compiled.model.choices.train, model.graph), settings
        )  # type: ignore[arg-type]
        trainer.save = lambda checkpoint, best: kept.append(checkpoint)
        if kept:
            trainer.resume(kept[-1])
        try:
            trainer.fit()
        except Interrupted:
            continue
        break
    assert len(kept) > 2 and same(model.state_dict(), whole.state_dict())


def test_both_players_move_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[str, bool, bool]] = []
    step = torch.optim.Adam.step

    def watching(self: torch.optim.Adam, *more: Any) -> Any:
        names = {id(one): name for name, one in models[0].named_parameters()}
        touched = {names[id(p)].startswith("infer.") for p in self.param_groups[0]["params"] if p.grad is not None}
        assert len(touched) == 1
        moved.append(("infer" if touched.pop() else "model", models[0].training, models[0].owned.training))
        return step(self, *more)

    models: list[Any] = []
    turn = Trainer._moving

    def remember(self: Trainer, stage: Any) -> Any:
        models.append(self.model)
        return turn(self, stage)

    monkeypatch.setattr(Trainer, "_moving", remember)
    monkeypatch.setattr(torch.optim.Adam, "step", watching)
    done = run(task(tmp_path, SPEN))
    assert moved[:4] == [("infer", False, True), ("model", True, False)] * 2
    assert all(one.requires_grad for one in done.model.parameters())


def test_what_a_spec_may_not_ask() -> None:
    text = """\
labels Tag = {A, B}
dim T
input u : real[T, Tag]
output y : Tag[T]
factor node [t in T] (y[t]) = u[t]
infer exact
"""
    report = check_text(f"{text}train infnet_loss\n")
    assert "trains the network of a backend, and `exact` has none" in str(report.ordered()[0].message)
    assert not check_text(f"{text}train infnet_loss {{ infer: infnet(cnn) }}\n").errors
