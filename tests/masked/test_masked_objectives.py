"""Objectives over masked energies, against every answer written down one by one."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.bind import conditionals
from energyml.diagnostics import EnergyError
from energyml.energy_model import EnergyModel
from energyml.training_state import TrainingState
from tests.masked.models import (
    GIVEN,
    JOINED,
    LENGTHS,
    LOCAL,
    MASKED,
    TRANSFORMER,
    Y,
    free_conditionals,
    log_partition,
    made,
    true_conditionals,
)

torch.set_num_threads(1)
SPECS = {"raw": MASKED, "local": LOCAL, "transformer": TRANSFORMER}


def losses(model: EnergyModel, objective: str, y: Tensor = Y, **more: object) -> Tensor:
    arguments = {"lengths": LENGTHS, **more}
    return model.loss(objective=objective, reduction="none", y=y, **arguments)  # type: ignore[arg-type]


def alone(row: int) -> Tensor:
    return Y[row, : int(LENGTHS[row])]


def gradients(model: EnergyModel, loss: Tensor) -> Tensor:
    found = torch.autograd.grad(loss.sum(), list(model.parameters()), allow_unused=True)
    return torch.cat([one.flatten() for one in found if one is not None])


# ------------------------------------------------------------------------------------------- likelihoods by enumeration


@pytest.mark.parametrize("text", SPECS.values(), ids=SPECS)
def test_exact_likelihood_and_pseudo_likelihood_of_ragged_batches(text: str) -> None:
    model = made(text)
    exact = losses(model, "nll", using="enumerate")
    pseudo = losses(model, "pseudo_likelihood")
    for row in range(3):
        y = alone(row)
        known = model.score(y=y.unsqueeze(0))[0]
        torch.testing.assert_close(exact[row], log_partition(model, len(y)) - known)
        picked = true_conditionals(model, y).gather(1, y.unsqueeze(1))
        torch.testing.assert_close(pseudo[row], -picked.sum())


@pytest.mark.parametrize("text", SPECS.values(), ids=SPECS)
def test_mlm_is_the_sum_of_masked_log_probabilities(text: str) -> None:
    model = made(text)
    found = losses(model, "mlm")
    for row in range(3):
        picked = free_conditionals(model, alone(row)).gather(1, alone(row).unsqueeze(1))
        torch.testing.assert_close(found[row], -picked.sum())
    if text is LOCAL:  # the local score is that sum
        torch.testing.assert_close(found[0], -model.score(y=Y[:1])[0])


def test_chunks_change_neither_values_nor_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(MASKED)
    whole = losses(model, "pseudo_likelihood")
    slopes = gradients(model, whole)
    passes = []
    term = model.terms[0]
    scored = type(term).score

    def watched(self: object, env: object, answer: object, copies: int = 1) -> Tensor:
        passes.append(copies)
        return scored(self, env, answer, copies)  # type: ignore[arg-type]

    monkeypatch.setattr(type(term), "score", watched)
    monkeypatch.setattr(conditionals, "TRIALS", 18)  # two trials of three examples with three positions
    found = losses(model, "pseudo_likelihood")
    assert max(passes) == 2 and sum(passes) == 9
    torch.testing.assert_close(found, whole)
    torch.testing.assert_close(gradients(model, found), slopes)
    assert sum(passes) == 16  # all but the first pass ran again on the way back


def test_chunks_beside_an_encoder_that_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = GIVEN.replace("net m", "net f = mlp(out: 2, hidden: 3)\nnet m").replace("given: x", "given: f(x)")
    model = made(text)
    x = torch.randn(3, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = losses(model, "pseudo_likelihood", x=x)
    slopes = gradients(model, whole)
    monkeypatch.setattr(conditionals, "TRIALS", 1)
    found = losses(model, "pseudo_likelihood", x=x)
    torch.testing.assert_close(found, whole)
    torch.testing.assert_close(gradients(model, found), slopes)


# -------------------------------------------------------------------------------------------------- conditional, joined


def test_energies_given_an_input() -> None:
    model = made(GIVEN)
    x = torch.randn(3, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    exact, free = losses(model, "nll", using="enumerate", x=x), losses(model, "mlm", x=x)
    pseudo = losses(model, "pseudo_likelihood", x=x)
    for row in range(3):
        y, own = alone(row), x[row : row + 1, : int(LENGTHS[row])]
        known = model.score(y=y.unsqueeze(0), x=own)[0]
        torch.testing.assert_close(exact[row], log_partition(model, len(y), x=own) - known)
        picked = free_conditionals(model, y, (own,)).gather(1, y.unsqueeze(1))
        torch.testing.assert_close(free[row], -picked.sum())
        true = true_conditionals(model, y, x=own).gather(1, y.unsqueeze(1))
        torch.testing.assert_close(pseudo[row], -true.sum())


def test_tables_count_beside_the_network() -> None:
    model = made(JOINED)
    found = losses(model, "mlm")
    w = model.get_parameter("w")
    for row in range(3):
        y, total = alone(row), torch.zeros((), dtype=torch.float64)
        scores = free_conditionals(model, y)
        for t in range(len(y)):
            own = scores[t].clone()
            if t > 0:
                own = own + w[y[t - 1]]
            if t + 1 < len(y):
                own = own + w[:, y[t + 1]]
            if t == 0:
                own[2] = float("-inf")
            total = total - own.log_softmax(0)[y[t]]
        torch.testing.assert_close(found[row], total)
    forbidden = losses(model, "mlm", torch.tensor([[2, 0, 0], [1, -1, -1], [1, 0, -1]]))
    assert forbidden[0].isposinf() and forbidden[1:].isfinite().all()


def test_gaps_in_the_mask() -> None:
    model = made(MASKED)
    gappy = torch.tensor([[0, -1, 2, 1], [-1, 1, 0, -1]])
    short = torch.tensor([[0, 2, 1], [1, 0, -1]])
    for objective in ("mlm", "pseudo_likelihood", "kl_projection(weight: 1)"):
        one = model.loss(objective=objective, reduction="none", y=gappy, mask=gappy >= 0)
        two = model.loss(objective=objective, reduction="none", y=short, lengths=torch.tensor([3, 2]))
        torch.testing.assert_close(one, two)


# ----------------------------------------------------------------------------------------------------------- projection


def test_the_projection_is_the_divergence_from_frozen_conditionals() -> None:
    model = made(MASKED)
    teacher = copy.deepcopy(model)
    first = losses(model, "kl_projection")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.7)
    again, both = losses(model, "kl_projection"), losses(model, "kl_projection(weight: 1)", y=Y)
    pseudo = losses(model, "pseudo_likelihood")
    for found, student in ((first, teacher), (again, model)):
        for row in range(3):
            log_q, log_p = free_conditionals(teacher, alone(row)), true_conditionals(student, alone(row))
            torch.testing.assert_close(found[row], (log_q.exp() * (log_q - log_p)).sum())
    # of other words, so with a teacher of its own: the model as it is now
    own = [free_conditionals(model, alone(row)) for row in range(3)]
    apart = [(q.exp() * (q - true_conditionals(model, alone(row)))).sum() for row, q in enumerate(own)]
    torch.testing.assert_close(both, torch.stack(apart) + pseudo)


def test_a_new_stage_freezes_its_own_teacher_and_a_resumed_one_says_that_it_has_none() -> None:
    model = made(MASKED)
    for epoch in (0, 1):
        losses(model, "kl_projection", training_state=TrainingState(epoch, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    moved = losses(model, "kl_projection", training_state=TrainingState(1, 2))
    anew = losses(model, "kl_projection", training_state=TrainingState(0, 2))
    assert not torch.allclose(moved, anew)
    fresh = losses(copy.deepcopy(model), "kl_projection", training_state=TrainingState(0, 2))
    torch.testing.assert_close(anew, fresh)
    with pytest.raises(EnergyError, match=r"goes on from a checkpoint.*teacher: 'runs/mlm'"):
        losses(copy.deepcopy(model), "kl_projection", training_state=TrainingState(1, 2))


def test_local_energies_of_two_labels_at_one_cell_have_nothing_to_project() -> None:
    model = made(LOCAL)
    y = torch.tensor([[1]])
    found = model.loss(objective="kl_projection", reduction="none", y=y)
    torch.testing.assert_close(found, torch.zeros(1, dtype=torch.float64))


# ---------------------------------------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("objective", ["mlm", "pseudo_likelihood", "kl_projection(weight: 0.5)", "nll"])
def test_gradients(objective: str) -> None:
    model = made(MASKED, 0.5)
    using = "enumerate" if objective == "nll" else None
    losses(model, objective, using=using)  # a teacher freezes before anything moves
    names = [name for name, _ in model.named_parameters()]

    def loss(*values: Tensor) -> Tensor:
        held = {name: one.detach() for name, one in model.named_parameters()}
        with torch.no_grad():
            for name, value in zip(names, values, strict=True):
                model.get_parameter(name).copy_(value)
        found = losses(model, objective, using=using)
        with torch.no_grad():
            for name, one in held.items():
                model.get_parameter(name).copy_(one)
        return found.sum()

    start = [one.detach().clone() for one in model.parameters()]
    slope = torch.autograd.grad(losses(model, objective, using=using).sum(), list(model.parameters()))
    step = 1e-6
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        ways = [torch.randn(one.shape, generator=generator, dtype=torch.float64) for one in start]
        ahead = loss(*[one + step * way for one, way in zip(start, ways, strict=True)])
        behind = loss(*[one - step * way for one, way in zip(start, ways, strict=True)])
        wanted = sum(float((a * b).sum()) for a, b in zip(slope, ways, strict=True))
        assert float((ahead - behind).detach()) / (2 * step) == pytest.approx(wanted, rel=1e-5, abs=1e-6)


# ---------------------------------------------------------------------------------------------------------------- noise


def test_nce_of_uniform_noise_is_the_cross_entropy_of_scores() -> None:
    """Uniform noise has the same log-probability for all answers of a length, so that only scores count."""
    model = made(MASKED)
    torch.manual_seed(0)
    found = losses(model, "nce(count: 400, noise: uniform)")
    # with many draws the mean of exp(score) is Z / answers
    for row in range(3):
        n = int(LENGTHS[row])
        gap = log_partition(model, n) - n * torch.tensor(3.0).log() + torch.tensor(401.0).log()
        assert float((found[row] - gap + model.score(y=alone(row).unsqueeze(0))[0]).detach().abs()) < 0.5


@pytest.mark.parametrize("loss", ["ranking", "binary"])
@pytest.mark.parametrize("noise", ["uniform", "unigram"])
def test_nce_values_from_its_own_draws(noise: str, loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from energyml.objectives import nce as module

    model, caught = made(MASKED), []
    for _ in range(2 if noise == "unigram" else 1):  # unigram counts what earlier batches had
        made_noise = module._NOISES[noise]
        monkeypatch.setitem(
            module._NOISES, noise, lambda *given, made_noise=made_noise: caught.append(made_noise(*given)) or caught[-1]
        )
        torch.manual_seed(3)
        found = losses(model, f"nce(count: 2, noise: {noise}, loss: {loss})")
        monkeypatch.undo()
    share = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    if noise == "unigram":
        share = share + torch.tensor([2.0, 3.0, 1.0])
    share = share / share.sum()
    drawn = caught[-1]
    for row in range(3):
        n = int(LENGTHS[row])
        every = torch.cat([Y[row : row + 1, :n], drawn.labels["y"][row, :, :n]])
        assert (drawn.labels["y"][row, :, n:] == -1).all()
        ratio = model.score(y=every) - share[every].log().sum(1)
        wanted = -ratio.log_softmax(0)[0]
        if loss == "binary":
            odds = ratio - torch.tensor(2.0).log()
            wanted = torch.nn.functional.softplus(-odds[0]) + torch.nn.functional.softplus(odds[1:]).sum()
        torch.testing.assert_close(found[row], wanted)


def test_nce_against_the_model_itself_has_the_gradient_of_likelihood() -> None:
    model = made(MASKED, 0.5)
    y = torch.tensor([[0, 2]])
    torch.manual_seed(0)
    found = model.loss(objective="nce(count: 4000, noise: sampler)", using="enumerate", y=y)
    assert float(found.detach()) == pytest.approx(float(torch.tensor(4001.0).log()))
    near = gradients(model, found)
    exact = gradients(model, model.loss(objective="nll", using="enumerate", y=y))
    assert float((near - exact).norm() / exact.norm()) < 0.1
    with pytest.raises(EnergyError, match="lack a constant"):
        model.loss(objective="nce(loss: binary, noise: sampler)", using="enumerate", y=y)


# ----------------------------------------------------------------------------------------------- contrastive divergence


def test_contrastive_divergence_of_many_steps_has_the_gradient_of_likelihood() -> None:
    model = made(MASKED, 0.5)
    y = torch.tensor([[0, 2]]).expand(40, -1)
    torch.manual_seed(0)
    objective = "contrastive_divergence(steps: 5, chains: 50)"
    near = gradients(model, model.loss(objective=objective, using="gibbs", y=y))
    exact = gradients(model, model.loss(objective="nll", using="enumerate", y=y))
    assert float((near - exact).norm() / exact.norm()) < 0.15


def test_chains_start_at_the_data_and_stay_inside_ragged_examples() -> None:
    from energyml.objectives.contrastive_divergence import _inward, _kernel, _moved

    for text, using in ((MASKED, "gibbs"), (MASKED, "metropolis"), (MASKED, "tempering(rungs: 2)"), (JOINED, "gibbs")):
        model = made(text)
        posterior = model.infer(using=using, lengths=LENGTHS)
        kernel = _kernel(posterior, model, 2)
        begin = {"y": Y.unsqueeze(1).expand(-1, 2, -1)}
        back = kernel.target.outward(_inward(kernel.target, begin))
        assert torch.equal(back["y"], begin["y"])
        torch.manual_seed(0)
        moved = _moved(kernel, begin, 4)["y"]
        assert torch.equal(moved < 0, begin["y"] < 0) and moved.max() < 3
        assert not torch.equal(moved, begin["y"])
        assert model.score(y=moved[:, 0], lengths=LENGTHS).isfinite().all()


def test_tables_alone_take_gibbs_where_the_backend_is_no_sampler() -> None:
    text = "labels L = {A, B}\ndim N\ninput u : real[N, L]\noutput y : L[N]\nparam w : real[from: L, to: L]\n"
    model = made(text + "chain y { unary: u, pair: w }\n")
    u = torch.randn(2, 3, 2, dtype=torch.float64)
    y = torch.tensor([[0, 1, 1], [1, 0, -1]])
    found = model.loss(objective="contrastive_divergence", reduction="none", u=u, y=y, lengths=torch.tensor([3, 2]))
    assert found.shape == (2,) and found.isfinite().all()


def test_persistent_chains_go_on_from_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    from energyml.objectives import contrastive_divergence as module

    model, seen = made(MASKED), []
    moved = module._moved

    def watched(kernel: object, begin: dict[str, Tensor], steps: int) -> dict[str, Tensor]:
        after = moved(kernel, begin, steps)
        seen.append((begin["y"].clone(), after["y"].clone()))
        return after

    monkeypatch.setattr(module, "_moved", watched)
    objective = "contrastive_divergence(persistent: true, chains: 2)"
    losses(model, objective, using="gibbs")
    assert torch.equal(seen[0][0], Y.unsqueeze(1).expand(-1, 2, -1))
    # other examples, in another order, padded further: chains are found by length
    y = torch.tensor([[0, 0, -1, -1], [2, 2, 2, -1], [0, 0, 0, 0]])
    losses(model, objective, y=y, lengths=torch.tensor([2, 3, 4]), using="gibbs")
    (_, before), (begin, _) = seen
    assert torch.equal(begin[0, :, :2], before[2, :, :2]) and torch.equal(begin[1, :, :3], before[0])
    assert torch.equal(begin[2], y[2].expand(2, -1))  # none of that length yet: it starts at the data
    x = torch.zeros(3, 3, 2, dtype=torch.float64)
    with pytest.raises(EnergyError, match="changes with the input `x`"):
        losses(made(GIVEN), objective, x=x, using="gibbs")


# ------------------------------------------------------------------------------------------------------- score matching


@pytest.mark.parametrize("pair", ["smooth(a)", "dense(P)"])
def test_score_matching_is_the_slope_and_the_curvature_of_the_score(pair: str) -> None:
    head = "dim T = 4\nparam P : real[row: T, column: T]\n" if pair == "dense(P)" else "dim T\nparam a : real = 0.6\n"
    text = f"{head}input u : real[T]\nfield s : real[T]\ngaussian s {{ unary: u, pair: {pair}, ridge: 0.5 }}\n"
    model = em.compile(text, seed=0).double()
    generator = torch.Generator().manual_seed(0)
    u, s = (torch.randn(2, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    lengths = None if pair == "dense(P)" else torch.tensor([4, 2])
    found = model.loss(objective="score_matching", reduction="none", u=u, s=s, lengths=lengths)
    for row, length in enumerate([4, 4] if lengths is None else [4, 2]):
        own = u[row : row + 1, :length]

        def score(values: Tensor, own: Tensor = own) -> Tensor:
            return model.score(u=own, s=values.unsqueeze(0))[0]

        slope = torch.autograd.functional.jacobian(score, s[row, :length])
        curvature = torch.autograd.functional.hessian(score, s[row, :length]).diagonal()
        torch.testing.assert_close(found[row], (0.5 * slope.square() + curvature).sum())
    found.sum().backward()
    assert all(one.grad is not None and one.grad.abs().sum() > 0 for one in model.parameters())
    with pytest.raises(EnergyError, match="unknown cell in example 1"):
        model.loss(objective="score_matching", u=u, s=torch.stack([s[0], s[1] * float("nan")]))


def test_score_matching_finds_the_precision_of_its_data() -> None:
    """Of independent cells with precision 4, the ridge that matches the score is 4."""
    text = "dim T\nparam r : real = 1.0\ninput u : real[T]\nfield s : real[T]\ngaussian s { unary: u, ridge: r }\n"
    model = em.compile(text, seed=0).double()
    s = 0.5 * torch.randn(4000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for _ in range(200):
        loss = model.loss(objective="score_matching", u=torch.zeros_like(s), s=s)
        (slope,) = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            model.get_parameter("r").sub_(slope)
    wanted = float(1 / s.square().mean())
    assert float(model.get_parameter("r").detach()) == pytest.approx(wanted, rel=1e-3)


# ------------------------------------------------------------------------------------------------------------- refusals


def test_what_objectives_refuse() -> None:
    chain = "labels L = {A, B}\ndim N\noutput y : L[N]\nparam w : real[from: L, to: L]\nchain y { pair: w }\n"
    y = torch.tensor([[0, 1]])
    with pytest.raises(EnergyError, match="no `masked` score"):
        made(chain).loss(objective="mlm", y=y)
    with pytest.raises(EnergyError, match=r"`mlm` needs a full answer.*example 0"):
        made(MASKED).loss(objective="mlm", y=torch.tensor([[0, -1, 1]]))
    latent = chain + "latent z : L[N]\nfactor both [n in N] (from: y[n], to: z[n]) = w\n"
    for objective in ("nce", "contrastive_divergence"):
        with pytest.raises(EnergyError, match="`z` is latent"):
            made(latent).loss(objective=objective, y=y)


def test_a_run_teaches_and_makes_noise(tmp_path: Path) -> None:
    from energyml.train.run import Request, train

    (tmp_path / "words.txt").write_text("A B\nB A C\nA C\nC\n", encoding="utf-8")
    spec = MASKED + "train mlm { epochs: 1 }\ndata lines('words.txt', validation: 0)\n"
    run = train(em.driver.compile_source(em.driver.Source("s", spec)), Request(root=tmp_path, out=tmp_path / "run"))
    model = run.model.double()
    q, p = free_conditionals(model, alone(0)), true_conditionals(model, alone(0))
    found = losses(made(MASKED), f"kl_projection(teacher: '{tmp_path / 'run'}')")
    other = true_conditionals(made(MASKED), alone(0))
    torch.testing.assert_close(found[0], (q.exp() * (q - other)).sum())
    assert p.shape == q.shape
    noise = f"nce(noise: sampler, run: '{tmp_path / 'run'}', count: 3)"
    assert losses(made(MASKED), noise, using="enumerate").isfinite().all()
    two = made(MASKED.replace("A, B, C", "A, B, D"))
    with pytest.raises(EnergyError, match="no `y` with the same labels"):
        losses(two, noise, using="enumerate")
