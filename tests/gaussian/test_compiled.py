"""The kernel for low-rank couplings against torch's formulas, and Fourier transforms against products."""

from dataclasses import replace

import pytest
import torch

import energyml as em
from energyml.backends.gaussian import bases, compiled
from energyml.backends.gaussian.bases import Diagonal, Transform
from energyml.backends.gaussian.compiled import low_rank_solution
from energyml.backends.gaussian.solver import solved
from energyml.backends.gaussian.woodbury import Woodbury
from energyml.bind.lowrank import Bound, Vectors
from energyml.bind.quadratic import QuadraticForm, Sizes, Stencil
from energyml.native import lowrank

native = pytest.mark.skipif(lowrank.kernels is None, reason="the native extension was not built")

# batch, channels, rank, positions, then what is particular
CASES = {
    "potts": (2, 2, 5, 30, {}),
    "one label": (2, 1, 4, 30, {}),
    "five labels": (2, 5, 3, 21, {}),
    "one vector": (3, 2, 1, 600, {}),
    "more vectors than positions": (2, 3, 9, 4, {}),
    "one position": (1, 2, 2, 1, {}),
    "shared vectors": (3, 2, 6, 40, {"shared": True}),
    "masked": (3, 2, 6, 40, {"masked": True}),
    "shared and masked": (3, 2, 6, 40, {"masked": True, "shared": True}),
    "given strength": (3, 2, 6, 40, {"bounded": False}),
    "one strength": (3, 2, 6, 40, {"bounded": False, "one": True}),
    "each channel alone": (2, 3, 6, 40, {"bounded": False, "within": 1.0, "across": 0.0}),
    "several panels": (1, 2, 7, 1111, {}),
    "decaying": (1, 2, 24, 700, {"decaying": True}),
    # panels without a rest are copied while the first products are made of them
    "whole panels": (2, 2, 20, 1024, {}),
    "whole panels, one label": (1, 1, 13, 512, {}),
    "whole panels, many labels": (1, 7, 8, 512, {}),
    "whole panels, shared vectors": (4, 3, 10, 512, {"shared": True}),
    "whole panels, decaying": (2, 2, 50, 1024, {"decaying": True}),
}


def drawn(case, dtype=torch.float64, seed=0):
    """A form, a right-hand side, and its tensors with gradients: ridge, vectors, perhaps strength, right-hand side."""
    batch, channels, rank, positions, options = CASES[case]
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes):
        return torch.randn(sizes, generator=generator, dtype=torch.float64)

    shared = options.get("shared", False)
    values = normal(1 if shared else batch, rank, positions) * 2 / positions**0.5
    if options.get("decaying"):
        values = values * torch.arange(1, rank + 1).double().pow(-1)[:, None]
    present = None
    if options.get("masked"):
        present = torch.rand(1 if shared else batch, positions, generator=generator) < 0.7
        values, present = values * present.unsqueeze(1), present.expand(batch, -1)
    count = 1 if options.get("one") else batch
    ridge = 1 + torch.rand(count, generator=generator, dtype=torch.float64)
    rhs = normal(batch, channels, positions)
    within, across = options.get("within", 0.0), options.get("across", 1.0)
    leaves = [ridge, values, rhs]
    if not options.get("bounded", True):
        leaves.insert(2, torch.full((count,), 0.02, dtype=torch.float64))
    leaves = [one.to(dtype).requires_grad_() for one in leaves]

    def form(*tensors):
        weight = tensors[2] if len(tensors) == 4 else Bound(0.8, 0.9, tensors[0])
        vectors = Vectors(tensors[1], weight, within, across)
        return QuadraticForm(Sizes(batch, channels, positions), tensors[0], present, vectors=(vectors,))

    return form, leaves


def by_kernel(form, leaves):
    found = low_rank_solution(form(*leaves), leaves[-1])
    assert found is not None
    return found


def by_torch(form, leaves):
    made = form(*leaves)
    plain = made.detached()
    return solved(Woodbury(plain, Diagonal(replace(plain, vectors=()))), made, leaves[-1])


def slopes(x, leaves, **options):
    back = torch.sin(torch.arange(x.numel())).reshape(x.shape).to(x.dtype)
    return torch.autograd.grad(x, leaves, back, **options)


@native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_torch(case, dtype):
    near = {"rtol": 1e-9, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 2e-4, "atol": 2e-5}
    form, leaves = drawn(case, dtype)
    x, outcome = by_kernel(form, leaves)
    expected, other = by_torch(form, leaves)
    torch.testing.assert_close(x, expected, **near)
    torch.testing.assert_close(slopes(x, leaves), slopes(expected, leaves), **near)
    assert outcome.definite.all() and other.definite.all()
    assert outcome.is_fine() and other.is_fine()
    if leaves[-1].shape[1] > 1:
        torch.testing.assert_close(outcome.condition, other.condition, rtol=1e-3, atol=0)
    with torch.no_grad():
        assert torch.equal(by_kernel(form, leaves)[0], x)


@native
@pytest.mark.parametrize("case", ["one position", "more vectors than positions", "one label"])
def test_gradients_by_finite_differences(case):
    form, leaves = drawn(case)
    assert torch.autograd.gradcheck(lambda *given: by_kernel(form, given)[0], leaves)


@native
@pytest.mark.parametrize("case", ["potts", "shared and masked", "one strength"])
def test_second_derivatives_are_those_of_torch(case):
    form, leaves = drawn(case)
    found = []
    for solve in (by_kernel, by_torch):
        first = slopes(solve(form, leaves)[0], leaves, create_graph=True)
        size = sum((one * one).sum() for one in first)
        found.append(torch.autograd.grad(size, leaves))
    torch.testing.assert_close(found[0], found[1], rtol=1e-8, atol=1e-10)


@native
def test_second_derivatives_by_finite_differences():
    form, leaves = drawn("one position")
    assert torch.autograd.gradgradcheck(lambda *given: by_kernel(form, given)[0], leaves)


@native
@pytest.mark.parametrize("case", ["potts", "shared vectors", "several panels"])
def test_threads_do_not_change_the_answer(case, monkeypatch):
    monkeypatch.setattr(lowrank, "PRODUCTS_WORTH_A_THREAD", 1)
    before, found = torch.get_num_threads(), []
    form, leaves = drawn(case)
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            x = by_kernel(form, leaves)[0]
            found.append((x, *slopes(x, leaves)))
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, *found))


@native
def test_many_columns_are_cut_into_parts():
    batch, channels, rank, positions = 1, 2, 3, 20_011
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.ones(1), torch.randn(1, rank, positions, generator=generator) / 100,
              torch.randn(batch, channels, positions, generator=generator)]  # fmt: skip

    def form(ridge, values, rhs):
        bound = Bound(1.0, 0.9, ridge)
        return QuadraticForm(Sizes(*rhs.shape), ridge, vectors=(Vectors(values, bound, 0.0, 1.0),))

    found = []
    for solve, dtype in ((by_kernel, torch.float32), (by_torch, torch.float64)):
        given = [one.to(dtype).requires_grad_() for one in leaves]
        x = solve(form, given)[0]
        found.append([one.double() for one in (x, *slopes(x, given))])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() <= 3e-6 * other.norm()


@native
def test_large_gradients_are_those_of_single_examples():
    """From 8 MB on they are written past the caches; those of one example are not."""
    generator = torch.Generator().manual_seed(3)
    batch, channels, rank, positions = 4, 2, 8, 1 << 16
    rhs, back = torch.randn(2, batch, channels, positions, generator=generator)
    values = torch.randn(batch, rank, positions, generator=generator) / 64

    def gradient(examples):
        given = values[examples].clone().requires_grad_()
        ridge = torch.ones(1)
        vectors = Vectors(given, Bound(0.8, 0.9, ridge), 0.0, 1.0)
        form = QuadraticForm(Sizes(len(given), channels, positions), ridge, None, vectors=(vectors,))
        found = low_rank_solution(form, rhs[examples])
        assert found is not None
        found[0].backward(back[examples])
        return given.grad

    whole = gradient(slice(None))
    assert whole.numel() * whole.element_size() >= 8 << 20
    for example in range(batch):
        assert torch.equal(whole[example], gradient(slice(example, example + 1))[0])


@native
def test_gradients_that_are_not_wanted_are_not_made():
    form, leaves = drawn("potts")
    fixed = [leaves[0].detach(), leaves[1].detach(), leaves[2]]
    (slope,) = slopes(by_kernel(form, fixed)[0], [leaves[2]])
    torch.testing.assert_close(slope, slopes(by_torch(form, leaves)[0], [leaves[2]])[0])
    fixed = [leaves[0], leaves[1], leaves[2].detach()]
    found, expected = (slopes(solve(form, fixed)[0], leaves[:2]) for solve in (by_kernel, by_torch))
    torch.testing.assert_close(found, expected)


@native
@pytest.mark.parametrize("shared", [False, True])
def test_an_indefinite_example_leaves_the_others_alone(shared):
    batch, channels, positions = 3, 2, 20
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(1 if shared else batch, 2, positions, generator=generator, dtype=torch.float64)
    strength = torch.tensor([0.01, 5.0, 5.0], dtype=torch.float64)
    ridge = torch.ones(batch, dtype=torch.float64)
    rhs = torch.randn(batch, channels, positions, generator=generator, dtype=torch.float64)
    leaves = [one.requires_grad_() for one in (ridge, values, strength, rhs)]
    form = QuadraticForm(Sizes(batch, channels, positions), ridge, vectors=(Vectors(values, strength, 0.0, 1.0),))
    x, outcome = low_rank_solution(form, rhs)
    assert outcome.definite.tolist() == [True, False, False] and not outcome.is_fine()
    assert x[0].isfinite().all() and x[1:].isnan().all()
    slope = torch.autograd.grad(x[0].sum(), leaves)
    alone = form.example(0)
    expected = torch.autograd.grad(low_rank_solution(alone, rhs[:1])[0].sum(), leaves)
    torch.testing.assert_close(slope, expected)


@native
@pytest.mark.parametrize("where", ["ridge", "vectors", "unary"])
@pytest.mark.parametrize("what", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_seen(where, what):
    form, leaves = drawn("potts")
    leaves = [one.detach().clone() for one in leaves]
    leaves[("ridge", "vectors", "unary").index(where)].view(-1)[0] = what
    _, outcome = by_kernel(form, leaves)
    assert not outcome.is_fine()


@native
def test_a_kernel_and_torch_give_the_same_status():
    spec = """\
labels Seg = {off, on}
dim N
input u : real[Seg, N]
input e : real[2, N]
field s : real[Seg, N]
gaussian s { unary: u, pair: potts(e), ridge: 0.5, bounded: false }
infer exact
"""
    generator = torch.Generator().manual_seed(0)
    given = {"u": torch.randn(2, 2, 30, generator=generator), "e": torch.randn(2, 2, 30, generator=generator)}
    said = []
    for using in ("exact", "exact(engine: torch)"):
        for key in (None, "u", "e"):
            inputs = {name: one.clone() for name, one in given.items()}
            inputs["e"] *= 1.0 if key is None else 0.05
            if key is not None:
                inputs[key][1, 0, 3] = float("nan")
            said.append(em.compile(spec).infer(using=using, **inputs).ask("mode").status.message)
    assert said[:3] == said[3:]
    assert "not positive definite in example 0" in said[0]
    assert "the unary holds numbers that are not finite in example 1" in said[1]
    assert "its vectors) holds numbers that are not finite in example 1" in said[2]


@native
def test_torch_serves_what_the_kernel_does_not(monkeypatch):
    form, leaves = drawn("potts")
    values = leaves[1].detach()
    made = form(leaves[0].detach(), values, leaves[2].detach())
    (part,) = made.vectors
    assert low_rank_solution(replace(made, vectors=(part, part)), leaves[2]) is None
    assert low_rank_solution(replace(made, diagonal=torch.ones(1, values.shape[2])), leaves[2]) is None
    assert low_rank_solution(made, leaves[2].float()) is None
    seen = []

    def under_vmap(rhs):
        seen.append(low_rank_solution(made, rhs) is None)
        return rhs

    torch.func.vmap(under_vmap)(leaves[2].detach().unsqueeze(0))
    assert seen == [True]
    monkeypatch.setattr(compiled, "LARGEST_RANK", 1)
    assert low_rank_solution(made, leaves[2]) is None


@pytest.mark.parametrize("shape", [(8, 8), (7, 9), (8, 5), (3, 2), (1, 4), (4, 1)], ids=str)
@pytest.mark.parametrize("batch", [1, 2])
def test_fourier_transforms_do_what_products_do(shape, batch, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    cells = shape[0] * shape[1]

    def uniform(*sizes):
        return 0.1 + torch.rand(sizes, generator=generator, dtype=torch.float64)

    ridge, weights = uniform(batch).requires_grad_(), uniform(batch, 2, 1).requires_grad_()
    rows = uniform(2, 3, cells).requires_grad_()
    form = QuadraticForm(Sizes(2, 3, cells), ridge, stencil=Stencil(shape, ((1, 0), (0, 1)), weights))
    found = []
    for fast in (True, False):
        monkeypatch.setattr(bases, "by_fourier", lambda shape, fast=fast: fast)
        base = Transform(form)
        both = base.solve(rows), base.root(rows)
        first_order = torch.autograd.grad((both[0] * both[1]).sum(), (ridge, weights, rows), create_graph=True)
        second = torch.autograd.grad(sum(one.square().sum() for one in first_order), (ridge, weights, rows))
        found.append((*both, *first_order, *second))
    torch.testing.assert_close(form.multiply(found[0][0]), rows)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
