"""Answers that all meet large masks: expectations of scores keep their digits."""

from __future__ import annotations

import torch

import energyml as em

torch.set_num_threads(1)

TRIPLES = """\
dim T = 3
labels Tag = {A, B}
output y : Tag[T]
dim E
input link : edge(T, T, T)[E]
input u : real[E, a: Tag, b: Tag, c: Tag]
factor g [e = (i, j, k) in link] (b: y[i], a: y[j], c: y[k]) = u[e]
"""


def test_cross_entropies_of_answers_that_all_meet_a_mask_are_those_of_enumeration() -> None:
    """The rounding of log Z at 1e9 is 1e-7; scores of the second model of 5e8 would multiply it."""
    model = em.compile(TRIPLES).double()
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        u = torch.randn(1, 5, 2, 2, 2, generator=generator, dtype=torch.float64)
        u = u.masked_fill(torch.rand(u.shape, generator=generator) < 0.4, -1e9)
        link = torch.tensor([[[0, 1, 2]] * 5])
        found, wanted = (
            model.infer(u=u, link=link, using=using).ask("cross_entropy", other=model.infer(u=u / 2, link=link)).value
            for using in ("exact", "enumerate")
        )
        torch.testing.assert_close(found, wanted, rtol=0, atol=64 * torch.finfo(u.dtype).eps * 5e9)
