"""Fields in `torch.compile`: whole calls as one graph where a direct method serves, else a reason and a remedy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import energyml as em
from tests.gaussian.cases import CASES

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")


def everything(model: em.EnergyModel, inputs: dict[str, Tensor]) -> list[Tensor]:
    posterior = model.infer(**inputs, using="exact")
    found = [posterior.mode["s"], posterior.log_partition, posterior.variance["s"], posterior.entropy]
    if "y" in model.graph.variables:
        best = posterior.map()
        found += [posterior.marginals["y"], best.score, best["y"]]
    return found


def agree(
    asked: Callable[[dict[str, Tensor]], list[Tensor]], inputs: dict[str, Tensor], *, backend: str = "eager"
) -> None:
    """Compiled as one graph: the same answers and gradients as called."""
    torch.compiler.reset()
    given = {key: one.requires_grad_() if one.is_floating_point() else one for key, one in inputs.items()}
    found, wanted = torch.compile(asked, fullgraph=True, backend=backend)(given), asked(given)
    torch.testing.assert_close(found, wanted)
    leaves = [one for one in given.values() if one.requires_grad]
    slopes = [
        torch.autograd.grad(
            torch.stack([one.square().sum() for one in values if one.is_floating_point()]).sum(),
            leaves,
            materialize_grads=True,
            allow_unused=True,
        )
        for values in (found, wanted)
    ]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("name", CASES)
def test_every_coupling_compiles_as_one_graph(name: str) -> None:
    model = CASES[name].model()
    agree(lambda given: everything(model, given), CASES[name].inputs())


@pytest.mark.parametrize("name", ["potts", "smooth constant", "smooth edges", "dense", "sparse"])
def test_the_graphs_of_backward_passes(name: str) -> None:
    """One of each direct method: Woodbury, transforms, block Cholesky, dense Cholesky, and a list of edges."""
    model = CASES[name].model()
    agree(lambda given: everything(model, given), CASES[name].inputs(), backend="aot_eager")


@pytest.mark.parametrize("name", ["potts", "smooth edges", "potts and smooth"])
def test_gaps_and_losses_are_part_of_the_graph(name: str) -> None:
    model, inputs = CASES[name].model(), CASES[name].inputs()
    batch, height, width = inputs["u"].shape[0], *inputs["u"].shape[-2:]
    mask = torch.ones(batch, height, width, dtype=torch.bool)
    mask[-1, 0, 1] = False
    gold = torch.arange(mask.numel()).reshape(mask.shape) % 3

    def asked(given: dict[str, Tensor]) -> list[Tensor]:
        return [
            model.infer(**given, mask=mask, using="exact").mode["s"],
            model.loss(**given, y=gold, mask=mask, objective="marginal_ce", using="exact"),
        ]

    agree(asked, inputs)


def test_fourier_transforms_and_other_sizes() -> None:
    text = """
    dim H, W
    input u : real[H, W]
    input w : real
    field s : real[H, W]
    gaussian s { unary: u, pair: smooth(w), ridge: 0.5 }
    """
    model = em.compile(text).double()
    torch.compiler.reset()
    asked = lambda u, w: model.infer(u=u, w=w, using="exact").mode["s"]  # noqa: E731
    compiled = torch.compile(asked, fullgraph=True, backend="eager")
    for batch, height, width in ((1, 160, 161), (2, 160, 161), (3, 5, 4), (2, 6, 4)):
        u, w = torch.randn(batch, height, width).double(), torch.rand(batch).double()
        torch.testing.assert_close(compiled(u, w), asked(u, w))


def test_draws_are_part_of_the_graph() -> None:
    """From torch's own generator, so that the same seed gives the same draws."""
    model, inputs = CASES["potts"].model(), CASES["potts"].inputs()
    torch.compiler.reset()

    def asked(given: dict[str, Tensor]) -> list[Tensor]:
        drawn = model.infer(**given, using="exact").sample(3)
        return [drawn["s"], drawn["y"], drawn.score]

    found = []
    for call in (torch.compile(asked, fullgraph=True, backend="eager"), asked):
        torch.manual_seed(0)
        found.append(call(inputs))
    torch.testing.assert_close(*found)


def test_what_failed_is_nan_in_compiled_code() -> None:
    text = (
        CASES["smooth edges"]
        .spec(bounded=False)
        .replace("ridge: 1.5", "ridge: r")
        .replace("field", "input r : real\nfield")
    )
    model, inputs = em.compile(text), CASES["smooth edges"].inputs()
    torch.compiler.reset()
    r = torch.tensor([3.0, -50.0]).to(inputs["u"].dtype)
    assert inputs["u"].shape[0] == 2
    found = torch.compile(lambda r: model.infer(**inputs, r=r).mode["s"], fullgraph=True, backend="eager")(r)
    assert found[0].isfinite().all() and found[1].isnan().all()


def reasons() -> dict[str, tuple[Callable[[em.EnergyModel, dict[str, Tensor]], Tensor], str]]:
    generator = torch.Generator()

    def values(inputs: dict[str, Tensor]) -> Tensor:
        return torch.zeros_like(inputs["u"])

    def some(inputs: dict[str, Tensor]) -> Tensor:
        return torch.full_like(inputs["u"], float("nan")).index_fill(2, torch.tensor([0]), 0.5)

    return {
        "conjugate gradients": (
            lambda m, x: m.infer(**x, using="cg").mode["s"],
            "conjugate gradients end when numbers",
        ),
        "log_prob": (lambda m, x: m.infer(**x, using="exact").log_prob(s=values(x)), "known at run time only"),
        "evidence": (
            lambda m, x: m.infer(**x, evidence={"s": some(x)}, using="exact").mode["s"],
            "known at run time only",
        ),
        "generator": (
            lambda m, x: m.infer(**x, using="exact").sample(2, generator=generator)["s"],
            "no generator of its own",
        ),
    }


@pytest.mark.parametrize("kind", reasons())
def test_what_needs_numbers_names_the_reason_and_runs_outside(kind: str) -> None:
    model, inputs = CASES["potts"].model(), CASES["potts"].inputs()
    (asked, reason), seeded = reasons()[kind], kind == "generator"
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=reason):
        torch.compile(lambda x: asked(model, x), fullgraph=True, backend="eager")(inputs)
    torch.compiler.reset()
    found = torch.compile(lambda x: asked(model, x), backend="eager")(inputs)
    wanted = asked(model, inputs)
    assert found.shape == wanted.shape and found.isfinite().all()
    if not seeded:
        torch.testing.assert_close(found, wanted)


# The compiler looks at `.grad` of what it is handed behind a break, and torch warns.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_plain_compilation_gives_the_same_answers_and_gradients() -> None:
    """Without `fullgraph=True`, of a query that is in the graph and of one that is not."""
    model, inputs = CASES["potts"].model(), CASES["potts"].inputs()
    u = inputs["u"].requires_grad_()

    def asked() -> Tensor:
        posterior = model.infer(**inputs, using="exact")
        return posterior.mode["s"].square().sum() - posterior.log_prob(s=torch.zeros_like(u)).sum()

    torch.compiler.reset()
    found, wanted = torch.compile(asked, backend="eager")(), asked()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(one, u)[0] for one in (found, wanted)))
