"""From a form to the solver that the planner chose for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from operator import index
from typing import Any

from torch import Tensor

from energyml.backends.gaussian.banded import Banded, Blocks, grid_blocks, list_blocks, one_block
from energyml.backends.gaussian.bases import Base, Diagonal, Transform
from energyml.backends.gaussian.compiled import low_rank_solution
from energyml.backends.gaussian.dense import Dense
from energyml.backends.gaussian.iterative import Iterative, Settings
from energyml.backends.gaussian.solver import Outcome, Solver, solved
from energyml.backends.gaussian.woodbury import Direct, Woodbury
from energyml.bind.quadratic import QuadraticForm
from energyml.diagnostics import QueryRefused
from energyml.execution import cached, compile_constant, is_functional, is_host_readable, is_recording, under_transform
from energyml.plan.fields import Choice, FieldFacts, Method, Purpose, choose, direct

# Orders of lists of edges are looked for in Python, up to this many positions.
LARGEST_LIST = 20_000


@dataclass(frozen=True)
class Policy:
    """How a backend wants its fields solved.

    Attributes:
        iterative: whether conjugate gradients were asked for by name.
        budget: bytes that a direct method may take for one example.
        settings: those of conjugate gradients.
    """

    iterative: bool
    budget: float
    settings: Settings


class Methods:
    """The methods for one form: found when they are asked for, with their reasons.

    Args:
        name: the field.
        form: its precision matrix.
        policy: what the backend wants.
    """

    def __init__(self, name: str, form: QuadraticForm, policy: Policy) -> None:
        self.name, self.form, self.policy = name, form, policy
        self.blocks: Blocks | None = None
        self._facts: FieldFacts | None = None
        self._made: dict[tuple[str, str | None, bool], Solver] = {}

    @property
    def facts(self) -> FieldFacts:
        """What the couplings are; found when a choice is to be made."""
        if self._facts is None:
            self._facts = self._find_facts()
        return self._facts

    def _find_facts(self) -> FieldFacts:
        form, stencil = self.form, self.form.stencil
        shape = (form.sizes.positions,) if stencil is None else stencil.shape
        facts = FieldFacts(
            self.name,
            channels=form.sizes.channels,
            shape=shape,
            rank=sum(part.rank for part in form.vectors),
            stencil=stencil is not None,
            constant=stencil is not None and stencil.is_constant,
            aligned=stencil is None or _aligned(stencil.offsets),
            links=form.links is not None,
            dense=form.dense is not None,
            gaps=form.present is not None or form.diagonal is not None,
        )
        if form.links is None or self.policy.iterative:
            return facts
        if form.sizes.positions > LARGEST_LIST or stencil is not None:
            return replace(facts, band=form.sizes.positions)  # no order is looked for
        if is_recording():
            self.blocks = one_block(form.sizes.positions, form.ridge.device)
            return replace(facts, band=self.blocks.size)
        self.blocks = list_blocks(form.links.ends, form.links.weights, form.sizes.positions)
        return replace(facts, band=self.blocks.size)

    def choice(self, purpose: Purpose) -> Choice | None:
        """The method for a purpose; `None` where nothing exact fits the budget."""
        if 0 in self.form.sizes:
            return Choice("diagonal", why="there are no cells")
        if self.policy.iterative:
            return _ASKED
        if not is_recording():
            return _chosen(self.facts, self.policy.budget, purpose)
        facts, shape = self.facts, self.facts.shape or ()
        sizes = (index(self.form.sizes.channels), tuple([index(size) for size in shape]), index(facts.rank or 0))
        kinds = (facts.stencil, facts.constant, facts.aligned, facts.links)
        method = _compiled_choice(self.name, sizes, kinds, facts.dense, facts.gaps, self.policy.budget, purpose)
        named: list[Any] = method.split()
        return Choice(*named) if named else None

    def solution(self, rhs: Tensor, start: Tensor | None = None) -> tuple[Tensor, Outcome]:
        """Q⁻¹ rhs for fields [B, M, N] with implicit gradients, by the method for solving, and how it went.

        Args:
            rhs: the right-hand side.
            start: [B, M, N], where an iterative method starts.
        """
        choice = self.choice("solve")
        assert choice is not None
        if is_functional():  # by operations that transforms and the compiler see through, on the form with gradients
            x, outcome = self.solver(choice, attached=True).solve(rhs)
            return x, replace(outcome, answer=x)
        if choice.method == "woodbury" and choice.base == "diagonal" and self.policy.settings.native:
            found = low_rank_solution(self.form, rhs)
            if found is not None:
                return found
        return solved(self.solver(choice, attached=False), self.form, rhs, start)

    def solver(self, choice: Choice, *, attached: bool) -> Solver:
        """The solver of a choice, with or without gradients through its own algebra."""
        if choice.method == "cg" and under_transform():
            raise QueryRefused(
                f"`{self.name}`: conjugate gradients are not followed by `torch.func` and forward differentiation; "
                "`infer exact` is, where a direct method fits into its `memory`, and `backward` and "
                "`torch.autograd.grad` differentiate any method"
            )
        key = (choice.method, choice.base, attached)
        if key not in self._made:
            # Conjugate gradients keep both forms, and iterate without gradients.
            whole = attached or choice.method == "cg"
            self._made[key] = self._make(choice, self.form if whole else self.form.detached())
        return self._made[key]

    def _make(self, choice: Choice, form: QuadraticForm) -> Solver:
        match choice.method:
            case "cg":
                return Iterative(form, self.policy.settings)
            case "cholesky":
                return Dense(form)
            case "woodbury":
                assert choice.base is not None
                base = self._base(choice.base, replace(form, vectors=()))
                return Dense(form) if self._needs_all(base) else Woodbury(form, base)
        return Direct(form, self._base(choice.method, form), choice.method)

    def _needs_all(self, base: Base) -> bool:
        """Whether a base is not positive definite, which the whole matrix may be, and dense Cholesky fits."""
        if not is_host_readable(base.definite) or bool(base.definite.all()):
            return False
        return direct(replace(self.facts, dense=True), self.policy.budget) is not None

    def _base(self, method: Method, form: QuadraticForm) -> Base:
        if method == "diagonal":
            return Diagonal(form)
        if method == "transform":
            return Transform(form)
        if self.blocks is None:
            assert form.stencil is not None
            self.blocks = grid_blocks(form.stencil.shape, form.ridge.device)
        return Banded(form, self.blocks)


@cached(64)
def _aligned(offsets: tuple[tuple[int, ...], ...]) -> bool:
    """Whether directions are those of the axes."""
    return all(sum(map(abs, offset)) == 1 for offset in offsets)


@compile_constant
def _compiled_choice(
    name: str,
    sizes: tuple[int, tuple[int, ...], int],
    kinds: tuple[bool, bool, bool, bool],
    dense: bool,
    gaps: bool,
    budget: float,
    purpose: Purpose,
) -> str:
    """The method of compiled code, chosen once when it is compiled, and its base; empty where nothing exact fits.

    Edges of a list are known at run time only, so that no order is looked for.
    """
    channels, shape, rank = sizes
    facts = FieldFacts(name, channels, shape, rank, *kinds, prod(shape) if kinds[-1] else None, dense, gaps)
    choice = choose(facts, budget, purpose)
    return "" if choice is None else f"{choice.method} {choice.base or ''}"


# A training loop asks for the same fields again and again.
_chosen = cached(256)(choose)
# Conjugate gradients by name are no choice.
_ASKED = Choice("cg", why="asked for")

__all__ = ["Methods", "Policy"]
