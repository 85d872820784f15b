"""The derived layer against enumeration: every query, from one recursion, with the traps that such layers meet."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import energyml as em
from energyml.inference.derived import Derived, LatentsSummedOut, SupportsDiffer
from energyml.inference.structure import Weights
from tests.inference.structures import NINF, Chain, Listed, Subset, scored

LENGTHS = torch.tensor([3, 4, 1, 2, 0, 4])
STRUCTURES: dict[str, Chain | Subset] = {
    "chain": Chain(LENGTHS, 4, 3),
    "subset": Subset(LENGTHS, 4, torch.tensor([2, 1, 1, 0, 0, 3])),
    "infeasible": Subset(torch.tensor([3, 2, 4]), 4, torch.tensor([4, 2, 2])),
}
SMALL: dict[str, Chain | Subset] = {
    "chain": Chain(torch.tensor([3, 2, 3]), 3, 2),
    "subset": Subset(torch.tensor([3, 2, 3]), 3, torch.tensor([2, 1, 4])),
}
KINDS = ("full", "-inf", "shared", "shared in time", "shared in the batch", "garbage in padding")


def drawn(structure: Chain | Subset, kind: str, seed: int = 0, scale: float = 2.0) -> Weights:
    """Scores of a kind."""
    generator = torch.Generator().manual_seed(seed)
    axes = structure.cells["y"]
    batch, size, count = structure.batch, *axes.sizes, *axes.labels
    leading = {"shared": (1, 1), "shared in time": (batch, 1), "shared in the batch": (1, size - 1)}

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale

    cells = normal(1 if kind == "shared" else batch, size, count)
    parts = {}
    if structure.parts:
        parts["pair"] = normal(*leading.get(kind, (batch, size - 1)), count, count)
    if kind == "-inf":  # the first example keeps one answer, the second none
        legal = [labels for labels, _ in Listed.of(structure, Weights({"y": cells}, parts)).answers[0]]
        for one in (cells, *parts.values()):
            one[torch.rand(one.shape, generator=generator) < 0.2] = NINF
        cells[:2] = NINF
        for t, label in enumerate(legal[0] if legal else ()):
            cells[0, t, label] = 0.3 * t
        for t, pair in enumerate(zip(legal[0], legal[0][1:], strict=False) if legal and parts else ()):
            parts["pair"][(0, t, *pair)] = 0.5
    if kind == "garbage in padding":
        assert axes.exists is not None
        cells = torch.where(axes.exists[..., None], cells, float("nan"))
        for name, one in parts.items():
            exists = structure.parts[name].exists
            assert exists is not None
            parts[name] = torch.where(exists[..., None, None], one, NINF)
    return Weights({"y": cells}, parts)


def close(found: Tensor, wanted: object, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(
        found.detach().double(), torch.as_tensor(wanted, dtype=torch.float64), atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STRUCTURES)
def test_every_query_is_that_of_enumeration(name: str, kind: str) -> None:
    structure = STRUCTURES[name]
    weights, others = drawn(structure, kind), drawn(structure, "full", seed=1)
    derived, listed = Derived(structure, weights), Listed.of(structure, weights)
    second, theirs = Derived(structure, others), Listed.of(structure, others)
    close(derived.log_partition(), listed.log_z())
    close(derived.marginals()["y"], listed.marginals())
    if structure.parts:
        close(derived.part_marginals()["pair"], listed.pairs())
        summed = derived.part_marginals(shared=True)["pair"]
        wanted = listed.pairs()
        close(summed, wanted.sum(1, keepdim=True) if summed.shape[1] == 1 != wanted.shape[1] else wanted)
    close(derived.entropy(), listed.entropy())
    close(derived.expectation(others), listed.expected(others))
    for one, two, p, q in ((derived, second, listed, theirs), (second, derived, theirs, listed)):
        cross = torch.tensor(p.cross_entropy(q), dtype=torch.float64)
        close(one.cross_entropy(two), cross)
        close(one.kl(two), torch.where(cross.isinf(), cross, cross - torch.tensor(p.entropy(), dtype=torch.float64)))
    _answers(derived, listed, weights)
    _constraints(structure, derived, listed)


def _answers(derived: Derived, listed: Listed, weights: Weights) -> None:
    labels, score = derived.best()
    close(score, listed.best())
    for b, best in enumerate(listed.best()):
        row = tuple(labels["y"][b, : int(listed.structure.lengths[b])].tolist())
        assert (labels["y"][b] == -1).all() if best == NINF else listed.structure.legal(b, row)
        if best > NINF:
            assert scored(weights, b, row) == pytest.approx(best)


def _constraints(structure: Chain | Subset, derived: Derived, listed: Listed) -> None:
    generator = torch.Generator().manual_seed(3)
    axes = structure.cells["y"]
    shape = (structure.batch, *axes.sizes)
    total = torch.tensor(listed.log_z(), dtype=torch.float64)

    def less_total(part: list[float]) -> Tensor:
        found = torch.tensor(part, dtype=torch.float64)
        return torch.where(found.isneginf(), found, found - total)

    for known in (0.0, 0.5):
        answer = torch.randint(0, axes.labels[0], shape, generator=generator)
        answer = answer.masked_fill(torch.rand(shape, generator=generator) < known, -1)

        def agrees(b: int, labels: tuple[int, ...], answer: Tensor = answer) -> bool:
            return all(int(answer[b, t]) in (-1, label) for t, label in enumerate(labels))

        close(derived.log_prob({"y": answer}), less_total(listed.log_z(agrees)))
    allowed = torch.rand(*shape, *axes.labels, generator=generator) < 0.7

    def keeps(b: int, labels: tuple[int, ...]) -> bool:
        return all(bool(allowed[b, t, label]) for t, label in enumerate(labels))

    close(derived.log_prob_allowed({"y": allowed}), less_total(listed.log_z(keeps)))
    close(derived.given({"y": allowed}).log_partition(), listed.log_z(keeps))
    cost = torch.rand(*shape, *axes.labels, generator=generator, dtype=torch.float64)
    dear = Listed(structure, [
        [(labels, score + sum(float(cost[b, t, label]) for t, label in enumerate(labels))) for labels, score in rows]
        for b, rows in enumerate(listed.answers)
    ])  # fmt: skip
    close(derived.with_cost({"y": cost}).best()[1], dear.best())
    close(derived.with_cost({"y": cost}).log_partition(), dear.log_z())


@pytest.mark.parametrize("name", STRUCTURES)
def test_single_precision_keeps_its_digits_beside_large_scores(name: str) -> None:
    structure = STRUCTURES[name]
    weights = drawn(structure, "full", scale=1.0)
    narrow = Weights(
        {"y": (weights.cells["y"] + 3e3).float()}, {key: (one - 2e3).float() for key, one in weights.parts.items()}
    )
    derived, listed = Derived(structure, narrow), Listed.of(structure, narrow)
    assert derived.entropy().dtype is torch.float32
    close(derived.entropy(), listed.entropy(), 1e-6)
    close(derived.marginals()["y"], listed.marginals(), 1e-6)


def test_the_entropy_of_scores_of_1e9() -> None:
    structure = SMALL["chain"]
    weights = drawn(structure, "full")
    lifted = Weights({"y": weights.cells["y"] + 2.0**30}, weights.parts)
    held = Weights({"y": lifted.cells["y"] - 2.0**30}, weights.parts)  # the same, rounded alike
    close(Derived(structure, lifted).entropy(), Listed.of(structure, held).entropy(), 1e-9)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("query", ["log_partition", "marginals", "entropy", "kl", "kl of the other"])
def test_first_and_second_derivatives(name: str, query: str) -> None:
    structure = SMALL[name]
    weights, others = drawn(structure, "-inf"), drawn(structure, "full", seed=1)
    tensors = [weights.cells["y"], *weights.parts.values()]
    gone = [one.isneginf() for one in tensors]
    other = _made([one.masked_fill(out, NINF) for one, out in zip(_tensors(others), gone, strict=True)], weights)

    def answer(*free: Tensor) -> Tensor:
        made = Derived(
            structure, _made([one.masked_fill(out, NINF) for one, out in zip(free, gone, strict=True)], weights)
        )
        found = {
            "log_partition": made.log_partition,
            "marginals": lambda: made.marginals()["y"],
            "entropy": made.entropy,
            "kl": lambda: made.kl(Derived(structure, other)),
            "kl of the other": lambda: Derived(structure, other).kl(made),
        }[query]()
        return found.masked_fill(found.isinf(), 0)

    free = [torch.where(out, 0.0, one).requires_grad_() for one, out in zip(tensors, gone, strict=True)]
    assert gradcheck(answer, free)
    assert gradgradcheck(answer, free, atol=1e-4)


def _tensors(weights: Weights) -> list[Tensor]:
    return [*weights.cells.values(), *weights.parts.values()]


def _made(tensors: list[Tensor], like: Weights) -> Weights:
    return Weights({"y": tensors[0]}, dict(zip(like.parts, tensors[1:], strict=True)))


@pytest.mark.parametrize("name", SMALL)
def test_gradients_are_finite_at_scores_of_minus_infinity(name: str) -> None:
    structure = SMALL[name]
    leaves = [one.clone().requires_grad_() for one in _tensors(drawn(structure, "-inf"))]
    derived = Derived(structure, _made(leaves, drawn(structure, "-inf")))
    log_z = derived.log_partition()
    impossible = derived.log_prob({"y": torch.zeros(structure.batch, 3, dtype=torch.long)})
    total = derived.entropy().sum() + (derived.marginals()["y"] ** 2).sum()
    total = total + log_z.masked_fill(log_z.isinf(), 0).sum() + impossible.masked_fill(impossible.isinf(), 0).sum()
    first = torch.autograd.grad(total, leaves, create_graph=True)
    second = torch.autograd.grad(sum((one**2).sum() for one in first), leaves)
    assert all(bool(one.isfinite().all()) for one in (*first, *second))


@pytest.mark.parametrize("name", SMALL)
def test_transforms_and_modes(name: str) -> None:
    structure, weights = SMALL[name], drawn(SMALL[name], "full")
    tensors = _tensors(weights)
    queries: dict[str, Callable[..., Tensor]] = {
        "log_partition": lambda *one: Derived(structure, _made(list(one), weights)).log_partition(),
        "marginals": lambda *one: Derived(structure, _made(list(one), weights)).marginals()["y"],
        "entropy": lambda *one: Derived(structure, _made(list(one), weights)).entropy(),
    }
    many = [torch.stack([one, one * 0.5, one + 1]) for one in tensors]
    for query in queries.values():
        each = torch.stack([query(*(one[i] for one in many)) for i in range(3)])
        close(torch.func.vmap(query)(*many).nan_to_num(neginf=-99), each.nan_to_num(neginf=-99))
        compiled = torch.compile(query, backend="eager", fullgraph=True)
        close(compiled(*tensors).nan_to_num(neginf=-99), query(*tensors).nan_to_num(neginf=-99))
        with torch.no_grad():
            close(query(*tensors).nan_to_num(neginf=-99), query(*tensors).nan_to_num(neginf=-99))
    free = [one.clone().requires_grad_() for one in tensors]

    def number(*one: Tensor) -> Tensor:
        return queries["entropy"](*one).sum()

    close(torch.func.grad(number)(*tensors), torch.autograd.grad(number(*free), free[0])[0])
    with torch.inference_mode():
        inferred = Derived(structure, drawn(structure, "full"))
        found = inferred.marginals()["y"]
    close(found.clone(), queries["marginals"](*tensors))
    assert inferred.entropy().isfinite().all()  # also after the mode has ended


@pytest.mark.parametrize("kind", ["full", "-inf"])
@pytest.mark.parametrize("name", STRUCTURES)
def test_draws_have_their_probabilities(name: str, kind: str) -> None:
    structure, count = STRUCTURES[name], 4000
    weights = drawn(structure, kind, scale=1.0)
    listed = Listed.of(structure, weights)
    draws, again = (Derived(structure, weights).sample(count, torch.Generator().manual_seed(1))["y"] for _ in range(2))
    assert torch.equal(draws, again)
    for b in range(structure.batch):
        rows = [tuple(row[: int(structure.lengths[b])].tolist()) for row in draws[:, b]]
        if listed.log_z()[b] == NINF:
            assert all(set(row) <= {-1} for row in rows)
            continue
        shares = dict(listed.shares(b))
        assert set(rows) <= shares.keys()
        distance = sum(abs(rows.count(labels) / count - p) for labels, p in shares.items()) / 2
        assert distance < 0.03 + 0.5 * (len(shares) / count) ** 0.5


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_best_of_ties_is_one_legal_answer(name: str) -> None:
    structure = STRUCTURES[name]
    weights = drawn(structure, "full", scale=0.0)
    labels, score = Derived(structure, weights).best()
    for b in range(structure.batch):
        row = tuple(labels["y"][b, : int(structure.lengths[b])].tolist())
        assert float(score[b]) == NINF or structure.legal(b, row)


def test_structures_of_other_answers_are_not_compared() -> None:
    two, three = (Subset(torch.tensor([4]), 4, torch.tensor([k])) for k in (2, 3))
    even = Weights({"y": torch.zeros(1, 4, 2)}, {})
    with pytest.raises(SupportsDiffer, match="does not have all answers"):
        Derived(two, even).kl(Derived(three, even))


def test_maxima_over_latents_are_refused() -> None:
    class Hidden(Chain):
        latent = frozenset({"y"})

    derived = Derived(Hidden(torch.tensor([3]), 3, 2), drawn(Chain(torch.tensor([3]), 3, 2), "full"))
    assert derived.log_partition().isfinite().all()
    for query in (derived.best, derived.entropy):
        with pytest.raises(LatentsSummedOut, match="`y` is summed out"):
            query()


def test_the_backend_exact_gives_the_answers_of_the_readable_chain() -> None:
    model = em.compile(
        "labels Tag = {A, B, C}\ndim T\ninput u : real[T, Tag]\noutput y : Tag[T]\n"
        "param W : real[from: Tag, to: Tag] = normal(1)\nchain y { unary: u, pair: W }\n"
    ).double()
    structure = STRUCTURES["chain"]
    unary = drawn(structure, "full").cells["y"]
    table = model.get_parameter("W")
    posterior = model.infer(u=unary, lengths=LENGTHS, using="exact")
    derived = Derived(structure, Weights({"y": unary}, {"pair": table.reshape(1, 1, 3, 3)}))
    close(posterior.log_partition, derived.log_partition())
    close(posterior.marginals["y"], derived.marginals()["y"])
    close(posterior.entropy, derived.entropy())
    close(posterior.map().score, derived.best()[1])
    (own,) = torch.autograd.grad(posterior.log_partition.sum(), table)
    (wanted,) = torch.autograd.grad(derived.log_partition().sum(), table)
    close(own, wanted)
