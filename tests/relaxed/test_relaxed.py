"""Gradient ascent on relaxed labels: the steps of the papers, starting points, rounding, constraints, refusals."""

from __future__ import annotations

import warnings
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.backends.relaxed.oracle import share_right, tuned
from energyml.diagnostics import EnergyError
from energyml.energy_model import BackendRefused
from tests.variational.graphs import SCHEME, compiled, tagged

torch.set_num_threads(1)

CHAIN = """\
labels Tag = {A, B, C}
dim T
input u : real[T, Tag]
output y : Tag[T]
param W : real[from: Tag, to: Tag] = normal(1)
chain y { unary: u, pair: W }
"""
GRID = """\
labels Spin = {down, up}
dim H, V
input u : real[H, V, Spin]
output y : Spin[H, V]
param J : real[from: Spin, to: Spin] = normal(1)
factor site [i in H, j in V] (y[i, j]) = u[i, j]
factor below [i in H-1, j in V] (from: y[i, j], to: y[i+1, j]) = J
factor right [i in H, j in V-1] (from: y[i, j], to: y[i, j+1]) = J
"""
LENGTHS = torch.tensor([5, 2, 4])
ALONE = CHAIN.replace("chain y { unary: u, pair: W }", "factor f [t in T] (y[t]) = u[t]").replace("param", "# param")


def scores(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def chain(text: str = CHAIN) -> em.EnergyModel:
    return em.compile(text, seed=0).double()


def start_of(model: em.EnergyModel, u: Tensor, using: str = "relaxed") -> Tensor:
    """The starting logits of one example without padding, as no option changes them."""
    from energyml.backends.relaxed.backend import RelaxedAscent
    from energyml.queries import Query

    backend = RelaxedAscent(model.plan(using).verdict.selection)
    backend.prepare(model.graph, model.terms, model.structure)
    return backend.open(model.problem(u=u)).start(Query("map"))["y"]


def decoded(model: em.EnergyModel, using: str, **given: Tensor) -> Tensor:
    value: Tensor = model.infer(using=using, **given).ask("soft_decode").value["y"]
    return value


# --------------------------------------------------------------------------------------------------------------- steps


def test_momentum_is_that_of_the_paper() -> None:
    """Eq. 1 with heavy-ball momentum, by torch's own optimiser."""
    model, u = chain(), scores(2, 4, 3)
    z = start_of(model, u).clone().requires_grad_()
    optimizer = torch.optim.SGD([z], lr=0.7, momentum=0.9)
    for _ in range(6):
        optimizer.zero_grad()
        (-model.soft_score(u=u, y=z.softmax(-1)).sum()).backward()
        optimizer.step()
    found = decoded(model, "relaxed(steps: 6, lr: 0.7, tol: 0)", u=u)
    torch.testing.assert_close(found, z.softmax(-1).detach(), atol=1e-10, rtol=1e-8, check_stride=False)


def test_adam_is_adam() -> None:
    model, u = chain(), scores(2, 4, 3)
    z = start_of(model, u).clone().requires_grad_()
    optimizer = torch.optim.Adam([z], lr=0.3, betas=(0.8, 0.999))
    for _ in range(6):
        optimizer.zero_grad()
        (-model.soft_score(u=u, y=z.softmax(-1)).sum()).backward()
        optimizer.step()
    found = decoded(model, "relaxed(steps: 6, lr: 0.3, momentum: 0.8, optimizer: adam, tol: 0)", u=u)
    torch.testing.assert_close(found, z.softmax(-1).detach(), atol=1e-6, rtol=1e-5)


def test_exponentiated_gradients_stay_on_the_simplex() -> None:
    model, u = chain(), scores(2, 4, 3)
    p = start_of(model, u).softmax(-1)
    for _ in range(4):
        p = p.detach().requires_grad_()
        (slope,) = torch.autograd.grad(model.soft_score(u=u, y=p).sum(), p)
        p = p * (0.4 * slope).exp()
        p = p / p.sum(-1, keepdim=True)
    found = decoded(model, "relaxed(steps: 4, lr: 0.4, momentum: 0, optimizer: exponentiated, tol: 0)", u=u)
    torch.testing.assert_close(found, p.detach())


@pytest.mark.parametrize("optimizer", ["sgd", "exponentiated"])
def test_a_searched_step_never_lowers_the_score(optimizer: str) -> None:
    model, u = chain(), scores(3, 5, 3)
    values = []
    for steps in (1, 2, 4, 8, 16, 32):
        with torch.no_grad():
            p = decoded(model, f"relaxed(steps: {steps}, lr: search, optimizer: {optimizer})", u=u)
            values.append(model.soft_score(u=u, y=p))
    assert all(bool((after >= before - 1e-9).all()) for before, after in pairwise(values))
    assert bool((values[-1] > values[0]).all())


def test_entropy_leads_to_known_probabilities() -> None:
    """Without couplings, score plus entropy is largest at the softmax of the scores."""
    model, u = chain(ALONE), scores(2, 4, 3)
    found = decoded(model, "relaxed(steps: 400, lr: search, entropy: 1, tol: 1e-12)", u=u).detach()
    torch.testing.assert_close(found, u.softmax(-1), atol=1e-5, rtol=1e-4)
    sharp = decoded(model, "relaxed(steps: 200, lr: 2, entropy: 1 -> 0)", u=u).detach()
    assert torch.equal(sharp.argmax(-1), u.argmax(-1)) and bool((sharp.amax(-1) > found.amax(-1)).all())


def test_each_example_stops_for_itself() -> None:
    model, u = chain(), scores(4, 5, 3)
    u[0] *= 50
    result = model.infer(u=u, using="relaxed(steps: 60, lr: 5, tol: 1e-3)").ask("map")
    assert 0 < result.statistics["steps"] < 60 and 0 < result.statistics["converged"] <= 1
    every = model.infer(u=u, using="relaxed(steps: 60, lr: 5, tol: 0)").ask("map")
    assert every.statistics["steps"] == 60 and every.statistics["converged"] == 0


@pytest.mark.parametrize("lr", ["1", "search"])
def test_a_batch_is_its_examples(lr: str) -> None:
    model, u = chain(), scores(3, 5, 3)
    using = f"relaxed(steps: 15, lr: {lr}, start: unary, tol: 1e-3)"
    together = model.infer(u=u, lengths=LENGTHS, using=using).map()
    for number, length in enumerate(LENGTHS.tolist()):
        alone = model.infer(u=u[number : number + 1, :length], using=using).map()
        torch.testing.assert_close(alone.score[0], together.score[number])
        assert torch.equal(alone["y"][0], together["y"][number, :length])
    assert (together["y"][1, 2:] == -1).all()


def test_padding_changes_no_random_start() -> None:
    model, u = chain(), scores(3, 5, 3)
    using = "relaxed(steps: 5, restarts: 2)"
    padded = torch.cat([u, torch.full((3, 3, 3), float("nan"), dtype=torch.float64)], 1)
    one = model.infer(u=u, lengths=LENGTHS, using=using).map()
    other = model.infer(u=padded, lengths=LENGTHS, using=using).map()
    torch.testing.assert_close(one.score, other.score)
    assert torch.equal(one["y"], other["y"][:, :5])


def test_random_starts_are_normal_and_their_own() -> None:
    z = start_of(chain(), scores(40, 30, 3))
    assert abs(float(z.mean())) < 0.05 and abs(float(z.var()) - 1) < 0.1
    assert float(torch.corrcoef(z.reshape(40, -1)).fill_diagonal_(0).abs().amax()) < 0.5


def test_empty_batches_and_empty_sequences() -> None:
    model = chain()
    assert model.infer(u=scores(0, 4, 3), using="relaxed").map()["y"].shape == (0, 4)
    assert model.infer(u=scores(2, 0, 3), using="relaxed(lr: search)").map().score.tolist() == [0, 0]


# -------------------------------------------------------------------------------------------------------------- starts


def test_restarts_keep_the_best() -> None:
    model, u = chain(), scores(20, 20, 3)
    one, five = (model.infer(u=u, using=f"relaxed(restarts: {n})").map().score for n in (1, 5))
    assert bool((five >= one - 1e-9).all()) and bool((five > one + 1e-6).any())


def test_seeds_and_generators_decide() -> None:
    model, u = chain(), scores(8, 6, 3)
    first, again, other = (decoded(model, f"relaxed(steps: 1, seed: {s})", u=u).detach() for s in (3, 3, 4))
    assert torch.equal(first, again) and not torch.allclose(first, other)
    posterior = model.infer(u=u, using="relaxed(steps: 1)")
    drawn = [posterior.ask("soft_decode", generator=torch.Generator().manual_seed(s)).value["y"] for s in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.allclose(drawn[0], drawn[2])


@pytest.mark.parametrize("start", ["unary", "mean_field", "exact", "exact(engine: torch)", "relaxed(steps: 2)", "ilp"])
def test_any_backend_starts_it(start: str) -> None:
    model, u = chain(), scores(6, 5, 3)
    found = model.infer(u=u, lengths=torch.tensor([5, 5, 4, 3, 1, 0]), using=f"relaxed(start: {start}, lr: search)")
    best = model.infer(u=u, lengths=torch.tensor([5, 5, 4, 3, 1, 0]), using="exact").map().score
    assert bool((found.map().score <= best + 1e-9).all())
    if start == "ilp":  # the best answer, smoothed: no step leads away from it
        torch.testing.assert_close(found.map().score, best)


def test_an_inference_network_starts_it() -> None:
    model, u = chain(), scores(3, 5, 3)
    with pytest.raises(EnergyError, match="has not been fitted"):
        model.infer(u=u, using="relaxed(start: infnet)").map()
    using = "relaxed(start: infnet(cnn(hidden: 4)), lr: search)"
    assert model.inference_module(using) is not None
    network = model.infer(u=u, using="infnet(cnn(hidden: 4))").map().score
    assert bool((model.infer(u=u, using=using).map().score >= network - 1e-9).any())


# ------------------------------------------------------------------------------------------------------------ rounding


@pytest.mark.parametrize("text", [CHAIN, GRID])
def test_rounding_cell_by_cell_never_lowers_the_score(text: str) -> None:
    model = chain(text)
    u = scores(40, 5, 3) if text is CHAIN else scores(40, 3, 4, 2)
    found = model.infer(u=u, using="relaxed(steps: 3, lr: 0.5)").ask("map")
    assert bool((found.statistics["score"] >= found.statistics["relaxed_score"] - 1e-9).all())
    torch.testing.assert_close(found.statistics["score"], model.score(u=u, y=found.value["y"]))
    plain = model.infer(u=u, using="relaxed(steps: 3, lr: 0.5, round: argmax)").ask("map")
    assert bool((plain.statistics["score"] < plain.statistics["relaxed_score"] - 1e-6).any())


def test_evidence_holds() -> None:
    model, u = chain(), scores(2, 4, 3)
    known = torch.tensor([[-1, 2, -1, 0], [1, -1, -1, -1]])
    posterior = model.infer(u=u, evidence={"y": known}, using="relaxed(restarts: 2)")
    labels = posterior.map()["y"]
    assert torch.equal(labels[known >= 0], known[known >= 0])
    assert bool((posterior.ask("soft_decode").value["y"][0, 1] == torch.tensor([0.0, 0.0, 1.0])).all())
    none = torch.ones(2, 4, 3, dtype=torch.bool)
    none[1, 2] = False
    impossible = model.infer(u=u, evidence={"y": none}, using="relaxed")
    with pytest.warns(UserWarning, match="forbidden answers for 1 of 2"):
        answer = impossible.map()
    assert answer.score.isneginf().tolist() == [False, True] and (answer["y"][1] == -1).all()
    assert impossible.ask("soft_decode").value["y"][1].sum() == 0


@pytest.mark.parametrize("using", ["relaxed(penalty: 0)", "relaxed(round: argmax)", "relaxed(restarts: 2)"])
def test_answers_that_are_forbidden_are_repaired(using: str) -> None:
    rules = "".join(f"forbid [t in T-1] y[t] = {a} and y[t+1] = {b}\n" for a, b in ("AB", "BC", "CA", "AA"))
    box = "net f = pooled(hidden: 3, activation: tanh)\nscore tail (y) = f(soft(y))\n"
    for text in (CHAIN + rules, CHAIN + rules + box):
        model, u = chain(text), scores(20, 6, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = model.infer(u=u, using=using).ask("map")
            assert found.status.ok and found.value.score.isfinite().all()


def test_latents_are_maximised_too() -> None:
    text = CHAIN.replace("output y", "latent h : Tag[T]\noutput y") + "factor tie [t in T] (h[t], y[t]) = potts(2)\n"
    model, u = chain(text), scores(3, 4, 3)
    found = model.infer(u=u, using="relaxed").map()
    assert set(found.labels) == {"y"}
    assert bool((found.score <= model.infer(u=u, using="exact").map().score + 1e-9).all())


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("text", "using", "reason"),
    [
        (CHAIN, "relaxed(optimizer: adam, momentum: 1)", "never moves"),
        (CHAIN, "relaxed(start: cg)", "starts from `cg`, which cannot serve"),
        (CHAIN, "relaxed(start: auto)", "name the backend"),
        (CHAIN + "net f = pooled(hidden: 2)\nscore s (y) = f(hard(y))\n", "relaxed", "relaxed labels"),
        (
            CHAIN + "net f = pooled(hidden: 2)\nscore s (y) = f(soft(y))\n",
            "relaxed(start: exact)",
            "starts from `exact`",
        ),
    ],
)
def test_refusals(text: str, using: str, reason: str) -> None:
    with pytest.raises(BackendRefused, match=reason):
        chain(text).infer(u=scores(1, 2, 3), using=using)


def test_a_free_length_is_refused() -> None:
    text = """\
labels Tag = {A, stop}
dim T free <= 3
output y : Tag[T]
net next = lstm_decoder(hidden: 2, embed: 2)
sequence y { step: next, end: stop }
"""
    assert "length is part of the answer" in str(em.compile(text, seed=0).plan("relaxed").verdict.refusal)


# ----------------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("using", ["steps: 4, lr: 0.5", "steps: 4, optimizer: adam, lr: 0.3", "steps: 5, lr: search"])
def test_gradients_through_the_steps(using: str) -> None:
    model, u = chain(), scores(2, 4, 3).requires_grad_()
    mask = torch.tensor([[True, True, False, True], [True, False, False, True]])

    def labels(u: Tensor) -> Tensor:
        return decoded(model, f"relaxed({using}, tol: 0, entropy: 0.3)", u=u, mask=mask)

    assert torch.autograd.gradcheck(labels, (u,))


@pytest.mark.parametrize("text", [ALONE, CHAIN])
def test_gradients_of_the_optimum(text: str) -> None:
    """The implicit gradients are those of many unrolled steps, and of the known solution where there is one."""
    model, u = chain(text), scores(2, 4, 3).requires_grad_()
    weights = scores(2, 4, 3, seed=1)
    slopes = []
    for gradients in ("implicit", "unrolled"):
        using = f"relaxed(steps: 300, lr: 0.3, momentum: 0.6, entropy: 2, tol: 1e-13, gradients: {gradients})"
        found = decoded(model, using, u=u, lengths=torch.tensor([4, 3]))
        slopes.append(torch.autograd.grad((found * weights).sum(), (u, *model.parameters())))
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
    if text is ALONE:
        wanted = ((u / 2).softmax(-1) * weights * torch.tensor([[1.0] * 4, [1, 1, 1, 0]]).unsqueeze(-1)).sum()
        torch.testing.assert_close(slopes[0][0], torch.autograd.grad(wanted, u)[0], atol=1e-6, rtol=1e-4)


# -------------------------------------------------------------------------------------------------------------- oracle


def test_oracle_tuning_is_at_least_as_good_as_any_setting() -> None:
    model, u = chain(), scores(12, 5, 3)
    gold = model.infer(u=u, using="exact").map()["y"]
    gold[0, 1] = -1
    best = tuned(model, learning_rates=(10.0, 1.0), steps=(2, 8), u=u, y=gold)
    assert "gold labels" in repr(best) and set(best.steps.tolist()) <= {2, 8} and set(best.lr.tolist()) <= {1, 10}
    for lr in (10, 1):
        for steps in (2, 8):
            single = model.infer(u=u, using=f"relaxed(lr: {lr}, steps: {steps})").map()
            assert bool((best.metric >= share_right(single.labels, {"y": gold})).all())
            here = (best.steps == steps) & (best.lr == lr)
            torch.testing.assert_close(best.answer.score[here], single.score[here])
    with pytest.raises(EnergyError, match="gold labels"):
        tuned(model, u=u)
    with pytest.raises(EnergyError, match="`exact` was asked for"):
        tuned(model, u=u, y=gold, using="exact")


@pytest.mark.parametrize("start", ["exact", "mean_field", "unary"])
def test_small_forbidden_probabilities_do_not_decide_how_labels_are_rounded(start: str) -> None:
    """Relaxed labels near the best answer are rounded to answers near it, whatever little mass meets a constraint."""
    model, inputs = compiled(SCHEME), tagged(0, 100, 12)
    with torch.no_grad():
        found = model.infer(using=f"relaxed(start: {start})", **inputs).map()
        best = model.infer(using="exact", **inputs).map()
    assert ((best.score - found.score) <= 1e-9).double().mean() > 0.8
    assert (best.score - found.score).mean() < 0.2
