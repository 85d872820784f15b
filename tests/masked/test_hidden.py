"""Several positions hidden at once: `mlm(hide: some)`, mask-predict, and energies given another sequence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.backends.mcmc.metropolis import MaskPredict
from energyml.backends.mcmc.target import ScoreTarget
from energyml.diagnostics import EnergyError
from energyml.objectives.mlm import _hidden
from tests.masked.models import MASKED, TRANSFORMER, made

torch.set_num_threads(1)
NETWORKS = {"blstm": MASKED, "transformer": TRANSFORMER}
TRANSLATED = """\
labels German = {ein, zwei, drei, vier}
labels Phone = {A, B, C}
dim S, N
input source : German[S]
output y : Phone[N]
net encoder = blstm(hidden: 3, embed: 3, out: 4)
net m = masked_blstm(hidden: 4, embed: 3)
masked y { conditionals: m, given: encoder(source), energy: local }
"""


def test_hidden_cells_are_present_ones_and_their_number_is_uniform() -> None:
    torch.manual_seed(0)
    present = torch.arange(5) < torch.tensor([4, 1, 0]).unsqueeze(1)
    found = torch.stack([_hidden(present, training=True) for _ in range(1500)])
    assert not bool((found & ~present).any())
    shares = torch.stack([(found[:, 0].sum(1) == n).double().mean() for n in range(1, 5)])
    torch.testing.assert_close(shares, torch.full((4,), 0.25, dtype=torch.float64), atol=0.06, rtol=0)
    assert bool(found[:, 1, 0].all()) and not bool(found[:, 2].any())
    torch.testing.assert_close(found[:, 0, :4].double().mean(0), torch.full((4,), 0.625).double(), atol=0.06, rtol=0)
    assert torch.equal(_hidden(present, training=False), _hidden(present, training=False))


@pytest.mark.parametrize("text", NETWORKS.values(), ids=NETWORKS)
def test_the_loss_is_that_of_the_hidden_cells_alone(text: str) -> None:
    model = made(text).eval()
    y = torch.tensor([[0, 2, 1, 1], [1, 0, -1, -1]])
    lengths = torch.tensor([4, 2])
    found = model.loss(objective="mlm(hide: some)", reduction="none", y=y, lengths=lengths)
    hidden = _hidden(y >= 0, training=False)
    net = model._modules["m"]
    for row in range(2):
        own, here = y[row, : lengths[row]], hidden[row, : lengths[row]]
        scores: Tensor = net.hidden_scores(own.masked_fill(here, 3).unsqueeze(0), (), {})[0]  # type: ignore[union-attr,operator]
        log_p = scores.log_softmax(-1).gather(1, own.unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(found[row], -log_p[here].sum())
    # one cell alone is hidden whatever is said
    single = {"y": y[:, :1], "lengths": torch.tensor([1, 1])}
    both = [model.loss(objective=one, reduction="none", **single) for one in ("mlm", "mlm(hide: some)")]
    torch.testing.assert_close(*both)


def test_a_network_that_hides_one_position_at_a_time_says_so() -> None:
    model = made(MASKED)

    class Alone(torch.nn.Module):
        def masked_scores(self, y: Tensor, given: object, masks: object) -> Tensor:
            return torch.zeros(*y.shape, 3, dtype=torch.float64)

    model._modules["m"] = Alone()
    with pytest.raises(EnergyError, match=r"no `hidden_scores`; leave `hide: some` out"):
        model.loss(objective="mlm(hide: some)", y=torch.tensor([[0, 1]]))


def predicted(model: em.EnergyModel, rounds: int, **more: object) -> Tensor:
    """[B, N]: by the rule of Ghazvininejad et al. 2019, one example after another, written down again."""
    net, rows = model._modules["m"], []
    lengths, evidence = more["lengths"], more.get("evidence")
    for row, length in enumerate(lengths.tolist()):  # type: ignore[attr-defined]
        known = torch.full((length,), -1) if evidence is None else evidence["y"][row, :length]  # type: ignore[index]
        labels, sure = known.clone(), torch.where(known >= 0, float("inf"), 0.0).double()
        free = int((known < 0).sum())
        for number in range(rounds):
            count = -(-free * (rounds - number) // rounds)
            again = sure.argsort(stable=True)[:count]
            asked = labels.clone()
            asked[again] = 3
            scores: Tensor = net.hidden_scores(asked.unsqueeze(0), (), {})[0].log_softmax(-1)  # type: ignore[union-attr,operator]
            labels[again], sure[again] = scores.argmax(-1)[again], scores.max(-1).values[again]
        rows.append(torch.cat([labels, torch.full((4 - length,), -1)]))
    return torch.stack(rows)


@pytest.mark.parametrize("text", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("rounds", [1, 3, 10])
def test_mask_predict_hides_what_it_predicts(text: str, rounds: int) -> None:
    model, lengths = made(text, 2.0), torch.tensor([4, 2, 3])
    evidence = {"y": torch.tensor([[-1, 0, -1, -1], [-1, -1, -1, -1], [2, -1, 1, -1]])}
    for known in (None, evidence):
        more = {"lengths": lengths, "evidence": known}
        kernel = MaskPredict(ScoreTarget(model.problem(**more), 2), rounds, "confidence", "some")  # type: ignore[arg-type]
        state, _ = kernel.step(kernel.init(torch.Generator().manual_seed(0)))
        found = kernel.target.outward(state.labels)["y"]
        for chain in range(2):  # the start does not matter
            assert torch.equal(found[:, chain], predicted(model, rounds, **more))
        own = model.score(y=found[:, 0], lengths=lengths)
        torch.testing.assert_close(state.score[:, 0], own)


def test_mask_predict_does_not_depend_on_padding() -> None:
    model = made(MASKED, 2.0)
    using = "mask_predict(rounds: 4, hide: some)"
    together = model.infer(using=using, lengths=torch.tensor([4, 2])).map().labels["y"]
    alone = model.infer(using=using, lengths=torch.tensor([2])).map().labels["y"]
    assert torch.equal(together[1, :2], alone[0])


def test_energies_given_another_sequence() -> None:
    """Sampled, decoded and trained, with sources and targets of different lengths; padding changes nothing."""
    model = made(TRANSLATED)
    source = torch.tensor([[0, 1, 3, 2], [2, 2, -1, -1]])
    y = torch.tensor([[0, 2, 1], [1, 0, -1]])
    lengths = {"S": torch.tensor([4, 2]), "N": torch.tensor([3, 2])}
    energy = model.score(source=source, y=y, lengths=lengths)
    torch.testing.assert_close(energy[1:], model.score(source=source[1:, :2], y=y[1:, :2]))
    other = model.score(source=source.flip(1), y=y, lengths={**lengths, "S": torch.tensor([4, 4])})
    assert not torch.isclose(energy, other).any()
    for objective in ("mlm", "mlm(hide: some)", "pseudo_likelihood"):
        assert model.loss(objective=objective, source=source, y=y, lengths=lengths).isfinite()
    trace = model.infer(using="metropolis(sweeps: 4, block: 2, hide: some)", source=source, lengths=lengths).trace()
    assert trace.labels["y"].shape == (4, 4, 2, 3) and bool((trace.labels["y"][..., 1, 2] == -1).all())
