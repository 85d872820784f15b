"""`energyml sample` with cells that are known, stopped before its end, and gone on with."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import energyml as em
from energyml import cli_sample
from energyml.diagnostics import EnergyError
from energyml.inference.trace import Progress, Trace
from energyml.sampling.evidence import read_evidence
from energyml.sampling.run import untrained
from tests.mcmc.models import PAIR

APP = typer.Typer()
cli_sample.register(APP)
MASKED = """
labels Residue = {E, V, Q, L}
dim T
output y : Residue[T]
net m = masked_blstm(hidden: 4, embed: 3)
masked y { conditionals: m, energy: local }
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    made = tmp_path / "spec.energy"
    made.write_text(MASKED)
    return made


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(APP, list(arguments), catch_exceptions=False)
    assert done.exit_code == code, done.output
    return str(done.stdout)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ------------------------------------------------------------------------------------------------------------ evidence


def test_known_cells_stay_and_others_are_filled_in(spec: Path, tmp_path: Path) -> None:
    known, out = tmp_path / "known.json", tmp_path / "draws.jsonl"
    known.write_text('{"y": ["EV?LQ?", ["Q", null, "E"]]}')
    said = run(str(spec), "-n", "40", "--evidence", str(known), "--burn-in", "1", "--out", str(out))
    found = rows(out)
    assert len(found) == 80 and "2 examples" in said
    one, two = ([row["y"] for row in found if row["example"] == number] for number in range(2))
    assert {"".join(y[:2] + y[3:5]) for y in one} == {"EVLQ"} and {(y[0], y[2]) for y in two} == {("Q", "E")}
    assert {len(y) for y in one} == {6} and {len(y) for y in two} == {3}
    assert len({y[2] for y in one}) > 1 and len({y[1] for y in two}) > 1


def test_draws_given_known_cells_are_those_of_the_conditional_distribution() -> None:
    """From Python: infilling against every completion, by weight."""
    model = em.compile(MASKED, seed=0).double()
    known = torch.tensor([[0, -1, 2, -1]])
    every = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    full = known.repeat(16, 1)
    full[:, 1], full[:, 3] = every[:, 0], every[:, 1]
    p = model.score(y=full).softmax(0).detach()
    torch.manual_seed(0)
    trace = model.infer(using="metropolis(sweeps: 60, burn_in: 10, chains: 100)", evidence={"y": known}).trace()
    drawn = trace.labels["y"].flatten(0, 2).long()
    shares = torch.bincount(drawn[:, 1] * 4 + drawn[:, 3], minlength=16) / len(drawn)
    assert torch.equal(drawn[:, [0, 2]], known[:, [0, 2]].expand(len(drawn), 2))
    assert float((shares - p).abs().sum()) / 2 < 0.05


def test_known_cells_of_other_kinds(tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    free = em.compile(
        "labels L = {a, bb, stop}\ndim T free <= 4\noutput y : L[T]\nnet d = lstm_decoder(hidden: 3, embed: 2)\n"
        "sequence y { step: d, end: stop }\n"
    )
    known.write_text('{"y": [["a", "?"], ["bb"]]}')
    found = read_evidence(known, free)
    assert found.values["y"].tolist() == [[0, -1, -1, -1], [1, -1, -1, -1]] and not found.lengths
    grid = em.compile(
        "labels L = {a, b}\ndim H, W\noutput s : L[H, W]\nparam w : real[L]\n"
        "factor one [i in H, j in W] (s[i, j]) = w\n"
    )
    known.write_text('{"s": [[["a", null, 1], [null, null, null]]]}')
    found = read_evidence(known, grid)
    assert found.values["s"].tolist() == [[[0, -1, 1], [-1, -1, -1]]] and found.sizes == {"H": 2, "W": 3}
    field = tmp_path / "field.energy"
    field.write_text("dim T\ninput u : real[T]\nfield s : real[T]\ngaussian s { unary: u }\n")
    known.write_text('{"s": [[1.5, null, null]]}')
    out = tmp_path / "draws.jsonl"
    run(str(field), "-n", "3", "--evidence", str(known), "--out", str(out))
    assert [row["s"][0] for row in rows(out)] == [1.5] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"z": [["E"]]}', "`z` is nothing that can be known about an answer; that is `y`"),
        ('{"y": [["E", "X"]]}', "`y` holds 'X', which is no label of `Residue`"),
        ('{"y": "EV"}', "must be a list with an entry for each example"),
        ('{"y": [3]}', "needs a sequence for each example"),
        ('{"y": [["E", ["V"]]]}', "no rectangular list of cells"),
    ],
)
def test_what_cannot_be_known_is_named(spec: Path, tmp_path: Path, text: str, message: str) -> None:
    known = tmp_path / "known.json"
    known.write_text(text)
    with pytest.raises(EnergyError, match=message):
        run(str(spec), "--evidence", str(known))


# ----------------------------------------------------------------------------------------------------- ends and begins


def interrupted(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Ctrl-C after some sweeps, as the process gets it."""
    from energyml.backends.mcmc.kernel import Kernel

    done, step = 0, Kernel.step

    def counting(self: Kernel, state: Any) -> Any:
        nonlocal done
        done += 1
        if done == after:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, state)

    monkeypatch.setattr(Kernel, "step", counting)


def test_what_was_drawn_before_ctrl_c_is_kept(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "draws.jsonl"
    run(str(spec), "-n", "40", "--burn-in", "2", "--out", str(whole))
    interrupted(monkeypatch, 7)
    said = run(str(spec), "-n", "40", "--burn-in", "2", "--out", str(out), code=130)
    assert "stopped before the end: 5 sweeps of each chain were made" in said
    assert out.read_text() == "".join(f"{json.dumps(row)}\n" for row in rows(whole)[:20])


def test_ctrl_c_during_burn_in_has_nothing_to_keep(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, 3)
    with pytest.raises(EnergyError, match="after 3 of 9 sweeps of burn-in: there are no draws yet"):
        run(str(spec), "-n", "8", "--burn-in", "9", "--out", str(tmp_path / "draws.jsonl"))


def test_chains_go_on_from_a_file_as_if_they_had_not_stopped(spec: Path, tmp_path: Path) -> None:
    whole, state = tmp_path / "whole.jsonl", tmp_path / "chains.safetensors"
    run(str(spec), "-n", "40", "--burn-in", "3", "--out", str(whole))
    parts = []
    for number in range(2):
        out = tmp_path / f"part{number}.jsonl"
        said = run(str(spec), "-n", "20", "--burn-in", "3", "--out", str(out), "--state", str(state))
        assert ("the chains went on" in said) == (number == 1)
        parts += rows(out)
    assert [row["y"] for row in parts] == [row["y"] for row in rows(whole)]
    with pytest.raises(EnergyError, match="other weights, inputs or evidence"):
        run(str(spec), "-n", "20", "--state", str(state), "--seed", "1")
    with pytest.raises(EnergyError, match="other numbers of examples, chains or cells"):
        run(str(spec), "-n", "20", "--state", str(state), "--size", "T=5")
    with pytest.raises(EnergyError, match="holds chains of `metropolis`, not of `gibbs`"):
        run(str(spec), "-n", "20", "--state", str(state), "--infer", "gibbs")


# ----------------------------------------------------------------------------------------------------- what is said


def test_weights_that_are_not_random_are_not_called_so(tmp_path: Path) -> None:
    said: Callable[[str], list[str]] = lambda text: untrained(em.compile(text), 0)  # noqa: E731
    assert said(PAIR) == ["the weights are random (seed 0): a run has trained ones"]
    assert said(PAIR.replace("real[from: Tag, to: Tag]", "real[from: Tag, to: Tag] = zeros")) == []
    both = PAIR + "param v : real[Tag] = constant(2)\nfactor one [t in T] (y[t]) = v\n"
    assert said(both) == ["the weights of `W` are random (seed 0): a run has trained ones"]


def trace(moved: bool, sweeps: int, apart: bool) -> Trace:
    labels = torch.arange(2).repeat(sweeps, 1) * apart
    changes = torch.rand(sweeps, 2, generator=torch.Generator().manual_seed(0)) < 0.5 if moved else 0
    labels = ((labels + changes) % 2).reshape(sweeps, 2, 1, 1)
    rate = torch.full((2, 1), 0.5)
    score = labels.squeeze(-1).double()
    return Trace({"y": labels}, score, {"y": 2}, {"y": ("a", "b")}, {"y": ("T",)}, rate, rate * moved)


def test_chains_that_did_not_move_are_called_so() -> None:
    stuck = trace(moved=False, sweeps=20, apart=True)
    assert "THE CHAINS DID NOT MOVE" in stuck.verdict() and not stuck.mixed
    assert "effective draws   unknown: no chain ever moved" in stuck.summary()
    alike = trace(moved=False, sweeps=20, apart=False)
    assert "NO CHAIN EVER MOVED" in alike.verdict() and "unknown" in alike.worth()
    assert "raise" not in stuck.verdict()
    early = trace(moved=False, sweeps=5, apart=True)
    assert "THE CHAINS DID NOT MOVE" in early.verdict() and "raise `sweeps` (5 are too few" in early.verdict()
    short = trace(moved=True, sweeps=4, apart=False)
    assert "4 sweeps are too few to tell" in short.summary()
    fine = trace(moved=True, sweeps=200, apart=False)
    assert fine.worth().startswith("energy") and fine.mixed


def test_few_sweeps_are_named_wherever_chance_leaves_the_chains() -> None:
    """Two answers of equal chance: in a few of 128 runs of two sweeps no chain moves, though each could."""
    model = em.compile("labels Tag = {A, B}\ndim T\ninput u : real[T, Tag]\noutput y : Tag[T]\n"
                       "factor g [t in T] (y[t]) = u[t]\n")  # fmt: skip
    unmoved = 0
    for seed in range(128):
        torch.manual_seed(seed)
        posterior = model.infer(u=torch.zeros(1, 1, 2), using="gibbs(sweeps: 2, burn_in: 1, chains: 2)")
        status = posterior.ask("marginals").status
        assert status.ok or "raise `sweeps`" in status.message
        unmoved += "DID NOT MOVE" in status.message
    assert unmoved


def test_progress_is_told_while_chains_run(spec: Path) -> None:
    from energyml.driver import compile_source, read_source
    from energyml.sampling.run import Request, draw, model_of

    told: list[Progress] = []
    request = Request(8, burn_in=2)
    draw(model_of(compile_source(read_source(spec)), request), request, told.append)
    assert [one.done for one in told] == [1, 2, 3, 4] and [one.burning for one in told] == [True, True, False, False]
