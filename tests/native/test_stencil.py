"""The native solver for fields on grids, against dense algebra in float64."""

from itertools import product

import pytest
import torch

from energyml.native import stencil

pytestmark = pytest.mark.skipif(not stencil.available(), reason="the native extension was not built")

FOUR = ((0, 1, 0), (0, 0, 1))
EIGHT = (*FOUR, (0, 1, 1), (0, 1, -1))
SIX = ((1, 0, 0), *FOUR)
ALL_OF_3D = tuple(one for one in product((-1, 0, 1), repeat=3) if one > (0, 0, 0))

GRIDS = {
    "one cell": ((1, 1, 1), FOUR),
    "chain": ((1, 1, 37), ((0, 0, 1),)),
    "column": ((1, 29, 1), FOUR),
    "planes of one cell": ((23, 1, 1), SIX),
    "two columns": ((1, 300, 2), EIGHT),
    "four neighbours": ((1, 9, 21), FOUR),
    "eight neighbours": ((1, 17, 33), EIGHT),
    "wide": ((1, 3, 600), EIGHT),
    "six neighbours": ((3, 4, 12), SIX),
    "twenty-six neighbours": ((4, 5, 18), ALL_OF_3D),
    "long and outside": ((2, 7, 30), ((0, 0, 11), (1, -2, 3), (0, 6, -29), (0, 8, 0), (0, 0, 0))),
    "no directions": ((1, 4, 40), ()),
}
NEAR = {torch.float32: 1e-5, torch.float64: 1e-12}


def dense(diag, weights, offsets, shape):
    """[N, N] float64: the matrix of one system, edge by edge."""
    cells = shape[0] * shape[1] * shape[2]
    number = torch.arange(cells).reshape(shape)
    matrix = torch.diag(diag.double().expand(cells))
    for weight, offset in zip(weights, offsets, strict=True):
        first, second = [], []
        for step, size in zip(offset, shape, strict=True):
            kept = max(0, size - abs(step))
            first.append(slice(max(0, -step), max(0, -step) + kept))
            second.append(slice(max(0, step), max(0, step) + kept))
        i, j, w = number[tuple(first)].flatten(), number[tuple(second)].flatten(), weight.double().expand(cells)
        w = w[i]
        for row, column, sign in ((i, i, 1), (j, j, 1), (i, j, -1), (j, i, -1)):
            matrix.index_put_((row, column), sign * w, accumulate=True)
    return matrix


def draw(shape, offsets, dtype, *, batch=2, channels=2, seed=0, shared=(False, False, False, False), low=0.0):
    """A right-hand side, a diagonal and weights.

    `shared`: whether the diagonal is one for all examples, channels, cells; and whether the weights are, for all cells.
    """
    generator = torch.Generator().manual_seed(seed)
    cells = shape[0] * shape[1] * shape[2]

    def uniform(*sizes):
        return torch.rand(sizes, generator=generator, dtype=torch.float64)

    rhs = torch.randn(batch, channels, cells, generator=generator, dtype=torch.float64)
    sizes = (1 if one else full for one, full in zip(shared, (batch, channels, cells), strict=False))
    diag = 0.5 + uniform(*sizes)
    weights = low + (2 - low) * uniform(batch, len(offsets), 1 if shared[3] else cells)
    return rhs.to(dtype), diag.to(dtype), weights.to(dtype)


def matrices(rhs, diag, weights, offsets, shape):
    batch, channels, _ = rhs.shape
    diag, weights = diag.expand(batch, channels, -1), weights.expand(batch, -1, -1)
    return torch.stack(
        [torch.stack([dense(diag[b, m], weights[b], offsets, shape) for m in range(channels)]) for b in range(batch)]
    )


def dense_solution(matrix, rhs):
    # By Cholesky: torch's LU of several matrices was seen to fail with two threads.
    return torch.cholesky_solve(rhs.double().unsqueeze(-1), torch.linalg.cholesky(matrix)).squeeze(-1)


def applied(matrix, x):
    return (matrix @ x.double().unsqueeze(-1)).squeeze(-1)


def relative(rhs, matrix, x):
    """[B]: the relative residual of the worst channel."""
    return ((rhs.double() - applied(matrix, x)).norm(dim=-1) / rhs.double().norm(dim=-1)).amax(1)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request, monkeypatch):
    """Run with so many threads, however small the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    for name in ("PRODUCTS_WORTH_A_THREAD", "SOLVES_WORTH_A_THREAD", "SHARES_WORTH_A_THREAD"):
        monkeypatch.setattr(stencil, name, 1)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("constant", [False, True], ids=["weights of edges", "constant weights"])
@pytest.mark.parametrize("grid", GRIDS)
def test_against_dense_algebra(grid, constant, dtype, threads):
    shape, offsets = GRIDS[grid]
    # Three systems: two threads take one each, and share the last.
    rhs, diag, weights = draw(shape, offsets, dtype, batch=1, channels=3, shared=(False, False, False, constant))
    matrix = matrices(rhs, diag, weights, offsets, shape)
    near = NEAR[dtype]
    expected = applied(matrix, rhs)
    found = stencil.multiply(rhs, diag, weights, offsets, shape)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=near, atol=near)

    tol = 1e-6 if dtype == torch.float32 else 1e-12
    exact = dense_solution(matrix, rhs)
    for preconditioner in ("jacobi", "none"):
        solved = stencil.solve(
            rhs, diag, weights, offsets, shape, tol=tol, iterations=500, preconditioner=preconditioner
        )
        assert solved.x.dtype == dtype and solved.x.shape == rhs.shape
        assert solved.iterations.shape == solved.residual.shape == solved.negative.shape == rhs.shape[:1]
        assert solved.iterations.max() < 500 and not solved.negative.any()
        assert (solved.residual <= tol).all()
        torch.testing.assert_close(solved.residual, relative(rhs, matrix, solved.x), rtol=0.02, atol=1e-15)
        torch.testing.assert_close(solved.x.double(), exact, rtol=0, atol=20 * tol)


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("rows", [1, 3])
def test_long_rows_which_are_cut(rows, dtype, threads):
    shape, offsets = (1, rows, 2 * 4096 + 5), ((0, 0, 1), (0, 0, -3))
    rhs, diag, weights = draw(shape, offsets, dtype)

    def expected(x):
        x, weight = x.double().unflatten(2, (rows, -1)), weights.double().unflatten(2, (rows, -1)).unsqueeze(2)
        total = diag.double().unflatten(2, (rows, -1)) * x
        near = weight[:, 0, ..., :-1] * (x[..., :-1] - x[..., 1:])
        far = weight[:, 1, ..., 3:] * (x[..., 3:] - x[..., :-3])
        total[..., :-1] += near
        total[..., 1:] -= near
        total[..., 3:] += far
        total[..., :-3] -= far
        return total.flatten(2)

    near = NEAR[dtype]
    found = stencil.multiply(rhs, diag, weights, offsets, shape)
    torch.testing.assert_close(found.double(), expected(rhs), rtol=near, atol=near)
    for preconditioner in ("jacobi", "none"):
        solved = stencil.solve(
            rhs, diag, weights, offsets, shape, tol=1e-6, iterations=500, preconditioner=preconditioner
        )
        left = (rhs.double() - expected(solved.x)).norm(dim=-1) / rhs.double().norm(dim=-1)
        assert (solved.residual <= 1e-6).all()
        torch.testing.assert_close(solved.residual, left.amax(1), rtol=0.02, atol=0)


@pytest.mark.parametrize("shared", list(product([False, True], repeat=4)))
def test_shared_sizes(shared):
    shape, offsets = (1, 6, 19), EIGHT
    rhs, diag, weights = draw(shape, offsets, torch.float64, shared=shared)
    for one in (weights, weights[:1]):
        matrix = matrices(rhs, diag, one, offsets, shape)
        solved = stencil.solve(rhs, diag, one, offsets, shape, tol=1e-12, iterations=500)
        torch.testing.assert_close(solved.x, dense_solution(matrix, rhs))
        torch.testing.assert_close(stencil.multiply(rhs, diag, one, offsets, shape), applied(matrix, rhs))


def test_tensors_that_are_not_contiguous():
    shape, offsets = (1, 6, 19), FOUR
    rhs, diag, weights = draw(shape, offsets, torch.float64)
    expected = stencil.solve(rhs, diag, weights, offsets, shape, tol=1e-10, iterations=500, start=rhs)
    turned = [one.transpose(0, 2).contiguous().transpose(0, 2) for one in (rhs, diag, weights)]
    found = stencil.solve(*turned, offsets, shape, tol=1e-10, iterations=500, start=turned[0])
    assert torch.equal(found.x, expected.x)


def test_negative_weights_that_leave_it_positive_definite():
    shape, offsets = (1, 11, 23), EIGHT
    rhs, diag, weights = draw(shape, offsets, torch.float64, low=-1.0)
    diag = diag + 16
    matrix = matrices(rhs, diag, weights, offsets, shape)
    assert (weights < 0).any() and torch.linalg.eigvalsh(matrix).min() > 0
    solved = stencil.solve(rhs, diag, weights, offsets, shape, tol=1e-12, iterations=500)
    assert not solved.negative.any()
    torch.testing.assert_close(solved.x, dense_solution(matrix, rhs))


@pytest.mark.parametrize("preconditioner", ["jacobi", "none"])
@pytest.mark.parametrize("dtype", NEAR)
def test_indefinite_matrices_are_found_out(dtype, preconditioner, threads):
    shape, offsets = (1, 12, 40), FOUR
    rhs, diag, weights = draw(shape, offsets, dtype, batch=5, channels=1)
    diag[1] -= 1.4  # edges hold cells above zero, but not the whole
    weights[2] *= -1
    diag[4, 0, 77] = -100
    matrix = matrices(rhs, diag, weights, offsets, shape)
    positive = torch.linalg.eigvalsh(matrix).amin((1, 2)) > 0
    assert positive.tolist() == [True, False, False, True, False]
    solved = stencil.solve(rhs, diag, weights, offsets, shape, tol=1e-6, iterations=2000, preconditioner=preconditioner)
    assert solved.negative.tolist() == (~positive).tolist()
    assert solved.x.isfinite().all() and solved.iterations.max() < 2000
    assert (solved.residual[positive] <= 1e-6).all() and solved.residual.isfinite().all()
    torch.testing.assert_close(solved.residual, relative(rhs, matrix, solved.x), rtol=0.02, atol=0)


def test_a_matrix_of_zeros_has_no_curvature():
    rhs = torch.ones(1, 1, 6)
    for preconditioner in ("jacobi", "none"):
        solved = stencil.solve(
            rhs, torch.zeros(1, 1, 1), torch.zeros(1, 2, 1), FOUR, (1, 2, 3), tol=1e-6, iterations=9,
            preconditioner=preconditioner,
        )  # fmt: skip
        assert solved.negative.all() and solved.residual.tolist() == [1.0] and solved.iterations.tolist() == [0]


@pytest.mark.parametrize("dtype", NEAR)
def test_right_hand_sides_of_zeros(dtype):
    shape, offsets = (1, 5, 20), FOUR
    rhs, diag, weights = draw(shape, offsets, dtype)
    rhs[1] = 0
    for start in (None, torch.ones_like(rhs)):
        solved = stencil.solve(rhs, diag, weights, offsets, shape, tol=1e-5, iterations=500, start=start)
        assert solved.iterations[1] == 0 and solved.residual[1] == 0 and not solved.x[1].any()
        assert solved.iterations[0] > 0 and solved.residual[0] <= 1e-5
    rhs[0, 0] = 0  # one channel alone
    solved = stencil.solve(rhs, diag, weights, offsets, shape, tol=1e-5, iterations=500)
    assert not solved.x[0, 0].any() and solved.x[0, 1].all() and solved.iterations[0] > 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", ["rhs", "diag", "weights", "start"])
@pytest.mark.parametrize("preconditioner", ["jacobi", "none"])
def test_what_is_not_finite_stops_its_example_alone(place, value, preconditioner, threads):
    shape, offsets = (1, 8, 40), EIGHT
    rhs, diag, weights = draw(shape, offsets, torch.float32, batch=3, channels=1)
    tensors = {"rhs": rhs, "diag": diag, "weights": weights, "start": torch.zeros_like(rhs)}
    fine = stencil.solve(
        rhs, diag, weights, offsets, shape, tol=1e-5, iterations=500, preconditioner=preconditioner,
        start=tensors["start"],
    )  # fmt: skip
    tensors[place][2, 0, 100] = value
    found = stencil.solve(
        rhs, diag, weights, offsets, shape, tol=1e-5, iterations=500, preconditioner=preconditioner,
        start=tensors["start"],
    )  # fmt: skip
    assert found.residual[2].isnan() and found.iterations[2] < 500 and not found.negative.any()
    for other in (0, 1):
        assert torch.equal(found.x[other], fine.x[other]) and found.residual[other] == fine.residual[other]


def test_weights_of_edges_that_leave_the_grid_are_not_read():
    shape, offsets = (1, 7, 30), EIGHT
    rhs, diag, weights = draw(shape, offsets, torch.float64)
    expected = stencil.solve(rhs, diag, weights, offsets, shape, tol=1e-10, iterations=500)
    product_of = stencil.multiply(rhs, diag, weights, offsets, shape)
    edges = weights.reshape(2, 4, 7, 30)
    edges[:, [0, 2, 3], -1] = float("nan")
    edges[:, [1, 2], :, -1] = float("nan")
    edges[:, 3, :, 0] = float("nan")
    found = stencil.solve(rhs, diag, weights, offsets, shape, tol=1e-10, iterations=500)
    assert torch.equal(found.x, expected.x)
    assert torch.equal(stencil.multiply(rhs, diag, weights, offsets, shape), product_of)


@pytest.mark.parametrize(
    ("batch", "channels", "shape"), [(0, 2, (1, 3, 4)), (2, 0, (1, 3, 4)), (2, 2, (1, 0, 4)), (0, 0, (0, 0, 0))]
)
def test_empty(batch, channels, shape):
    cells = shape[0] * shape[1] * shape[2]
    rhs, diag, weights = torch.zeros(batch, channels, cells), torch.ones(1, 1, 1), torch.ones(1, 2, cells)
    solved = stencil.solve(rhs, diag, weights, FOUR, shape, tol=1e-6, iterations=5)
    assert solved.x.shape == rhs.shape
    assert solved.iterations.tolist() == [0] * batch and solved.residual.tolist() == [0.0] * batch
    assert solved.negative.tolist() == [False] * batch
    assert stencil.multiply(rhs, diag, weights, FOUR, shape).shape == rhs.shape


@pytest.mark.parametrize("dtype", NEAR)
def test_warm_start(dtype):
    shape, offsets = (1, 20, 33), FOUR
    rhs, diag, weights = draw(shape, offsets, dtype)
    tol = 1e-5
    cold = stencil.solve(rhs, diag, weights, offsets, shape, tol=tol, iterations=500)
    again = stencil.solve(rhs, diag, weights, offsets, shape, tol=1.01 * tol, iterations=500, start=cold.x)
    assert again.iterations.tolist() == [0, 0] and torch.equal(again.x, cold.x)
    start = cold.x + 1e-3 * torch.randn(cold.x.shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    kept = start.clone()
    near = stencil.solve(rhs, diag, weights, offsets, shape, tol=tol, iterations=500, start=start)
    assert torch.equal(start, kept)
    assert (near.iterations < cold.iterations).all() and (near.residual <= tol).all()


def test_no_more_steps_than_allowed():
    shape, offsets = (1, 20, 33), FOUR
    rhs, diag, weights = draw(shape, offsets, torch.float64)
    matrix = matrices(rhs, diag, weights, offsets, shape)
    before = torch.full((2,), 2.0, dtype=torch.float64)
    for most in (0, 1, 5, 10):
        solved = stencil.solve(rhs, diag, weights, offsets, shape, tol=1e-10, iterations=most)
        assert solved.iterations.tolist() == [most, most]
        torch.testing.assert_close(solved.residual, relative(rhs, matrix, solved.x))
        assert (solved.residual < before).all()
        before = solved.residual


@pytest.mark.parametrize("dtype", NEAR)
def test_a_tolerance_that_rounding_forbids_ends_at_the_true_residual(dtype):
    shape, offsets = (1, 40, 50), FOUR
    rhs, diag, weights = draw(shape, offsets, dtype)
    diag = diag * 1e-3
    matrix = matrices(rhs, diag, weights, offsets, shape)
    for tol in (0.0, 0.01 * torch.finfo(dtype).eps):
        solved = stencil.solve(rhs, diag, weights, offsets, shape, tol=tol, iterations=100_000)
        assert solved.iterations.max() < 5000 and not solved.negative.any()
        # The dense product rounds too: to 3e-14 of the right-hand side.
        torch.testing.assert_close(solved.residual, relative(rhs, matrix, solved.x), rtol=0.02, atol=3e-14)
        assert (solved.residual < 1000 * torch.finfo(dtype).eps).all()


def test_the_residual_of_floats_is_the_true_one_when_badly_conditioned():
    shape, offsets = (1, 48, 48), FOUR
    rhs, diag, weights = draw(shape, offsets, torch.float32)
    diag = diag * 1e-4
    matrix = matrices(rhs, diag, weights, offsets, shape)
    solved = stencil.solve(rhs, diag, weights, offsets, shape, tol=1e-5, iterations=10_000)
    assert not solved.negative.any() and solved.iterations.max() < 10_000
    torch.testing.assert_close(solved.residual, relative(rhs, matrix, solved.x), rtol=0.02, atol=0)
    assert (solved.residual > 1e-5).all()  # as good as float32 allows: |Q| |x| eps is 2e-4 |b|
    assert (solved.residual < 1e-4).all()


@pytest.mark.parametrize("size", [1e-35, 1e-20, 1e15, 1e30])
def test_right_hand_sides_of_any_size(size):
    shape, offsets = (1, 16, 40), FOUR
    rhs, diag, weights = draw(shape, offsets, torch.float32)
    usual = stencil.solve(rhs, diag, weights, offsets, shape, tol=1e-5, iterations=500)
    solved = stencil.solve(rhs * size, diag, weights, offsets, shape, tol=1e-5, iterations=500, start=rhs * size)
    assert (solved.residual <= 1e-5).all() and (solved.iterations <= usual.iterations + 5).all()
    torch.testing.assert_close(solved.x.double() / size, usual.x.double(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("shape", [(1, 1, 9000), (1, 70, 90), (5, 20, 30)])
def test_batches_are_loops_and_threads_change_nothing(shape, dtype, monkeypatch):
    offsets = SIX
    rhs, diag, weights = draw(shape, offsets, dtype, batch=3, channels=1)
    before, results = torch.get_num_threads(), []
    for threads, sharing in ((1, 1), (2, 1), (2, 10**9), (3, 1)):
        torch.set_num_threads(threads)
        monkeypatch.setattr(stencil, "SOLVES_WORTH_A_THREAD", 1)
        monkeypatch.setattr(stencil, "SHARES_WORTH_A_THREAD", sharing)
        try:
            results.append(stencil.solve(rhs, diag, weights, offsets, shape, tol=1e-6, iterations=500))
            singles = [
                stencil.solve(
                    rhs[b : b + 1], diag[b : b + 1], weights[b : b + 1], offsets, shape, tol=1e-6, iterations=500
                )
                for b in range(3)
            ]
        finally:
            torch.set_num_threads(before)
        for b, single in enumerate(singles):
            assert torch.equal(single.x[0], results[-1].x[b])
            assert single.iterations[0] == results[-1].iterations[b]
            assert single.residual[0] == results[-1].residual[b]
    assert all(torch.equal(one.x, results[0].x) for one in results)


def test_a_large_grid():
    """Large enough that vectors are fetched ahead."""
    shape, offsets = (1, 1000, 1100), FOUR
    rhs, diag, weights = draw(shape, offsets, torch.float32, batch=1, channels=1, shared=(True, True, True, False))
    solved = stencil.solve(rhs, diag, weights, offsets, shape, tol=1e-6, iterations=500)
    left = rhs - stencil.multiply(solved.x, diag, weights, offsets, shape)
    assert solved.residual <= 1e-6 and left.norm() <= 2e-6 * rhs.norm()


def test_refusals_name_the_argument():
    rhs, diag, weights, shape = torch.ones(2, 1, 12), torch.ones(1, 1, 1), torch.ones(1, 2, 1), (1, 3, 4)
    limits = {"tol": 1e-6, "iterations": 5}
    with pytest.raises(ValueError, match=r"^rhs: takes \[B, M, 20\] for a grid of 1 x 4 x 5"):
        stencil.solve(rhs, diag, weights, FOUR, (1, 4, 5), **limits)
    with pytest.raises(ValueError, match=r"^diag: takes"):
        stencil.solve(rhs, torch.ones(1, 1, 5), weights, FOUR, shape, **limits)
    with pytest.raises(ValueError, match=r"^weights: takes .* for 4 offsets"):
        stencil.multiply(rhs, diag, weights, EIGHT, shape)
    with pytest.raises(ValueError, match=r"all float32 or all float64; .*weights torch.float64"):
        stencil.multiply(rhs, diag, weights.double(), FOUR, shape)
    with pytest.raises(ValueError, match=r"^start: takes"):
        stencil.solve(rhs, diag, weights, FOUR, shape, **limits, start=rhs[:1])
    with pytest.raises(ValueError, match=r"^preconditioner: takes"):
        stencil.solve(rhs, diag, weights, FOUR, shape, **limits, preconditioner="ssor")
    many = tuple((0, 0, step) for step in range(1, 80))
    with pytest.raises(ValueError, match=r"^offsets: takes at most 64 directions"):
        stencil.multiply(torch.ones(1, 1, 100), diag, torch.ones(1, len(many), 1), many, (1, 1, 100))
