"""pgmpy: `GibbsSampling` of a Markov network, one chain, in Python.

It tabulates the conditional of each cell for all labels of all other cells before it starts, which are 2^4095 rows for
a grid of 64 x 64: one of 4 x 4 stands for it, as a site update is a look into such a table.  A chain of 50 cells with
400 labels is out of its reach.
"""

from __future__ import annotations

import logging
import os
import warnings

import numpy as np
import torch
from torch import Tensor

from benchmarks.mcmc.cases import Case, Ising
from benchmarks.mcmc.contestants import Prepared, Refused

SIDE = 4


class Pgmpy:
    """Sweeps are rows of `GibbsSampling.sample`."""

    name = "pgmpy"

    def __init__(self) -> None:
        self.chains: dict[str, tuple[int, ...]] = {"ising": (1,), "chain": (1,)}
        self.sweeps = {"ising": 20, "chain": 1}

    def prepare(self, case: Case, chains: int) -> Prepared:
        """Tabulate the conditionals of a small grid."""
        if not isinstance(case, Ising):
            raise Refused("it tabulates the conditional of a cell for all labels of all other cells: 400^49 rows")
        logging.getLogger("pgmpy").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore")
        os.environ.setdefault("TQDM_DISABLE", "1")
        from pgmpy.factors.discrete import DiscreteFactor
        from pgmpy.models import DiscreteMarkovNetwork
        from pgmpy.sampling import GibbsSampling

        small = Ising(SIDE, case.coupling)
        names = [f"s{number}" for number in range(small.cells)]
        number = np.arange(small.cells).reshape(SIDE, SIDE)
        pairs = ((number[1:], number[:-1]), (number[:, 1:], number[:, :-1]))
        ends = [edge for one, two in pairs for edge in zip(one.ravel(), two.ravel(), strict=True)]
        model = DiscreteMarkovNetwork([(names[a], names[b]) for a, b in ends])
        equal = float(np.exp(case.coupling))
        model.add_factors(
            *(DiscreteFactor([names[a], names[b]], [2, 2], [equal, 1, 1, equal]) for a, b in ends),
            *(
                DiscreteFactor([name], [2], [1, float(bias.exp())])
                for name, bias in zip(names, small.bias.flatten(), strict=True)
            ),
        )
        sampler = GibbsSampling(model)
        held: list[Tensor] = []

        def sweep(count: int) -> Tensor:
            found = sampler.sample(size=count + 1)  # the first row is the start
            labels = torch.from_numpy(found[names].to_numpy().astype(np.int64))[1:]
            held[:] = [labels[-1:]]
            return labels

        def draw(count: int) -> np.ndarray:
            labels = sweep(count)
            return torch.stack([small.score(labels).double(), labels.double().mean(1)], -1).unsqueeze(0).numpy()

        sweep(1)
        return Prepared(1, sweep, draw, lambda: held[0], small.cells)
