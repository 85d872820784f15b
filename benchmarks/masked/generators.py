"""The synthetic languages of section 6.2.3: strings of five symbols out of five, with known probabilities.

Palindromes: a coin (0.8) chooses between a uniform palindrome and a uniform string that is none.  HMMs have four hidden
states; the thesis states only that one has low and one high entropy, so that their parameters are Dirichlet draws from
published seeds, whose exact entropies are near those of its table (5.0 and 6.4 nats).

    python -m benchmarks.masked.generators        # searches the seeds again
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SYMBOLS, LENGTH, STATES = 5, 5, 4
PALINDROME_SHARE = 0.8


def every_string(symbols: int = SYMBOLS, length: int = LENGTH) -> Tensor:
    """[symbols ** length, length]: all strings, the last symbol running fastest."""
    return torch.cartesian_prod(*[torch.arange(symbols)] * length).reshape(-1, length)


@dataclass(frozen=True)
class Language:
    """A distribution over all strings.

    Attributes:
        name: as in the table.
        log_p: [strings] in float64, in the order of `every_string`.
    """

    name: str
    log_p: Tensor

    @property
    def entropy(self) -> float:
        """In nats."""
        return float(-(self.log_p.exp() * self.log_p.clamp(min=-1e9)).sum())

    def draw(self, count: int, seed: int) -> Tensor:
        """[count, length]: independent strings."""
        generator = torch.Generator().manual_seed(seed)
        return every_string()[torch.multinomial(self.log_p.exp(), count, replacement=True, generator=generator)]


def palindromes(share: float = PALINDROME_SHARE) -> Language:
    """Uniform within palindromes and within all others."""
    strings = every_string()
    same = (strings == strings.flip(1)).all(1)
    count = int(same.sum())
    inside, outside = math.log(share / count), math.log((1 - share) / (len(strings) - count))
    return Language("p", torch.where(same, inside, outside).double())


def hmm(name: str, seed: int, concentration: float) -> Language:
    """Start, transition and emission probabilities drawn from one symmetric Dirichlet each, from a seed."""
    chance = np.random.default_rng(seed)

    def rows(number: int, size: int) -> Tensor:
        return torch.from_numpy(chance.dirichlet([concentration] * size, number)).clamp(min=1e-6).log().log_softmax(1)

    start, moves, emits = rows(1, STATES)[0], rows(STATES, STATES), rows(STATES, SYMBOLS)
    strings = every_string()
    forward = start + emits[:, strings[:, 0]].T
    for t in range(1, LENGTH):
        forward = (forward.unsqueeze(2) + moves).logsumexp(1) + emits[:, strings[:, t]].T
    return Language(name, forward.logsumexp(1))


# Found by `search`: the first seeds whose entropies are within 0.03 nats of the table's.
LOW, HIGH = (34, 0.3), (77, 0.8)


def languages() -> dict[str, Language]:
    """By the names of Table 6.1: p palindromes, h the HMM of low entropy, h+ that of high entropy."""
    return {"p": palindromes(), "h": hmm("h", *LOW), "h+": hmm("h+", *HIGH)}


def search(wanted: float, concentration: float, within: float = 0.03) -> int:
    """The first seed whose HMM has about the wanted entropy."""
    return next(seed for seed in range(100_000) if abs(hmm("", seed, concentration).entropy - wanted) < within)


def main() -> None:
    for wanted, (_, concentration) in ((5.0, LOW), (6.4, HIGH)):
        seed = search(wanted, concentration)
        print(f"Dirichlet({concentration}), seed {seed}: {hmm('', seed, concentration).entropy:.3f} nats")
    print(f"palindromes: {palindromes().entropy:.3f} nats")


if __name__ == "__main__":
    main()
