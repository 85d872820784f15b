"""The relaxed output space: at its corners it is the discrete one, and between them tables are expectations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.nn import functional as F

from energyml.diagnostics import EnergyError
from energyml.queries import View
from tests.contract.cases import Case
from tests.contract.checks import Question, values
from tests.contract.reference import NINF, Example, examples
from tests.contract.settings import FAMILIES, TABLES, some

torch.set_num_threads(1)
COPIES = 3


def corner(labels: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """One-hot vectors of labels; zero vectors where there is no cell."""
    return F.one_hot(labels.clamp(min=0), count).to(dtype) * (labels >= 0).unsqueeze(-1)


def drawn(case: Case, every: list[Example]) -> dict[str, Tensor]:
    """Labels [B * COPIES, *dims] of some answers of each example."""
    generator = torch.Generator().manual_seed(case.batch)
    rows = [torch.randint(0, len(e.score), (COPIES,), generator=generator) for e in every]
    return {
        name: torch.cat([torch.as_tensor(e.labels[name][row.numpy()]) for e, row in zip(every, rows, strict=True)])
        for name in every[0].counts
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_corners_agree(family: str) -> None:
    @some(24)
    @given(case=FAMILIES[family])
    def run(case: Case) -> None:
        problem = case.model.problem(**case.arguments())
        counts = problem.answers.counts
        if any(dim.kind == "free" for dim in case.model.graph.dims.values()):
            vectors = {n: torch.zeros(case.batch, *[case.sizes[d] for d in case.model.graph.variables[n].dims], count)
                       for n, count in counts.items()}  # fmt: skip
            with pytest.raises(EnergyError, match="length"):
                problem.soft_score(vectors)
            return
        every = examples(case)
        labels = drawn(case, every)
        vectors = {name: corner(one, counts[name], problem.env.batch.dtype) for name, one in labels.items()}
        if View.SOFT not in case.model.structure.views:
            with pytest.raises(EnergyError, match="relaxed"):
                problem.soft_score(vectors, COPIES)
            return
        wanted = problem.score(labels, COPIES)
        question = Question(case, case.infer("enumerate"), every)
        found = problem.soft_score(vectors, COPIES)
        question.scores(found, values(wanted))
        first = {name: one[::COPIES] for name, one in vectors.items()}
        alone = case.model.soft_score(**case.arguments(**{n: one.expand(one.shape) for n, one in first.items()}))
        question.scores(alone, values(wanted[::COPIES]))

    run()


@pytest.mark.parametrize("family", TABLES)
def test_tables_are_expectations(family: str) -> None:
    @some(20)
    @given(case=FAMILIES[family])
    def run(case: Case) -> None:
        if View.MULTILINEAR not in case.model.structure.views:  # a network is no expectation
            return
        case = replace(case, evidence={})
        every = examples(case)
        problem = case.model.problem(**case.arguments())
        generator = torch.Generator().manual_seed(3)
        vectors, logs = {}, {}
        for name, count in every[0].counts.items():
            shape = (case.batch, *every[0].shape(name), count)
            p = torch.rand(shape, generator=generator, dtype=torch.float64).add(0.05)
            p[torch.rand(shape, generator=generator) < 0.3] = 0
            p = (p + 1e-300) / (p + 1e-300).sum(-1, keepdim=True)
            p = torch.where(p < 1e-200, 0, p)
            cells = problem.env.batch.cells(name, case.model.graph.variables[name].dims)
            vectors[name] = p if cells is None else p * cells.unsqueeze(-1)
            logs[name] = p.log().numpy()
        wanted, penalised = [], []
        for b, example in enumerate(every):
            weight = np.zeros(len(example.score))
            for name, labels in example.labels.items():
                log = np.broadcast_to(logs[name][b], (*labels.shape, logs[name].shape[-1]))
                one = np.take_along_axis(log, np.maximum(labels, 0)[..., None], -1)[..., 0]
                weight += np.where(labels >= 0, one, 0).reshape(len(labels), -1).sum(1)
            weight, score = np.exp(weight), example.score
            bad = (weight > 0) & (score == NINF)
            finite = np.where(score == NINF, 0, score)
            wanted.append(NINF if bad.any() else float((weight * finite).sum()))
            penalised.append(float((weight * finite).sum()) if not (score == NINF).any() else None)
        given_vectors = {name: one.to(problem.env.batch.dtype) for name, one in vectors.items()}
        question = Question(case, case.infer("enumerate"), every)
        question.scores(problem.soft_score(given_vectors), wanted)
        priced = problem.soft_score(given_vectors, penalty=2.0)
        assert bool(priced.isfinite().all())
        for have, want in zip(values(priced), penalised, strict=True):
            assert want is None or abs(have - want) <= question.score_error * 10 + 1e-5 * abs(want)
        for one in given_vectors.values():
            one.requires_grad_()
        for penalty in (None, 2.0):
            total = problem.soft_score(given_vectors, penalty=penalty).sum()
            if total.requires_grad:
                slopes = torch.autograd.grad(total, list(given_vectors.values()), materialize_grads=True)
                assert all(bool(slope.isfinite().all()) for slope in slopes)

    run()
