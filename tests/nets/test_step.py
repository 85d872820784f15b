"""Step networks: rows on their own, the start symbol, attention, caches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from energyml.nets.bound import BoundType
from energyml.nets.step import LSTMDecoder, LSTMState, TransformerDecoder, TransformerState

LABELS = 5
MEMORY = BoundType(None, (None, 3), ("S", None))
WORDS = BoundType(7, (None,), ("S",))
TOPIC = BoundType(None, (2,), (None,))
Network = LSTMDecoder | TransformerDecoder
State = LSTMState | TransformerState

NETWORKS = {
    **{
        f"{cell}-{attention}": (
            LSTMDecoder,
            {"attention": attention, "cell": cell, "hidden": 6, "embed": 4, "layers": layers},
        )
        for cell, layers in (("lstm", 1), ("gru", 2))
        for attention in ("none", "aligned", "dot", "bahdanau")
    },
    "transformer": (TransformerDecoder, {"hidden": 8, "heads": 2, "layers": 2}),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


def build(name: str, given: tuple[BoundType, ...] = (MEMORY, WORDS, TOPIC)) -> Network:
    torch.manual_seed(0)
    make, options = NETWORKS[name]
    return make(LABELS, given, dim="T", **options).double()


def observed(extra: int = 0) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Three examples of lengths 4, 1 and 0, with garbage in the padding."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(4 + extra) < torch.tensor([[4], [1], [0]])
    memory = torch.full((3, 4 + extra, 3), float("nan"), dtype=torch.float64)
    memory[:, :4] = torch.randn(3, 4, 3, generator=generator, dtype=torch.float64)
    memory[~mask] = float("nan")
    words = torch.full((3, 4 + extra), -1)
    words[:, :4] = torch.randint(7, (3, 4), generator=generator)
    return (memory, words, torch.randn(3, 2, generator=generator, dtype=torch.float64)), {"S": mask}


def run(net: Network, y: Tensor, given: tuple[Tensor, ...], masks: dict[str, Tensor]) -> Tensor:
    """Scores ``[B, T, labels]``, step by step."""
    state: State = net.start(given, masks, y.shape[0])
    before = torch.full_like(y[:, 0], LABELS)
    scores = []
    for t in range(y.shape[1]):
        score, state = net.step(state, net.embed(before), t)  # type: ignore[arg-type]
        assert all(field.shape[0] == y.shape[0] for field in state)
        scores.append(score)
        before = y[:, t]
    return torch.stack(scores, dim=1)


Y = torch.tensor([[0, 3, 2, 4, 1, 1], [1, 1, 0, 2, 3, 0], [4, 0, 0, 1, 2, 2]])


@every_network
def test_rows_are_independent_and_padding_is_not_seen(name: str) -> None:
    net = build(name)
    together = run(net, Y, *observed())
    assert together.shape == (3, 6, LABELS)
    assert together.isfinite().all()
    torch.testing.assert_close(run(net, Y, *observed(extra=3)), together)
    (memory, words, topic), masks = observed()
    for row, length in enumerate(masks["S"].sum(1).tolist()):
        at = slice(row, row + 1)
        alone = run(net, Y[at], (memory[at, :length], words[at, :length], topic[at]), {})
        torch.testing.assert_close(alone[0], together[row])


@every_network
def test_forced_equals_the_steps(name: str) -> None:
    net = build(name)
    given, masks = observed()
    torch.testing.assert_close(net.forced(Y, given, masks), run(net, Y, given, masks))
    assert net.forced(Y[:, :0], given, masks).shape == (3, 0, LABELS)


@pytest.mark.parametrize("name", ["lstm-none", "gru-none", "transformer"])
def test_forced_equals_the_steps_without_anything_given(name: str) -> None:
    net = build(name, ())
    torch.testing.assert_close(net.forced(Y, (), {}), run(net, Y, (), {}))


@every_network
def test_nothing_waits_for_the_device(name: str) -> None:
    """A meta tensor has no values that the host could ask for."""
    net = build(name).to("meta")
    given, masks = observed()
    args = tuple(tensor.to("meta") for tensor in given), {"S": masks["S"].to("meta")}
    assert run(net, Y.to("meta"), *args).shape == net.forced(Y.to("meta"), *args).shape == (3, 6, LABELS)


@every_network
def test_scores_see_only_the_labels_before(name: str) -> None:
    net = build(name)
    other = Y.clone()
    other[:, 3] = (other[:, 3] + 1) % LABELS
    before, after = run(net, Y, *observed()), run(net, other, *observed())
    assert torch.equal(before[:, :4], after[:, :4])
    assert ((before - after)[:, 4:].abs().amax(-1) > 0).all()


@every_network
def test_states_can_be_gathered_and_blended(name: str) -> None:
    """Equal rows blend to themselves, and a beam of gathered rows goes on like its parents."""
    net = build(name)
    state: State = net.start(*observed(), 3)
    _, state = net.step(state, net.embed(torch.full((3,), LABELS)), 0)  # type: ignore[arg-type]
    parents = torch.tensor([1, 1, 0])
    gathered = state._replace(**{field: getattr(state, field)[parents] for field in state._fields})
    weights = torch.tensor([[0.3, 0.7, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    fields = {field: torch.einsum("ij,j...->i...", weights, getattr(gathered, field)) for field in state._fields}
    blended = state._replace(**fields)
    labels = torch.tensor([2, 4, 1])
    wanted, _ = net.step(gathered, net.embed(labels), 1)  # type: ignore[arg-type]
    found, _ = net.step(blended, net.embed(labels), 1)  # type: ignore[arg-type]
    torch.testing.assert_close(found, wanted)
    assert set(net.varying) <= set(state._fields)
    unchanged = set(state._fields) - set(net.varying)
    _, later = net.step(state, net.embed(labels), 1)  # type: ignore[arg-type]
    assert all(torch.equal(getattr(state, field), getattr(later, field)) for field in unchanged)


@every_network
def test_soft_embeddings_agree_at_the_corners(name: str) -> None:
    net = build(name)
    corners = torch.eye(LABELS, dtype=torch.float64)
    torch.testing.assert_close(net.embed_soft(corners), net.embed(torch.arange(LABELS)))
    assert not torch.equal(net.embed(torch.tensor(LABELS)), net.embed(torch.tensor(LABELS - 1)))


@every_network
def test_gradients(name: str) -> None:
    net = build(name)
    run(net, Y, *observed()).square().sum().backward()
    for field, parameter in net.named_parameters():
        assert parameter.grad is not None, field
        assert parameter.grad.isfinite().all(), field
        if not field.endswith("key.bias"):  # moves all scores of a query alike
            assert parameter.grad.abs().sum() > 0, field


@every_network
def test_float32(name: str) -> None:
    (memory, words, topic), masks = observed()
    assert run(build(name).float(), Y, (memory.float(), words, topic.float()), masks).dtype == torch.float32


def test_starts_from_zero_like_the_lstm_of_torch() -> None:
    net = build("lstm-none", ())
    assert isinstance(net, LSTMDecoder)
    inputs = net.embed(torch.cat([torch.full((3, 1), LABELS), Y[:, :-1]], dim=1))
    torch.testing.assert_close(run(net, Y, (), {}), net.readout(net.recurrence(inputs)[0]))


@pytest.mark.parametrize("name", ["transformer", "lstm-aligned"])
def test_the_order_of_what_is_given_matters(name: str) -> None:
    net = build(name, (MEMORY,))
    (memory, *_), _ = observed()
    there, back = (run(net, Y[:1], (each,), {}) for each in (memory[:1], memory[:1].flip(1)))
    assert not torch.allclose(there, back)


def test_aligned_attention_stays_at_the_last_existing_position() -> None:
    net = build("lstm-aligned", (MEMORY,))
    (memory, *_), masks = observed(extra=2)
    state = net.start((memory,), masks, 3)
    torch.testing.assert_close(state.memory[0, 4:], memory[0, 3].expand(2, -1))
    torch.testing.assert_close(state.memory[1], memory[1, 0].expand(6, -1))
    assert (state.memory[2] == 0).all()


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="attention: dot needs a given tensor"):
        LSTMDecoder(LABELS, (TOPIC,), attention="dot")
    with pytest.raises(ValueError, match="attention: 'luong' is not one of none, aligned, dot, bahdanau"):
        LSTMDecoder(LABELS, (MEMORY,), attention="luong")
    with pytest.raises(ValueError, match="different dims: R, S"):
        LSTMDecoder(LABELS, (MEMORY, BoundType(3, (None,), ("R",))))
    with pytest.raises(ValueError, match="hidden: 10 is not a multiple of heads: 4"):
        TransformerDecoder(LABELS, hidden=10)
