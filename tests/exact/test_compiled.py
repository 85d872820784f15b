"""Models and functions under `torch.compile`: the same answers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch

import energyml as em
from energyml.backends.exact.backend import COMPILED_CELLS

torch.set_num_threads(1)

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # the compiler looks at it
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),  # inductor imports what uses it
]

HEAD = """\
labels L = {a, b, c}
dim T
input u : real[T, L]
output y : L[T]
param W : real[from: L, to: L]
factor one [t in T] (y[t]) = u[t]
factor two [t in T-1] (from: y[t], to: y[t+1]) = W
infer exact(engine: torch)
"""
SKIP = HEAD + "factor skip [t in T-2] (from: y[t], to: y[t+2]) = W\n"


def draw() -> torch.Tensor:
    return torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))


LENGTHS, GOLD, PARTIAL = (
    torch.tensor([4, 3]),
    torch.tensor([[0, 1, 2, 0], [2, 1, 0, 0]]),
    torch.tensor([[0, -1, 2, 0]] * 2),
)
GAPS = torch.tensor([[True, False, True, True], [True] * 4])
COSTS = {"y": torch.arange(24.0).reshape(2, 4, 3) / 24}


def probabilities(m: em.EnergyModel, u: torch.Tensor) -> list[torch.Tensor]:
    one, shorter = m.infer(u=u), m.infer(u=u, lengths=LENGTHS)
    return [
        shorter.log_partition,
        shorter.marginals["y"],
        shorter.entropy,
        one.log_prob(y=PARTIAL),
        one.log_prob(y=GOLD),
        one.log_prob_with_cost({"y": GOLD}, COSTS),
        one.expectation({"y": COSTS["y"]}),
        one.kl(m.infer(u=u * 0.5)),
        m.infer(u=u, evidence={"y": PARTIAL}, using="exact(memory: 7)").log_partition,
    ]


def best(m: em.EnergyModel, u: torch.Tensor) -> list[torch.Tensor]:
    one, shorter = m.infer(u=u), m.infer(u=u, lengths=LENGTHS)
    return [
        shorter.map().score,
        shorter.map()["y"],
        one.n_best(3).score,
        shorter.max_marginals["y"],
        one.max_with_cost(**COSTS).score,
        m.score(u=u, y=GOLD),
    ]


def losses(m: em.EnergyModel, u: torch.Tensor) -> list[torch.Tensor]:
    objectives = ("ssvm", "softmax_margin", "marginal_ce")
    return [
        m.loss(u=u, y=PARTIAL),
        *(m.loss(u=u, y=GOLD, lengths=LENGTHS, objective=one) for one in objectives),
    ]


def common(m: em.EnergyModel, u: torch.Tensor) -> list[torch.Tensor]:
    return [m.infer(u=u).factor_marginals["two"], m.loss(u=u, y=GOLD)]


def gaps(m: em.EnergyModel, u: torch.Tensor) -> list[torch.Tensor]:
    return [m.infer(u=u, mask=GAPS).marginals["y"]]


def agree(
    model: em.EnergyModel,
    asked: Callable[[em.EnergyModel, torch.Tensor], list[torch.Tensor]],
    backend: str,
    scores: torch.Tensor,
) -> None:
    """Compiled as one graph, without a call before that would have planned: the same answers and gradients."""
    torch.compiler.reset()
    found = torch.compile(lambda u: asked(model, u), backend=backend, fullgraph=True)(scores)
    wanted = asked(model, scores)
    totals = []
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    for values in (found, wanted):
        real = [one for one in values if one.is_floating_point()]
        totals.append(torch.stack([one.masked_fill(one.isinf(), 0).square().sum() for one in real]).sum())
    for one, other in zip(*(torch.autograd.grad(total, (scores, model.W)) for total in totals), strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other)


def forbidden(scores: torch.Tensor) -> torch.Tensor:
    scores[0, 1, 1] = float("-inf")
    return scores.requires_grad_()


@pytest.mark.parametrize(
    ("asked", "engine", "backend"),
    [
        (probabilities, "exact", "eager"),
        (best, "exact", "eager"),
        (losses, "exact", "eager"),
        (gaps, "exact", "eager"),
        (common, "exact(engine: torch)", "aot_eager"),
    ],
)
def test_chains_compile_as_one_graph(
    asked: Callable[[em.EnergyModel, torch.Tensor], list[torch.Tensor]], engine: str, backend: str
) -> None:
    """From the inputs to the answers; -inf has zero gradients."""
    model = em.compile(HEAD.replace("exact(engine: torch)", engine) + "train nll\n", seed=0)
    agree(model, asked, backend, forbidden(draw()))


TRIPLE = HEAD.replace("(engine: torch)", "").replace(
    "W : real[from: L, to: L]", "W : real[from: L, to: L]\nparam V : real[a: L, b: L, c: L]"
) + ("factor triple [t in T-2] (a: y[t], b: y[t+1], c: y[t+2]) = V\n")
LATENT = HEAD.replace("output y : L[T]", "output y : L[T]\nlatent h : L[T]") + (
    "factor seen [t in T] (from: h[t], to: y[t]) = W\nfactor hidden [t in T-1] (from: h[t], to: h[t+1]) = W\n"
)
GRID = """\
labels L = {a, b, c}
dim T
dim S = 2
input u : real[T, L]
output y : L[T, S]
param W : real[from: L, to: L]
factor one [t in T, s in S] (y[t, s]) = u[t]
factor down [t in T-1, s in S] (from: y[t, s], to: y[t+1, s]) = W
factor across [t in T, s in S-1] (from: y[t, s], to: y[t, s+1]) = W
infer exact(engine: torch)
"""
TREE = HEAD.replace("output", "dim E\ninput links : edge(T, T)[E]\noutput").replace(
    "[t in T-1] (from: y[t], to: y[t+1])", "[e = (i, j) in links] (from: y[i], to: y[j])"
)


def every_kind(m: em.EnergyModel, u: torch.Tensor, lengths: torch.Tensor = LENGTHS) -> list[torch.Tensor]:
    one, shorter = m.infer(u=u), m.infer(u=u, lengths={"T": lengths})
    return [
        shorter.log_partition,
        shorter.marginals["y"],
        one.entropy,
        shorter.map()["y"],
        *one.factor_marginals.values(),
    ]


def at_full_length(m: em.EnergyModel, u: torch.Tensor) -> list[torch.Tensor]:
    """Fixed edges hold for every call, so that examples have all positions."""
    return every_kind(m, u, torch.full_like(LENGTHS, u.shape[1]))


@pytest.mark.parametrize(
    ("text", "asked", "backend"),
    [
        (SKIP, probabilities, "eager"),
        (SKIP, best, "eager"),
        (SKIP, losses, "eager"),
        (SKIP, common, "aot_eager"),
        (TRIPLE, every_kind, "eager"),
        (LATENT, every_kind, "eager"),
        (GRID, every_kind, "eager"),
        (TREE, at_full_length, "aot_eager"),
        (SKIP, lambda m, u: [m.infer(u=u[:, :3]).log_partition], "inductor"),
    ],
    ids=["probabilities", "best", "losses", "common", "triple", "latent", "grid", "tree", "inductor"],
)
def test_graphs_compile_as_one_graph(
    text: str, asked: Callable[[em.EnergyModel, torch.Tensor], list[torch.Tensor]], backend: str
) -> None:
    """What sizes and fixed edges tell of the structure is a constant of the graph, and so is the plan."""
    model = em.compile(text + "train nll\n", seed=0)
    if text is TREE:
        model.fix(links=torch.tensor([[[0, 1], [3, 1], [1, 2], [-1, -1]]]))
    agree(model, asked, backend, forbidden(draw()))


def test_compiled_graphs_meet_other_sizes() -> None:
    """Another length is planned anew; any number of examples has the code of the second."""
    torch.compiler.reset()
    model, counter = em.compile(SKIP, seed=0), torch._dynamo.testing.CompileCounter()

    def asked(u: torch.Tensor) -> torch.Tensor:
        return model.infer(u=u).log_partition

    step = torch.compile(asked, backend=counter, fullgraph=True)
    for batch, size in ((2, 4), (3, 4), (5, 4), (5, 3)):
        scores = torch.randn(batch, size, 3)
        torch.testing.assert_close(step(scores), asked(scores))
    assert counter.frame_count == 3


@pytest.mark.parametrize("size", [COMPILED_CELLS, COMPILED_CELLS + 1])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_many_cells_are_compiled_where_one_graph_is_asked_for(fullgraph: bool, size: int) -> None:
    torch.compiler.reset()
    model, seen = em.compile(SKIP, seed=0), set[str]()

    def record(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        seen.update(getattr(node.target, "__name__", "") for node in graph.graph.nodes)
        return graph.forward

    def asked(u: torch.Tensor) -> torch.Tensor:
        return model.infer(u=u + 1).log_partition

    scores = torch.randn(2, size, 3, generator=torch.Generator().manual_seed(0))
    found = torch.compile(asked, backend=record, fullgraph=fullgraph)(scores)
    torch.testing.assert_close(found, asked(scores))
    assert "add" in seen
    assert ("log_partition" in seen) == (fullgraph or size <= COMPILED_CELLS)


def test_what_is_known_at_run_time_is_planned_outside_of_the_graph() -> None:
    """Edges that a call gives, and gaps: `fullgraph=True` is told the reason and the remedy."""
    torch.compiler.reset()
    tree, links = em.compile(TREE, seed=0), torch.tensor([[[0, 1], [3, 1], [1, 2]], [[2, 1], [2, 0], [0, 3]]])
    skip = em.compile(SKIP, seed=0)

    def by_edges(u: torch.Tensor) -> torch.Tensor:
        return tree.infer(u=u, links=links).log_partition

    def by_gaps(u: torch.Tensor) -> torch.Tensor:
        return skip.infer(u=u, mask=GAPS).log_partition

    for asked in (by_edges, by_gaps):
        with pytest.raises(torch._dynamo.exc.Unsupported, match=r"known at run time only.*model\.fix"):
            torch.compile(asked, backend="eager", fullgraph=True)(draw())
        torch.testing.assert_close(torch.compile(asked, backend="eager")(draw()), asked(draw()))
    half = em.compile(HEAD, seed=1)

    def by_both(u: torch.Tensor) -> torch.Tensor:
        return tree.infer(u=u, links=links).kl(half.infer(u=u))

    torch.testing.assert_close(torch.compile(by_both, backend="eager")(draw()), by_both(draw()))
    tree.fix(links=links[:1])
    other = em.compile(TREE, seed=1)

    def by_the_other(u: torch.Tensor) -> torch.Tensor:
        return tree.infer(u=u).kl(other.infer(u=u, links=links))

    with pytest.raises(torch._dynamo.exc.Unsupported, match="known at run time only"):
        torch.compile(by_the_other, backend="eager", fullgraph=True)(draw())
    torch.testing.assert_close(torch.compile(by_the_other, backend="eager")(draw()), by_the_other(draw()))


def test_compiled_code_notices_other_fixed_edges() -> None:
    torch.compiler.reset()
    model = em.compile(TREE, seed=0).fix(links=torch.tensor([[[0, 1], [3, 1], [1, 2]]]))
    step = torch.compile(lambda u: model.infer(u=u).log_partition, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(step(draw()), model.infer(u=draw()).log_partition)
    model.fix(links=torch.tensor([[[0, 1], [1, 2], [2, 3]]]))
    with pytest.raises(RuntimeError, match="edges are not those that this code was compiled for"):
        step(draw())


def test_compiled_graphs_are_drawn_from_and_refused() -> None:
    torch.compiler.reset()
    model = em.compile(SKIP, seed=0)
    drawn = torch.compile(lambda u: model.infer(u=u).sample(2000)["y"], backend="aot_eager", fullgraph=True)(draw())
    shares = torch.nn.functional.one_hot(drawn, 3).float().mean(0)
    torch.testing.assert_close(shares, model.infer(u=draw()).marginals["y"], atol=0.05, rtol=0)
    own = torch.Generator()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="no generator of its own"):
        torch.compile(lambda u: model.infer(u=u).sample(generator=own)["y"], backend="eager", fullgraph=True)(draw())
    wide = em.compile(GRID.replace("S = 2", "S = 40").replace("torch", "torch, memory: 1"), seed=0)
    with pytest.raises(torch._dynamo.exc.InternalTorchDynamoError, match=r"cannot eliminate this graph: .*budget"):
        torch.compile(lambda u: wide.infer(u=u).log_partition, backend="eager", fullgraph=True)(torch.ones(1, 40, 3))


def test_compiled_models_meet_other_sizes_and_train() -> None:
    """Networks are part of the graph; another size compiles again, and a copy is a model of its own."""
    torch.compiler.reset()
    text = HEAD.replace("input u : real[T, L]", "input x : real[T, 2]\nnet f = linear(out: L)").replace(
        "u[t]", "f(x)[t]"
    )
    model = em.compile(text, seed=0)
    step = torch.compile(
        lambda x, y, n: model.loss(x=x, y=y, lengths=n, objective="nll"), backend="eager", fullgraph=True
    )
    for batch, size in ((2, 4), (3, 4), (3, 3)):
        x, y = torch.randn(batch, size, 2), torch.randint(3, (batch, size))
        lengths = torch.randint(1, size + 1, (batch,))
        losses = [step(x, y, lengths), model.loss(x=x, y=y, lengths=lengths, objective="nll")]
        torch.testing.assert_close(*losses)
        slopes = [torch.autograd.grad(one, list(model.parameters())) for one in losses]
        for one, other in zip(*slopes, strict=True):
            torch.testing.assert_close(one, other)
    again = copy.deepcopy(model)
    assert torch.equal(again.infer(x=x).log_partition, pickle.loads(pickle.dumps(model)).infer(x=x).log_partition)


FUNCTIONS = {
    "log_partition": lambda u, w, n: em.functional.chain_log_partition(u, w, n),
    "log_prob": lambda u, w, n: em.functional.chain_log_prob(u, w, torch.tensor([[0, 1, 2, 0], [2, -1, 0, 1]]), n),
    "marginals": lambda u, w, n: em.functional.chain_marginals(u, w, n),
    "best": lambda u, w, n: em.functional.chain_best(u, w, n)[0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_compile_as_one_graph(name: str) -> None:
    given = draw(), draw()[0, :3], torch.tensor([4, 3])
    found = torch.compile(FUNCTIONS[name], backend="aot_eager", fullgraph=True)(*given)
    torch.testing.assert_close(found, FUNCTIONS[name](*given))
