"""Models that are written: the same scores when they are read again, and refusals for what has no tables."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given

import energyml as em
from tests.interop.files import factor_graphs

ROOT = Path(__file__).resolve().parents[2]
LABELS = {
    "translation": {"Source": ["<unk>", "b"], "Target": ["<unk>", "</s>"]},
    "spen": {"Word": ["<unk>", "a"], "Tag": ["B", "C"]},
}
CHAIN = """\
labels Tag = {O, B, I}
dim T
input u : real[T, Tag]
output y : Tag[T]
param W : real[from: Tag, to: Tag]
chain y { unary: u, pair: W }
forbid y[0] = 'I'
"""
TREE = """\
labels A = {a, b}
labels B = {c, d, e}
dim N, M, E
input link : edge(N, M, N)[E]
input s : real[E, x: A, z: B, y: A]
output x : A[N]
output z : B[M]
latent g : A
param w : real[A, B]
factor triple [e = (i, k, j) in link] (x: x[i], z: z[k], y: x[j]) = s[e]
factor all [i in N, k in M] (x[i], z[k]) = w
factor single (g) = s0
param s0 : real[A]
"""


def written(model, **arguments):
    stream = io.StringIO()
    cells = em.interop.write_uai(model, stream, **arguments)
    return cells, stream.getvalue()


def test_scores_of_millions_are_written_and_read_exactly():
    model = em.compile(CHAIN, seed=0).double()
    scores = [[3e6, -4e6, 7e8], [-5e9, 1e15, -2e15], [701.5, -1e12, float("-inf")]]
    _, text = written(model, u=torch.tensor([scores], dtype=torch.float64))
    again = em.interop.read_uai(io.StringIO(text))
    found = sorted(again.state_dict()["u3"].flatten().tolist())
    assert found[-1] == 1e15 and {3e6, -4e6, -2e15, 701.5, -1e12} <= set(found)
    with pytest.raises(em.EnergyError, match="a score of 1e\\+30 has no weight"):
        written(model, u=torch.full((1, 2, 3), 1e30, dtype=torch.float64))


@given(factor_graphs())
def test_what_was_read_is_written_and_read_exactly(graph):
    model = em.interop.read_uai(io.StringIO(graph.uai()))
    cells, text = written(model)
    assert [(cell.variable, *cell.position) for cell in cells] == list(model.cells)
    again = em.interop.read_uai(io.StringIO(text))
    assert again.cards == model.cards
    mine, yours = model.state_dict(), again.state_dict()
    assert list(mine) == list(yours)
    for name, value in mine.items():
        # Only scores near 0, sums of several factors, have more digits than a weight near 1.
        np.testing.assert_allclose(yours[name], value, rtol=3e-16, atol=3e-16)


def test_tables_of_weights_are_exact():
    random = np.random.default_rng(0)
    several = (random.gamma(1.0, size=500) * 10.0 ** random.integers(-300, 300, 500), random.random(500))
    weights = np.concatenate((*several, 1 + 1e-12 * random.normal(size=500)))
    text = "MARKOV\n1\n1500\n1\n1 0\n1500\n" + " ".join(map(repr, weights.tolist()))
    model = em.interop.read_uai(io.StringIO(text))
    again = em.interop.read_uai(io.StringIO(written(model)[1]))
    assert torch.equal(model.state_dict()["u1500"], again.state_dict()["u1500"])


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4, 1e6])
def test_scores_of_any_magnitude(scale):
    spec = "labels A = {a, b, c}\ndim T = 4\noutput y : A[T]\nparam u : real[T, A]\nfactor f [t in T] (y[t]) = u[t]\n"
    model = em.compile(spec)
    with torch.no_grad():
        model.get_parameter("u").copy_(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)) * scale)
        model.get_parameter("u")[1, 2] = -torch.inf
    again = em.interop.read_uai(io.StringIO(written(model)[1]))
    torch.testing.assert_close(again.state_dict()["u3"], model.state_dict()["u"].double(), rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_scores_without_a_weight_are_refused(value):
    model = em.compile("labels A = {a, b}\noutput y : A\nparam u : real[A]\nfactor f (y) = u\n")
    with torch.no_grad():
        model.get_parameter("u")[0] = value
    with pytest.raises(em.EnergyError, match="E0515"):
        written(model)


def same_partition(model, cells, text, **arguments):
    again = em.interop.read_uai(io.StringIO(text))
    expected = model.infer(using="enumerate", **arguments)
    found = again.infer(using="enumerate")
    torch.testing.assert_close(found.log_partition.float(), expected.log_partition)
    by_cell = dict(zip(cells, again.probabilities(found.marginals), strict=True))
    for cell, one in by_cell.items():
        if cell.variable in expected.marginals:
            torch.testing.assert_close(one[0].float(), expected.marginals[cell.variable][(0, *cell.position)])
    return again


def test_a_chain_with_a_mask():
    model = em.compile(CHAIN, seed=0)
    mask = torch.tensor([[True, False, True, True, False]])
    arguments = {"u": torch.randn(1, 5, 3), "mask": mask}
    cells, text = written(model, **arguments)
    assert [cell.position for cell in cells] == [(0,), (2,), (3,)]
    same_partition(model, cells, text, **arguments)


def test_evidence_becomes_zeros():
    model = em.compile(CHAIN, seed=0)
    arguments = {"u": torch.randn(1, 3, 3), "evidence": {"y": torch.tensor([[-1, 2, -1]])}}
    cells, text = written(model, **arguments)
    same_partition(model, cells, text, **arguments)


@pytest.mark.parametrize(
    "rows",
    [[[0, 1, 1], [1, 0, 2]], [[2, 1, 2], [0, 0, 1], [1, 1, 1]], [[0, 0, 1], [-1, -1, -1]], [[-1, -1, -1]]],
)
def test_run_time_graphs_with_repeated_cells_and_padding(rows):
    model = em.compile(TREE, seed=0)
    link = torch.tensor([rows])
    arguments = {"link": link, "s": torch.randn(1, len(rows), 2, 3, 2), "lengths": {"N": [3], "M": [2]}}
    cells, text = written(model, **arguments)
    assert len(cells) == 6
    same_partition(model, cells, text, **arguments)


def test_a_path(tmp_path):
    model = em.compile(CHAIN, seed=0)
    em.interop.write_uai(model, tmp_path / "chain.uai", u=torch.zeros(1, 2, 3))
    assert len(em.interop.read_uai(tmp_path / "chain.uai").cells) == 2
    with pytest.raises(em.EnergyError, match="no such file or directory"):
        em.interop.write_uai(model, tmp_path / "nowhere" / "chain.uai", u=torch.zeros(1, 2, 3))


def test_refusals():
    chain = em.compile(CHAIN, seed=0)
    with pytest.raises(em.EnergyError, match="one example, found a batch of 2"):
        written(chain, u=torch.zeros(2, 2, 3))
    with pytest.raises(em.EnergyError, match="has no cell"):
        written(chain, u=torch.zeros(1, 0, 3))
    with pytest.raises(em.EnergyError, match="E0501"):
        written(chain)
    for name, reason in (("horses", "it is continuous"), ("translation", "length along"), ("spen", "it has no tables")):
        model = em.load(ROOT / "examples" / f"{name}.energy", labels=LABELS.get(name))
        with pytest.raises(em.EnergyError, match=reason):
            written(model)
