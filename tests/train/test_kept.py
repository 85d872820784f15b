"""What objectives keep between batches survives a checkpoint: teachers, persistent chains, counts of labels."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

import energyml as em
from energyml.objectives.kept import all_stored, restore_all
from energyml.train.checkpoint import kept_from, kept_tensors, read_checkpoint
from energyml.train.folder import LAST
from tests.train.test_runs import _Killed, _killed_after, run, same, weights, without_times

SPEC = """
labels Tag = {A, B, C}
dim T
output y : Tag[T]
net m = masked_blstm(hidden: 4, embed: 3)
masked y { conditionals: m, energy: raw }
infer degenerate_gibbs(sweeps: 2, burn_in: 0, chains: 1)
decode marginal_argmax
train TRAIN
data jsonl('train.jsonl', validation: 0.25)
"""
STAGE = "batch: 4, optimizer: adam(lr: 1e-2)"
STAGES = {
    "teacher": f"mlm {{ epochs: 1, {STAGE} }} then kl_projection {{ epochs: 3, weight: 1, {STAGE} }}",
    "chains": f"contrastive_divergence {{ persistent: true, chains: 2, epochs: 3, infer: metropolis, {STAGE} }}",
    "counts": f"nce {{ count: 3, noise: unigram, epochs: 3, {STAGE} }}",
}


@pytest.mark.parametrize("kind", STAGES)
def test_a_stopped_run_goes_on_with_what_its_objective_kept(tmp_path: Path, kind: str) -> None:
    spec = tmp_path / "task.energy"
    spec.write_text(SPEC.replace("TRAIN", STAGES[kind]))
    lengths = torch.randint(1, 4, (16,), generator=torch.Generator().manual_seed(0)).tolist()
    rows = [json.dumps({"y": ["ABC"[(n + t) % 3] for t in range(length)]}) for n, length in enumerate(lengths)]
    (tmp_path / "train.jsonl").write_text("\n".join(rows) + "\n")
    whole = run(spec, tmp_path / "whole")
    # each number of written files ends somewhere else
    for number in (4, 7):
        out = tmp_path / f"cut{number}"
        with pytest.raises(_Killed):
            _killed_after(number, lambda out=out: run(spec, out))
        again = run(spec, out, resume=True)
        assert same(weights(out), weights(tmp_path / "whole"))
        assert without_times(again.history) == without_times(whole.history)


def test_a_checkpoint_holds_the_teacher(tmp_path: Path) -> None:
    spec = tmp_path / "task.energy"
    spec.write_text(SPEC.replace("TRAIN", f"kl_projection {{ epochs: 2, {STAGE} }}"))
    (tmp_path / "train.jsonl").write_text('{"y": ["A", "B"]}\n' * 8)
    with pytest.raises(_Killed):
        _killed_after(5, lambda: run(spec, tmp_path / "run"))
    checkpoint = read_checkpoint(tmp_path / "run" / LAST)
    stored = kept_from(checkpoint.part("kept"), checkpoint.state["kept"], 0)
    (teacher,) = stored.values()
    own = checkpoint.part("model")
    assert teacher.tensors.keys() == own.keys() and not same(dict(teacher.tensors), own)
    assert not kept_from(checkpoint.part("kept"), checkpoint.state["kept"], 1)


def test_persistent_chains_of_all_sets_of_cells_come_back() -> None:
    model = em.compile(SPEC.partition("infer")[0], seed=0).double()
    y = torch.tensor([[0, 1, 2], [1, 2, -1], [2, 0, -1], [1, 1, 0]])
    lengths = torch.tensor([3, 2, 2, 3])
    objective = "contrastive_divergence(persistent: true, chains: 3)"

    def loss(of: em.EnergyModel) -> torch.Tensor:
        torch.manual_seed(4)
        found: torch.Tensor = of.loss(objective=objective, using="metropolis", y=y, lengths=lengths)
        return found

    loss(model)
    tensors, plain = kept_tensors([all_stored(model)])
    other = copy.deepcopy(model)
    restore_all(other, kept_from(tensors, json.loads(json.dumps(plain)), 0))
    assert all_stored(other).keys() == all_stored(model).keys()  # also before anybody asks
    anew = copy.deepcopy(model)
    assert torch.equal(loss(other), loss(model))
    assert not torch.equal(loss(anew), loss(model))
