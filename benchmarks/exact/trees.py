"""A batch of random trees against chains of the same size: what a structure given at run time costs."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

import energyml as em
from benchmarks.exact import results
from benchmarks.exact.contestants.ours import Compiled
from benchmarks.exact.sizes import LOG_PARTITION, MARGINALS, NLL, TASKS, VITERBI, Case, make_case
from benchmarks.exact.timing import pairs

SIZE = (64, 100, 20)

SPEC = """\
labels Tag = {{{labels}}}
dim N
dim E
input u : real[N, Tag]
input link : edge(N, N)[E]
output y : Tag[N]
param W : real[a: Tag, b: Tag]
factor node [n in N] (y[n]) = u[n]
factor arc [e = (i, j) in link] (a: y[i], b: y[j]) = W
infer exact
train nll {{ reduction: sum }}
"""


def random_trees(batch: int, nodes: int, seed: int = 0) -> Tensor:
    """[B, N-1, 2]: edges (parent, child) of random recursive trees whose nodes are then renumbered at random."""
    generator = torch.Generator().manual_seed(seed)
    trees = []
    for _ in range(batch):
        names = torch.randperm(nodes, generator=generator)
        parents = [int(torch.randint(child, (), generator=generator)) for child in range(1, nodes)]
        trees.append(torch.stack([names[torch.tensor(parents)], names[1:]], 1))
    return torch.stack(trees)


def chain_edges(batch: int, nodes: int) -> Tensor:
    """[B, N-1, 2]: chains, as edges."""
    at = torch.arange(nodes - 1)
    return torch.stack([at, at + 1], 1).expand(batch, nodes - 1, 2).contiguous()


def tree_calls(case: Case, edges: Tensor, using: str | None = None) -> dict[str, Callable[[], object]]:
    """Each task on the trees through the public interface."""
    names = ", ".join(f"L{label}" for label in range(case.size[2]))
    model = em.compile(SPEC.format(labels=names), seed=0)
    with torch.no_grad():
        model.W.copy_(case.trans)
    scores = case.unary.clone().requires_grad_()

    def train() -> tuple[Tensor, ...]:
        scores.grad = model.W.grad = None
        loss = model.loss(u=scores, link=edges, y=case.gold, using=using)
        loss.backward()
        return loss.detach(), scores.grad, model.W.grad

    @torch.no_grad()
    def asked(question: Callable[[em.Posterior], object]) -> object:
        return question(model.infer(u=case.unary, link=edges, using=using))

    return {
        LOG_PARTITION: lambda: asked(lambda posterior: posterior.log_partition),
        NLL: train,
        VITERBI: lambda: asked(lambda posterior: posterior.map().labels["y"]),
        MARGINALS: lambda: asked(lambda posterior: posterior.marginals["y"]),
    }


def agrees(case: Case, task: str, found: object) -> bool:
    """Whether trees that are chains give the answers of chains."""
    prepared = Compiled().prepare(case, task)
    right = prepared.read(prepared.run())
    mine = found if isinstance(found, tuple) else (found,)
    if task == VITERBI:
        right, mine = (case.score(right[0]),), (case.score(mine[0]),)
    return all(torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-3) for a, b in zip(right, mine, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = (4, 20, 5) if options.quick else SIZE
    case = make_case(size, False)
    links = {"trees": random_trees(*size[:2]), "chains as trees": chain_edges(*size[:2])}
    rows = []
    for name, edges in links.items():
        for task in TASKS:
            row: dict[str, object] = {"size": list(size), "name": name, "task": task}
            try:
                call = tree_calls(case, edges)[task]
                answer = call()
                if name != "trees" and not agrees(case, task, answer):
                    raise ValueError("chains given as trees disagree with chains")
                ratio = pairs(Compiled().prepare(case, task).run, call, 0.1 if options.quick else 1.0)
                row["slower"] = [results.figure(one) for one in (ratio.low, ratio.middle, ratio.high)]
                row["chains"], row["trees"] = results.figure(1e6 * ratio.ours), results.figure(1e6 * ratio.peer)
            except Exception as error:  # a refusal is a result
                row["refused"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            rows.append(row)
            print({key: value for key, value in row.items() if key != "size"}, flush=True)
    results.store("trees-quick" if options.quick else "trees", rows, ("size", "name", "task"))


if __name__ == "__main__":
    main()
