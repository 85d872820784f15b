"""Calls as people make them: lists for lengths, other precisions, empty batches, threads, copies."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.diagnostics import QueryRefused
from energyml.energy_model import BackendRefused, EnergyModel
from tests.contract.calls import CHAIN, model, scores
from tests.contract.settings import BACKENDS, ENGINES, exact_queries

torch.set_num_threads(1)

NEEDED = {
    "log_partition", "marginals", "factor_marginals", "max_marginals", "map", "n_best", "sample", "entropy", "log_prob",
    "max_with_cost",
}  # fmt: skip
# Backends that promise exact answers to everything; what they owe each other is exact.
ALL = [using for using in (*BACKENDS, *ENGINES) if exact_queries(using) >= NEEDED]


def every_answer(made: EnergyModel, using: str, **arguments: Any) -> list[Tensor]:
    """The tensors of all answers that need no luck."""
    posterior = made.infer(using=using, **arguments)
    batch, size = posterior.problem.env.batch.size, posterior.problem.env.batch.along["T"].size
    labels = torch.zeros(batch, size, dtype=torch.long)
    found = [posterior.log_partition, posterior.entropy, posterior.log_prob(y=labels), posterior.map().score]
    found += [posterior.n_best(3).score, posterior.max_with_cost(y=torch.ones(batch, size, 3)).score]
    for tensors in (posterior.marginals, posterior.factor_marginals, posterior.max_marginals):
        found += list(tensors.values())
    return found


def same(one: list[Tensor], other: list[Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a.detach(), b.detach())


# ---------------------------------------------------------------------------------------------------- ways of calling


@pytest.mark.parametrize("using", ALL)
def test_lengths_may_be_lists_tensors_or_dicts(using: str) -> None:
    made, u = model(), scores()
    wanted = every_answer(made, using, u=u, lengths=torch.tensor([4, 2]))
    same(every_answer(made, using, u=u, lengths=[4, 2]), wanted)
    same(every_answer(made, using, u=u, lengths={"T": [4, 2]}), wanted)
    same(every_answer(made, using, u=u, lengths=torch.tensor([4, 2], dtype=torch.int32)), wanted)
    same(every_answer(made, using, u=u, mask=torch.tensor([[True] * 4, [True, True, False, False]])), wanted)


@pytest.mark.parametrize("using", ALL)
@pytest.mark.parametrize("batch, size", [(0, 3), (2, 0), (0, 0)])
def test_empty_batches_and_empty_sequences(using: str, batch: int, size: int) -> None:
    made, u = model(), scores(batch, size)
    for lengths in (None, [0] * batch):
        given: dict[str, Any] = {"u": u} if lengths is None else {"u": u, "lengths": lengths}
        assert all(one.shape[0] == batch for one in every_answer(made, using, **given))
        drawn = made.infer(using=using, **given).sample(2)
        assert drawn["y"].shape == (2, batch, size)
        labels = torch.zeros(batch, size, dtype=torch.long)
        for objective in ("nll", "ssvm", "marginal_ce"):
            loss = made.loss(objective=objective, using=using, y=labels, **given)
            assert float(loss.detach()) == 0.0
            if using == "exact":
                loss.backward()


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("kind", ["output", "latent"])
def test_empty_batches_of_graphs_have_gradients(kind: str, engine: str) -> None:
    made = em.compile(
        f"""
labels A = {{a, b}}
dim N, E
input link : edge(N, N)[E]
input u : real[N, A]
output y : A[N]
{kind} z : A[N]
factor own [i in N] (y[i]) = u[i]
factor other [i in N] (y[i], z[i]) = potts(0.5)
factor pair [e = (i, j) in link] (y[i], y[j]) = potts(1.0)
infer exact(engine: {engine})
"""
    )
    u = torch.zeros(0, 3, 2, requires_grad=True)
    given: dict[str, Any] = {"u": u, "link": torch.zeros(0, 4, 2, dtype=torch.long)}
    posterior = made.infer(**given)
    values = (posterior.log_partition, posterior.entropy, posterior.marginals["y"], posterior.map().score,
              posterior.n_best(2).score, posterior.log_prob(y=torch.zeros(0, 3, dtype=torch.long)),
              posterior.factor_marginals["pair"])  # fmt: skip
    assert [len(one) for one in values] == [0] * len(values)
    for one in values:
        (slope,) = torch.autograd.grad(one.sum(), u, retain_graph=True)
        assert slope.shape == u.shape
    assert posterior.sample(2)["y"].shape == (2, 0, 3)


@pytest.mark.parametrize("using", ALL)
def test_inputs_follow_the_parameters(using: str) -> None:
    made, u = model(), scores()
    wanted = every_answer(made, using, u=u)
    found = every_answer(made, using, u=u.double())
    assert all(one.dtype == torch.float32 for one in found)
    same(found, wanted)
    double = model().double()
    found = every_answer(double, using, u=u)
    assert all(one.dtype == torch.float64 for one in found)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b.double(), atol=1e-4, rtol=1e-4)
    leaf = u.double().requires_grad_()
    made.infer(using=using, u=leaf).log_partition.sum().backward()
    assert leaf.grad is not None and leaf.grad.dtype == torch.float64


@pytest.mark.parametrize("using", ALL)
def test_without_gradients_and_in_inference_mode(using: str) -> None:
    made, u = model(), scores()
    wanted = every_answer(made, using, u=u, lengths=[4, 2])
    with torch.no_grad():
        found = every_answer(made, using, u=u, lengths=[4, 2])
        same(found, wanted)
        assert not any(one.requires_grad for one in found)
    with torch.inference_mode():
        same(every_answer(made, using, u=u.clone(), lengths=[4, 2]), wanted)
        made.infer(using=using, u=u).sample(2)
    made.infer(using=using, u=u, lengths=[4, 2]).log_partition.sum().backward()


@pytest.mark.parametrize("using", ALL)
def test_what_was_asked_without_gradients_can_be_asked_again_with_them(using: str) -> None:
    made, u = model(), scores()
    posterior = made.infer(using=using, u=u)
    with torch.no_grad():
        posterior.map()
        silent = posterior.log_partition
        assert not posterior.marginals["y"].requires_grad
    assert not silent.requires_grad
    assert posterior.log_partition.requires_grad
    assert posterior.marginals["y"].requires_grad
    posterior.log_partition.sum().backward()
    with torch.no_grad():
        assert posterior.log_partition is not silent


@pytest.mark.parametrize("using", ALL)
def test_threads(using: str) -> None:
    made = model()
    batches = [scores(3, 4) + n for n in range(8)]
    wanted = [made.infer(using=using, u=u, lengths=[4, 3, 1]).log_partition.detach() for u in batches]
    found: list[Tensor | None] = [None] * len(batches)
    problems: list[BaseException] = []
    fresh = model()

    def work(start: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(3):
                    for n in range(start, len(batches), 2):
                        posterior = fresh.infer(using=using, u=batches[n], lengths=[4, 3, 1])
                        posterior.marginals, posterior.map()
                        found[n] = posterior.log_partition
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    for one, other in zip(found, wanted, strict=True):
        assert one is not None
        torch.testing.assert_close(one, other)


# ------------------------------------------------------------------------------------------------------------- copies


@pytest.mark.parametrize("using", ALL)
def test_copies_pickles_and_state_dicts(using: str) -> None:
    made, u = model(), scores()
    wanted = every_answer(made, using, u=u)
    copied = copy.deepcopy(made)
    same(every_answer(copied, using, u=u), wanted)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(1.0)
    same(every_answer(made, using, u=u), wanted)
    same(every_answer(pickle.loads(pickle.dumps(made)), using, u=u), wanted)
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    same(every_answer(torch.load(file, weights_only=False), using, u=u), wanted)
    other = em.compile(CHAIN, seed=1)
    other.load_state_dict(made.state_dict())
    same(every_answer(other, using, u=u), wanted)
    assert set(made.state_dict()) == {"w", "f.linear.weight", "f.linear.bias", "_extra_state"}


def test_a_pickle_keeps_labels_from_data_and_gains() -> None:
    text = CHAIN.replace("labels Tag = {A, B, C}", "labels Tag from data").replace("forbid y[0] = C\n", "")
    made = em.compile(text, labels={"Tag": ["p", "q", "r"]}, seed=0)
    made.gains["y.pair"] = 3.0
    again = pickle.loads(pickle.dumps(made))
    u = scores()
    same(every_answer(again, "exact", u=u), every_answer(made, "exact", u=u))
    assert again.infer(u=u).map().decode() == made.infer(u=u).map().decode()
    assert {label for labels in made.infer(u=u).map().decode() for label in labels} <= {"p", "q", "r"}


def test_gains_scale_a_term_and_leave_constraints_alone() -> None:
    made, u = model(), scores()
    plain = made.infer(using="exact", u=u)
    made.gains.update({"y.unary": 2.0, "y.pair": 0.0, "forbid.1": 0.0})
    for using in ALL:
        scaled = made.infer(using=using, u=u)
        assert not scaled.log_partition.isnan().any()
        assert (scaled.marginals["y"][:, 0, 2] == 0).all()
    unary = plain.problem.terms[0].table(plain.problem.env).double()
    unary[:, 0, 2] = float("-inf")
    torch.testing.assert_close(scaled.log_partition.double(), (2 * unary).logsumexp(-1).sum(-1), atol=1e-4, rtol=1e-4)


# --------------------------------------------------------------------------------------------------------- the oracle


def test_the_limit_is_kept_before_anything_is_allocated() -> None:
    made = em.compile(CHAIN)
    with pytest.raises(QueryRefused, match="the limit is 1000000"):
        made.infer(using="enumerate", u=torch.zeros(1, 2000, 3)).map()
    with pytest.raises(QueryRefused, match="the limit is 80"):
        made.infer(using="enumerate(limit: 80)", u=torch.zeros(1, 4, 3)).map()
    found = made.infer(using="enumerate(limit: 81)", u=torch.zeros(1, 4, 3)).ask("log_partition")
    assert found.statistics["answers"] == 81


def test_a_model_whose_sizes_are_known_is_refused_as_a_whole() -> None:
    made = em.compile(
        "dim H = 4\nlabels Tag = {A, B}\noutput y : Tag[H]\nfactor f [i in H] (y[i]) = v\nparam v : real[Tag]\n"
    )
    with pytest.raises(BackendRefused, match="the limit is 15"):
        made.infer(using="enumerate(limit: 15)")
    assert made.infer(using="enumerate(limit: 16)").log_partition.shape == (1,)


def test_evidence_leaves_fewer_answers() -> None:
    labels = torch.zeros(1, 2000, dtype=torch.long)
    labels[0, 0] = 1
    labels[0, 5:8] = -1
    found = model().infer(using="enumerate", u=torch.zeros(1, 2000, 3), evidence={"y": labels}).ask("map")
    assert found.statistics["answers"] == 27


def test_many_answers_of_a_network_fit_into_memory() -> None:
    text = """\
dim T
labels Tag = {A, B}
input x : real[T, 64]
output y : Tag[T]
net decoder = lstm_decoder(hidden: 16, attention: dot)
sequence y { step: decoder, given: x, normalize: local }
"""
    made = em.compile(text, seed=0)
    with torch.no_grad():
        posterior = made.infer(using="enumerate", x=torch.randn(1, 13, 64))
        assert abs(float(posterior.log_partition)) < 1e-3


# --------------------------------------------------------------------------------------------------------- impossible


@pytest.mark.parametrize("using", ALL)
def test_when_every_answer_is_forbidden(using: str) -> None:
    made = em.compile(CHAIN + "forbid [t in T] y[t] ~ '*'\n", seed=0)
    posterior = made.infer(using=using, u=scores(2, 3), lengths=[3, 0])
    assert posterior.log_partition.tolist() == [float("-inf"), 0.0]
    assert not posterior.marginals["y"].any()
    assert posterior.entropy.tolist() == [0.0, 0.0]
    assert posterior.map().score.tolist() == [float("-inf"), 0.0]
    assert (posterior.map()["y"] == -1).all()
    drawn = posterior.sample(2)
    assert (drawn["y"] == -1).all() and drawn.score[:, 0].isneginf().all()
    assert posterior.map().decode() == [[], []]
    assert posterior.log_prob(y=torch.zeros(2, 3, dtype=torch.long)).tolist() == [float("-inf"), 0.0]
    losses = {
        objective: made.loss(objective=objective, using=using, reduction="none", u=scores(2, 3), lengths=[3, 0],
                             y=torch.zeros(2, 3, dtype=torch.long))
        for objective in ("nll", "ssvm", "marginal_ce")
    }  # fmt: skip
    assert losses["nll"].tolist() == [float("inf"), 0.0]
    assert losses["ssvm"].tolist() == [float("inf"), 0.0]
    assert not losses["marginal_ce"].isnan().any()


def test_a_scalar_without_an_answer_has_no_name() -> None:
    made = em.compile("labels Tag = {A, B}\ninput u : real[Tag]\noutput s : Tag\nfactor f (s) = u\n")
    u = torch.tensor([[0.0, 1.0], [float("-inf"), float("-inf")]])
    best = made.infer(u=u)
    assert best.map().decode() == ["B", None]
    assert best.n_best(2).decode("s") == [["B", "A"], [None, None]]
    with pytest.raises(KeyError, match="no labels for `t`"):
        best.map().decode("t")


@pytest.mark.parametrize("using", [*BACKENDS])
def test_a_model_that_was_used_in_inference_mode_can_be_trained(using: str) -> None:
    """What backends keep of a structure serves calls that want gradients."""
    made, u = model(), scores()
    using = {"trw": "trw(steps: 3)", "dual": "dual(steps: 2)"}.get(using, using)
    if not made.plan(using).verdict.serves:
        return
    made.inference_module(using)
    asked = [one for one in ("log_partition", "entropy", "marginals") if one in made.plan(using).verdict.answers]
    with torch.inference_mode():
        for kind in asked:
            made.infer(using=using, u=u.clone()).ask(kind)
    for kind in asked:
        value = made.infer(using=using, u=u).ask(kind).value
        one = value if isinstance(value, Tensor) else value["y"]
        if one.requires_grad:
            one.square().sum().backward()
