"""Evidence: both dialects, several samples, and none."""

import io

import pytest
import torch

import energyml as em

MODEL = "MARKOV\n4\n2 3 2 3\n2\n2 0 1\n2 2 3\n6\n1 2 3 4 5 6\n6\n6 5 4 3 2 1\n"


@pytest.fixture(scope="module")
def model():
    return em.interop.read_uai(io.StringIO(MODEL))


def read(text, model):
    found = em.interop.read_evid(io.StringIO(text), model)
    return {name: labels.tolist() for name, labels in found.items()}


@pytest.mark.parametrize("text", ["", " \n", "0", "0\n", "1 0", "1\n0\n"])
def test_no_evidence(text, model):
    assert read(text, model) == {}
    free = model.infer(using="enumerate").log_partition
    assert model.infer(using="enumerate", evidence={}).log_partition.item() == free.item()


@pytest.mark.parametrize(
    "text", ["2 1 2 2 0", "2\n1 2\n2 0\n", "1 2 1 2 2 0", "1\n2 1 2 2 0", "1\n2\n1 2\n2 0", "3 1 2 2 0 1 2"]
)
def test_both_dialects(text, model):
    assert read(text, model) == {"x3": [[2, -1]], "x2": [[-1, 0]]}


def test_several_samples_make_a_batch(model):
    assert read("2\n1 0 1\n2 0 0 3 2\n", model) == {"x2": [[1, -1], [0, -1]], "x3": [[-1, -1], [-1, 2]]}
    assert read("2 0 0", model) == {"x2": [[-1, -1], [-1, -1]]}
    posterior = model.infer(using="enumerate", evidence=em.interop.read_evid(io.StringIO("2 1 0 0 1 0 1"), model))
    assert posterior.log_partition.exp().tolist() == pytest.approx([6 * 21, 15 * 21])


def test_evidence_clamps(model):
    posterior = model.infer(using="enumerate", evidence=model.evidence({1: 2, 2: 0}))
    assert posterior.log_partition.exp().item() == pytest.approx((3 + 6) * (6 + 5 + 4))
    found = model.probabilities(posterior.marginals)
    assert found[1][0].tolist() == pytest.approx([0, 0, 1])
    assert found[0][0].tolist() == pytest.approx([1 / 3, 2 / 3])
    assert model.values(posterior.map()).tolist() == [[1, 2, 0, 0]]


def test_evidence_by_mappings(model):
    assert model.evidence({}) == {}
    assert model.evidence([{0: 1}, {}])["x2"].tolist() == [[1, -1], [-1, -1]]
    with pytest.raises(em.EnergyError, match="no variable 4; its variables are 0 to 3"):
        model.evidence({4: 0})
    with pytest.raises(em.EnergyError, match="variable 0 cannot be 2: it has 2 values"):
        model.evidence({0: 2})


def test_an_empty_batch(model):
    posterior = model.infer(using="enumerate", evidence=model.evidence([]))
    assert posterior.log_partition.shape == (0,)
    assert model.answer(torch.zeros(0, 4, dtype=torch.long))["x2"].shape == (0, 2)
