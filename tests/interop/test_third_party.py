"""Reference problems that others solved: models of the UAI 2014 competition, and libDAI's own test.

The files are no part of the project: they are looked for beside it, or where ENERGYML_THIRDPARTY says.
"""

import json
import math
import os
import re
from pathlib import Path

import pytest
import torch

import energyml as em

ROOT = Path(__file__).resolve().parents[2]
FILES = Path(os.environ.get("ENERGYML_THIRDPARTY", ROOT.parent / "shared" / "thirdparty"))
INDEX = FILES / "uai" / "INDEX.json"
MODELS = json.loads(INDEX.read_text(encoding="utf-8")) if INDEX.exists() else []
TESTFAST = FILES / "libdai" / "testfast.fg"

WITHOUT_FILES = pytest.mark.skipif(
    not MODELS or not TESTFAST.exists(), reason=f"no reference problems in {FILES}; ENERGYML_THIRDPARTY says where"
)


def path(facts, ending=""):
    return FILES / "uai" / f"{facts['model']}{ending}"


def solution(facts, task):
    """The numbers of a reference solution."""
    return path(facts, f".{task}").read_text(encoding="utf-8").split()[1:]


def opened(facts):
    model = em.interop.read_uai(path(facts))
    return model, em.interop.read_evid(path(facts, ".evid"), model)


def with_solution(task):
    known = [facts for facts in MODELS if path(facts, f".{task}").exists()]
    return pytest.mark.parametrize("facts", known, ids=lambda facts: facts["model"])


def blocks(numbers):
    """The probabilities of each variable from the numbers of a MAR solution."""
    at, found = 1, []
    for _ in range(int(numbers[0])):
        card = int(numbers[at])
        found.append([float(one) for one in numbers[at + 1 : at + 1 + card]])
        at += 1 + card
    assert at == len(numbers)
    return found


@WITHOUT_FILES
def test_there_are_models():
    assert len(MODELS) >= 17


@WITHOUT_FILES
@with_solution("PR")
def test_reading(facts):
    model, evidence = opened(facts)
    assert len(model.cells) == facts["n_vars"] and max(model.cards) == facts["max_card"]
    assert sum(int((labels >= 0).sum()) for labels in evidence.values()) == facts["n_evidence"]


@WITHOUT_FILES
@with_solution("PR")
def test_partition(facts):
    model, evidence = opened(facts)
    with torch.no_grad():
        found = model.infer(using="exact", evidence=evidence).log_partition.item() / math.log(10)
    (reference,) = solution(facts, "PR")
    assert f"{found:.6g}" == f"{float(reference):.6g}"
    assert found == pytest.approx(facts["verified_log10Z"], rel=1e-9, abs=1e-9)


@WITHOUT_FILES
@with_solution("MAR")
def test_marginals(facts):
    model, evidence = opened(facts)
    with torch.no_grad():
        posterior = model.infer(using="exact", evidence=evidence)
        found = model.probabilities(posterior.marginals)
    reference = blocks(solution(facts, "MAR"))
    difference = max(
        abs(a - b)
        for one, other in zip(found, reference, strict=True)
        for a, b in zip(one[0].tolist(), other, strict=True)
    )
    assert difference <= 1e-6
    for one in found:
        assert one.sum().item() == pytest.approx(1, abs=1e-9)


@WITHOUT_FILES
@with_solution("MAP")
def test_best(facts):
    model, evidence = opened(facts)
    with torch.no_grad():
        best = model.infer(using="exact", evidence=evidence).map()
    values = model.values(best)
    for name, labels in evidence.items():
        assert torch.equal(best.labels[name][labels >= 0], labels[labels >= 0])
    score = model.score(**model.answer(values)).item()
    assert score == pytest.approx(best.score.item(), rel=1e-9, abs=1e-9)
    reference = torch.tensor([[int(one) for one in solution(facts, "MAP")[1:]]])
    known = model.score(**model.answer(reference)).item()
    assert known == pytest.approx(facts["ref_MAP_logscore"], rel=1e-6)
    assert score >= known - 1e-9 * abs(known)


@WITHOUT_FILES
@with_solution("MAP")
def test_the_score_of_a_known_answer(facts):
    model, _ = opened(facts)
    reference = torch.tensor([[int(one) for one in solution(facts, "MAP")[1:]]])
    assert model.score(**model.answer(reference)).item() == pytest.approx(facts["ref_MAP_logscore"], rel=1e-9)


@WITHOUT_FILES
@pytest.mark.parametrize("backend", ["enumerate", "exact"])
def test_libdai(backend):
    model = em.interop.read_fg(TESTFAST)
    with torch.no_grad():
        posterior = model.infer(using=backend)
        found = model.probabilities(posterior.marginals)
        log_partition = posterior.log_partition.item()
        assert log_partition == pytest.approx(model.infer(using="enumerate").log_partition.item(), abs=1e-9)
    text = TESTFAST.with_suffix(".out").read_text(encoding="utf-8")
    exact = text.partition("\nEXACT")[2].partition("\nJTREE")[0]
    rows = re.findall(r"\(\{x(\d+)\}, \((.+?), (.+?)\)\)", exact)
    assert len(rows) == len(found) == 16
    for variable, *values in rows:
        for value, one in zip(values, found[int(variable)][0].tolist(), strict=True):
            assert f"{one:.3e}" == value
