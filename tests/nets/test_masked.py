"""Masked networks: no position sees itself, every other one is seen, padding is not."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from energyml.nets.bound import BoundType
from energyml.nets.masked import MaskedBLSTM, MaskedTransformer

LABELS = 5
LENGTHS = (6, 1, 0, 3)
GIVEN = (BoundType(7, (None,), ("T",)), BoundType(None, (2,), (None,)))
Network = MaskedBLSTM | MaskedTransformer
NETWORKS = {
    "blstm": partial(MaskedBLSTM, hidden=6, embed=4, layers=2),
    "transformer": partial(MaskedTransformer, hidden=8, heads=2, chunk=4),
}


@pytest.fixture(params=NETWORKS)
def net(request: pytest.FixtureRequest) -> Network:
    torch.manual_seed(0)
    network: Network = NETWORKS[request.param](LABELS, GIVEN, dim="T").double()
    return network


def batch(extra: int = 0) -> tuple[Tensor, tuple[Tensor, Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(6 + extra) < torch.tensor(LENGTHS).unsqueeze(1)
    y, words = (torch.full((4, 6 + extra), -1) for _ in range(2))
    y[:, :6] = torch.randint(LABELS, (4, 6), generator=generator)
    words[:, :6] = torch.randint(7, (4, 6), generator=generator)
    topic = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    return y.masked_fill(~mask, -1), (words.masked_fill(~mask, 99), topic), {"T": mask}


def test_no_position_sees_itself_and_all_others_are_seen(net: Network) -> None:
    y, given, _ = batch()
    y = y.clamp(min=0)
    before = net.masked_scores(y, given, {})
    for t in range(6):
        other = y.clone()
        other[:, t] = (other[:, t] + 1) % LABELS
        change = (net.masked_scores(other, given, {}) - before).abs().amax(-1)
        assert (change[:, t] == 0).all()
        assert (change[:, torch.arange(6) != t] > 0).all()


def test_batch_equals_loop_of_singles(net: Network) -> None:
    for extra in (0, 3):
        y, (words, topic), masks = batch(extra)
        scores = net.masked_scores(y, (words, topic), masks)
        assert scores.shape == (4, 6 + extra, LABELS)
        assert scores.isfinite().all()
        for row, length in enumerate(LENGTHS):
            at = slice(row, row + 1)
            alone = net.masked_scores(y[at, :length], (words[at, :length], topic[at]), {})
            torch.testing.assert_close(scores[row, :length], alone[0])


def test_gaps_in_the_mask_are_skipped(net: Network) -> None:
    y, (words, topic), _ = batch()
    kept = torch.tensor([1, 2, 4])
    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[:, kept] = True
    y = y.clamp(min=0)
    short = net.masked_scores(y[:, kept], (words[:, kept], topic), {})
    torch.testing.assert_close(net.masked_scores(y, (words, topic), {"T": mask})[:, kept], short)


def test_gradients(net: Network) -> None:
    y, given, masks = batch(2)
    net.masked_scores(y, given, masks)[masks["T"]].square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if not name.endswith("key.bias"):  # moves all scores of a query alike
            assert parameter.grad.abs().sum() > 0, name


def test_nothing_waits_for_the_device(net: Network) -> None:
    """A meta tensor has no values that the host could ask for."""
    y, given, masks = batch()
    meta = tuple(tensor.to("meta") for tensor in given)
    scores = net.to("meta").masked_scores(y.to("meta"), meta, {"T": masks["T"].to("meta")})
    assert scores.shape == (4, 6, LABELS)


def test_float32_without_anything_given() -> None:
    y, _, masks = batch()
    for make in NETWORKS.values():
        assert make(LABELS, dim="T").masked_scores(y, (), masks).dtype == torch.float32


def test_blstm_reads_the_left_and_the_right_state() -> None:
    torch.manual_seed(0)
    net = MaskedBLSTM(LABELS, hidden=6, embed=4, dim="T")
    y = torch.tensor([[1, 4, 0, 2]])
    embedded = net.label_embedding(y)
    ahead = net.left.ahead[0](torch.cat([net.ends[0].expand(1, 1, -1), embedded], 1))[0]
    back = net.right.ahead[0](torch.cat([net.ends[1].expand(1, 1, -1), embedded.flip(1)], 1))[0]
    for t in range(4):
        states = torch.cat([ahead[:, t], back[:, 3 - t]], dim=-1)
        torch.testing.assert_close(net.masked_scores(y, (), {})[:, t], net.readout(torch.tanh(net.join(states))))


def test_chunks_do_not_change_the_scores() -> None:
    y, _, masks = batch()
    torch.manual_seed(0)
    net = MaskedTransformer(LABELS, dim="T").double()
    whole = net.masked_scores(y, (), masks)
    for net.chunk in (1, 4, 6):
        torch.testing.assert_close(net.masked_scores(y, (), masks), whole)


# ------------------------------------------------------------------------------------------------------------- a memory

MEMORY = (*GIVEN, BoundType(9, (None,), ("S",)), BoundType(None, (None, 3), ("S", None)))


@pytest.fixture(params=NETWORKS)
def attending(request: pytest.FixtureRequest) -> Network:
    torch.manual_seed(0)
    network: Network = NETWORKS[request.param](LABELS, MEMORY, dim="T").double()
    return network


def with_memory(extra: int = 0) -> tuple[Tensor, tuple[Tensor, ...], dict[str, Tensor]]:
    y, given, masks = batch()
    generator = torch.Generator().manual_seed(2)
    exists = torch.arange(4 + extra) < torch.tensor([4, 2, 3, 1]).unsqueeze(1)
    words = torch.full((4, 4 + extra), -1)
    words[:, :4] = torch.randint(9, (4, 4), generator=generator)
    vectors = torch.full((4, 4 + extra, 3), 7.0, dtype=torch.float64)
    vectors[:, :4] = torch.randn(4, 4, 3, generator=generator, dtype=torch.float64)
    return y, (*given, words.masked_fill(~exists, -1), vectors), {**masks, "S": exists}


def test_a_memory_is_attended_to_by_every_position(attending: Network) -> None:
    y, given, masks = with_memory()
    before = attending.masked_scores(y, given, masks)
    for s in range(2):
        words = given[2].clone()
        words[0, s] = (words[0, s] + 1) % 9
        after = attending.masked_scores(y, (*given[:2], words, given[3]), masks)
        change = (after - before).abs().amax(-1)
        assert (change[0] > 0).all() and (change[1:] == 0).all()
    torch.testing.assert_close(attending.masked_scores(*with_memory(extra=3))[:, :6][masks["T"]], before[masks["T"]])


def test_no_position_sees_itself_beside_a_memory(attending: Network) -> None:
    y, given, masks = with_memory()
    before = attending.masked_scores(y, given, masks)
    for t in range(6):
        other = y.clone()
        other[0, t] = (y[0, t] + 1) % LABELS
        change = (attending.masked_scores(other, given, masks) - before).abs().amax(-1)
        assert change[0, t] == 0 and (change[0, torch.arange(6) != t] > 0).all()


# ------------------------------------------------------------------------------------------------- positions hidden


def test_what_is_hidden_is_not_seen_and_one_hidden_position_is_a_masked_one(attending: Network) -> None:
    y, given, masks = with_memory()
    masked = attending.masked_scores(y, given, masks)
    for t in range(6):
        one = y.clone()
        one[0, t] = LABELS
        found = attending.hidden_scores(one, given, masks)
        torch.testing.assert_close(found[0, t], masked[0, t])
    several = y.clone()
    several[0, [1, 4]] = LABELS
    found = attending.hidden_scores(several, given, masks)
    # in the copies that mask one of the two, the other one was seen
    assert (found[0, [1, 4]] - masked[0, [1, 4]]).abs().amax() > 1e-3
    found[0, [1, 4]].square().sum().backward()
    assert all(parameter.grad is not None for parameter in attending.parameters())


def test_mistakes_are_named() -> None:
    apart = (BoundType(7, (None,), ("S",)), BoundType(7, (None,), ("R",)))
    with pytest.raises(ValueError, match="run over different dims: R, S"):
        MaskedBLSTM(LABELS, apart, dim="T")
    with pytest.raises(ValueError, match="chunk: 0 is not at least 1"):
        MaskedTransformer(LABELS, dim="T", chunk=0)
