"""Masked Metropolis-Hastings: proposals per second of the batched sampler and of a plain loop over one chain.

The loop is what one writes first: for each position a draw from the masked conditional, the score of the new answer,
the way back, a decision.  It keeps what it saw of the current answer, so that a proposal costs one look at the new one,
as ours does.  Where the network needs a pass for each masked position, the loop makes them one by one; ours batches
positions and chains.
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import torch
from torch import Tensor

import energyml as em
from benchmarks.exact.timing import pairs
from benchmarks.mcmc import results
from benchmarks.mcmc.results import figure
from energyml.backends.mcmc.metropolis import Metropolis
from energyml.backends.mcmc.target import ScoreTarget

LABELS, LENGTH = 25, 15  # amino acids and a few more; a stretch to be filled in
CHAINS = (1, 16, 64, 256)
NETS = {
    "masked_blstm": "masked_blstm(hidden: 64, embed: 32)",
    "masked_transformer": "masked_transformer(hidden: 64, heads: 4, layers: 2)",
}
SPEC = """
labels Tag from data
dim T = {length}
output y : Tag[T]
net m = {net}
masked y {{ conditionals: m, energy: raw }}
"""


class Loop:
    """One chain, position after position.

    Args:
        net: has `masked_scores(y, given, masks) -> [1, T, labels]`.
    """

    def __init__(self, net: Any) -> None:
        self.net = net
        self.y = torch.randint(LABELS, (1, LENGTH), generator=torch.Generator().manual_seed(0))
        self.scores = self.look(self.y)

    def look(self, y: Tensor) -> Tensor:
        """[T, labels]: masked scores."""
        found: Tensor = self.net.masked_scores(y, (), {})[0]
        return found

    def sweep(self) -> None:
        """A proposal at each position."""
        with torch.no_grad():
            for t in range(LENGTH):
                ahead = self.scores[t].log_softmax(-1)
                new = int(torch.multinomial(ahead.exp(), 1))
                y = self.y.clone()
                y[0, t] = new
                scores = self.look(y)
                back = scores[t].log_softmax(-1)
                gain = self.total(scores, y) - self.total(self.scores, self.y)
                ratio = gain + back[self.y[0, t]] - ahead[new]
                if torch.rand(()) < ratio.exp():
                    self.y, self.scores = y, scores

    @staticmethod
    def total(scores: Tensor, y: Tensor) -> Tensor:
        """The score of an answer: the sum of its labels' masked scores."""
        return scores.gather(1, y.T).sum()


class Many:
    """The batched sampler.

    Args:
        kernel: its target has the chains.
    """

    def __init__(self, kernel: Metropolis) -> None:
        self.kernel, self.state = kernel, kernel.init(torch.Generator().manual_seed(0))

    def sweep(self) -> None:
        """A proposal at each position of all chains."""
        self.state, _ = self.kernel.step(self.state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures are stored apart")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for each pair of contestants")
    options = parser.parse_args()
    rows = []
    for name, net in NETS.items():
        model = em.compile(
            SPEC.format(length=LENGTH, net=net), labels={"Tag": [f"t{n}" for n in range(LABELS)]}, seed=0
        )
        alone = copy.deepcopy(model.m)
        if hasattr(alone, "chunk"):
            alone.chunk = 1  # masked positions in a pass
        loop = Loop(alone)
        for chains in CHAINS[:2] if options.quick else CHAINS:
            many = Many(Metropolis(ScoreTarget(model.problem(), chains)))
            many.sweep()
            loop.sweep()
            found = pairs(many.sweep, loop.sweep, 0.5 if options.quick else options.budget)
            rows.append(
                {
                    "net": name, "chains": chains, "threads": torch.get_num_threads(),
                    "proposals": figure(chains * LENGTH / found.ours), "loop": figure(LENGTH / found.peer),
                    "ratio": [figure(chains * part) for part in (found.low, found.middle, found.high)],
                    "pairs": found.pairs,
                }
            )  # fmt: skip
            print(rows[-1], flush=True)
    name = "proposals-quick" if options.quick else "proposals"
    results.store(name, rows, ("net", "chains", "threads"), settings={"labels": LABELS, "length": LENGTH})


if __name__ == "__main__":
    main()
