"""How the kernels of chains look into tensors: as they are, as copies, or not at all."""

import pytest
import torch

from energyml.native import chain as native

pytestmark = pytest.mark.skipif(native.kernels is None, reason="the native kernels are not built")

KINDS = torch.float32, torch.float64, torch.int64
TORCH = (torch.Tensor, torch.nn.Parameter, torch.empty_like, torch.get_num_threads, *KINDS)


class Named(torch.Tensor):
    pass


def draw(dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    unary = torch.randn(5, 6, 4, generator=generator, dtype=torch.float64).to(dtype)
    pair = torch.randn(4, 4, generator=generator, dtype=torch.float64).to(dtype)
    return unary, pair, torch.tensor([6, 0, 3, 1, 5]), torch.randint(0, 4, (5, 6), generator=generator)


def answers(unary, pair, count, labels):
    """Everything that is asked of chains, gradients included."""
    found = [native.log_partition(unary, pair, count), *native.viterbi(unary, pair, count)]
    found += native.marginals(unary, pair, count, pairs=True)
    found += native.nll_and_slopes(unary, pair, count, labels)
    scores = unary.detach().clone().requires_grad_(), pair.detach().clone().requires_grad_()
    for value in (native.log_likelihood(*scores, count, labels), native.log_partition(*scores, count)):
        weight = torch.arange(1.0, 6.0, dtype=unary.dtype)
        found += [value.detach(), *torch.autograd.grad((value * weight).sum(), scores)]
    return found


@pytest.fixture
def without_exchange():
    """As with a torch that has no functions for exchanging tensors."""
    native.kernels.introduce(*TORCH, None)
    yield
    native.kernels.introduce(*TORCH, getattr(torch.Tensor, "__dlpack_c_exchange_api__", None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attributes_say_the_same(dtype, request):
    given = draw(dtype)
    found = answers(*given)
    request.getfixturevalue("without_exchange")
    for one, other in zip(found, answers(*given), strict=True):
        assert torch.equal(one, other)


def test_whatever_lies_in_another_order_is_copied():
    unary, pair, count, labels = draw()
    found = answers(unary, pair, count, labels)
    turned = unary.transpose(0, 1).contiguous().transpose(0, 1)
    for given in (
        (turned, pair, count, labels),
        (unary, pair.t().contiguous().t(), count, labels),
        (unary, pair, count.to(torch.int32), labels),
        (unary, pair, count.repeat_interleave(2)[::2], labels.to(torch.int32)),
        (torch.nn.Parameter(unary).detach(), torch.nn.Parameter(pair), count, labels.t().contiguous().t()),
    ):
        for one, other in zip(found, answers(*given), strict=True):
            assert torch.equal(one, other)


def test_pair_scores_by_step_need_no_example():
    unary, pair, count, labels = draw()
    steps = pair + torch.arange(5.0).reshape(5, 1, 1)
    for one, other in zip(
        answers(unary, steps, count, labels), answers(unary, steps[None], count, labels), strict=True
    ):
        assert torch.equal(one, other.reshape(one.shape))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda u, p, n: (u[0], p, n),
        lambda u, p, n: (u, p[:2], n),
        lambda u, p, n: (u, p[:3, :3], n),
        lambda u, p, n: (u, p.expand(3, 4, 4), n),
        lambda u, p, n: (u, p.double(), n),
        lambda u, p, n: (u.bfloat16(), p.bfloat16(), n),
        lambda u, p, n: (u, p, n[:3]),
        lambda u, p, n: (u, p, n.unsqueeze(0)),
        lambda u, p, n: (u.to("meta"), p.to("meta"), n),
        lambda u, p, n: (u.as_subclass(Named), p, n),
        lambda u, p, n: (u.unsqueeze(0).unsqueeze(0), p, n),
    ],
)
def test_what_does_not_fit_is_left_to_others(wrong):
    unary, pair, count, labels = draw()
    given = wrong(unary, pair, count)
    assert native.log_partition(*given) is None
    assert native.viterbi(*given) is None
    assert native.marginals(*given) is None
    assert native.log_likelihood(*given, labels) is None
    assert native.nll_and_slopes(*given, labels) is None


def test_labels_of_another_size_are_left_to_others():
    unary, pair, count, labels = draw()
    assert native.log_likelihood(unary, pair, count, labels[:, :3]) is None
    with pytest.raises(ValueError, match="labels must lie between 0 and 3"):
        native.log_likelihood(unary, pair, None, labels + 1)


def test_the_kernels_say_what_they_expect():
    unary, pair, count, labels = draw()
    for name in ("chain_forward", "chain_backward", "chain_slopes", "chain_covariances"):
        kernel = getattr(native.kernels, name)
        with pytest.raises(TypeError, match="arguments"):
            kernel(unary)
    weight = torch.ones(5)
    with pytest.raises(TypeError, match="contiguous chains"):
        native.kernels.chain_slopes(unary.transpose(0, 1), pair, count, labels, weight, True, 1)
    with pytest.raises(TypeError, match="contiguous tensors"):
        native.kernels.chain_forward(unary, pair, count, "kept", weight, 1)
    with pytest.raises(TypeError, match="a label for each cell"):
        native.kernels.chain_slopes(unary, pair, count, labels.to(torch.int32), weight, True, 1)
    with pytest.raises(TypeError, match="a weight for each chain"):
        native.kernels.chain_slopes(unary, pair, count, labels, weight.double(), True, 1)
    assert native.kernels.common_weight(weight) == 1
    assert native.kernels.common_weight(torch.arange(5.0)) is None
