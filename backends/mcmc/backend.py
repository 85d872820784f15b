"""The backends that sample: kernels made from their cards, run, and asked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from energyml.backend import Backend, Session
from energyml.backends.mcmc.estimates import Estimate, annealed_importance, bridge
from energyml.backends.mcmc.factor_target import FactorTarget
from energyml.backends.mcmc.gibbs import ChainGibbs, FactorGibbs, SiteGibbs
from energyml.backends.mcmc.gibbs_native import NativeChains, NativeGibbs
from energyml.backends.mcmc.gradient import DiscreteLangevin, GradientGibbs
from energyml.backends.mcmc.kept import Kept
from energyml.backends.mcmc.kernel import Kernel, State
from energyml.backends.mcmc.metropolis import DegenerateGibbs, MaskPredict, Metropolis
from energyml.backends.mcmc.modes import Modes, told
from energyml.backends.mcmc.starts import BurnIn
from energyml.backends.mcmc.swendsen_wang import SwendsenWang
from energyml.backends.mcmc.target import ScoreTarget, Target
from energyml.backends.mcmc.tempering import Tempering, ladder
from energyml.bind.problem import Problem
from energyml.bind.terms import BoundTerm
from energyml.bind.views import tables
from energyml.caching import ValueCache
from energyml.diagnostics import EnergyError, QueryRefused
from energyml.grounded.factors import Grounder
from energyml.inference.trace import Progress, Trace, no_answer
from energyml.ir.graph import Graph
from energyml.plan.structure import Structure
from energyml.queries import Query
from energyml.result import ABSENT, Assignment, Measured, Result, Status


class Sampler(Backend):
    """A backend whose card names a kernel."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Sort the terms; structures are grounded when they are met, and kept."""
        own = tables(terms)
        self.grounder = Grounder(graph, own) if len(own) == len(terms) else None

    def target(self, problem: Problem, chains: int) -> Target:
        """The factor graph where all terms have tables, else the terms' scores."""
        return ScoreTarget(problem, chains) if self.grounder is None else FactorTarget(problem, chains, self.grounder)

    def factor_target(self, problem: Problem, chains: int) -> FactorTarget:
        """The factor graph, for kernels that need one."""
        found = self.target(problem, chains)
        if not isinstance(found, FactorTarget):
            raise QueryRefused(f"`{self.selection}` needs a model of tables; `gibbs` with `block: none` serves others")
        return found

    def followed(self, problem: Problem, chains: int) -> Target:
        """A target that knows differences of scores."""
        found = self.target(problem, chains)
        if isinstance(found, ScoreTarget) and not hasattr(problem, "soft_score"):
            raise QueryRefused(f"`{self.selection.name}` needs relaxed scores of all terms; `gibbs` needs none")
        return found

    @abstractmethod
    def kernel(self, problem: Problem, chains: int) -> Kernel:
        """The kernel for one batch."""

    def open(self, problem: Problem) -> Session:
        """Nothing is drawn before a query asks."""
        return SamplerSession(problem, self)


class Gibbs(Sampler):
    """Exact conditionals."""

    def kernel(self, problem: Problem, chains: int) -> Kernel:
        """Cell after cell, colours, or whole chains of cells."""
        return conditionals(self, problem, chains)


def conditionals(backend: Sampler, problem: Problem, chains: int) -> Kernel:
    """Gibbs sampling of any model, by the options `block` and `engine` of a backend."""
    block, engine = str(backend.selection["block"]), str(backend.selection["engine"])
    target = backend.factor_target(problem, chains) if block == "chains" else backend.target(problem, chains)
    if isinstance(target, ScoreTarget):
        if engine == "native":
            raise QueryRefused(f"`{backend.selection}` needs a model of tables; `engine: auto` serves others")
        return SiteGibbs(target)
    assert isinstance(target, FactorTarget)
    native = engine != "torch" and NativeGibbs.serves(target)
    if engine == "native" and not native:
        raise QueryRefused(
            f"`{backend.selection}` needs native code that was built, and scores on the CPU in float32 or float64; "
            "`engine: torch` has the same distribution"
        )
    if block == "chains":
        return NativeChains(target) if native else ChainGibbs(target)
    order = "coloured" if block == "colour" else "sequential"
    return NativeGibbs(target, order) if native else FactorGibbs(target, order)


class MetropolisHastings(Sampler):
    """Masked proposals."""

    def kernel(self, problem: Problem, chains: int) -> Kernel:
        """With the options of the card."""
        option = self.selection
        return Metropolis(
            ScoreTarget(problem, chains),
            block=option["block"],
            sweeps=int(option["sweeps"]) + int(option["burn_in"]),
            anneal=float(option["anneal_by"]) if option["anneal"] else 0.0,
            forced=int(option["forced"]),
            hide=str(option["hide"]),
            temperature=float(option["temperature"]),
            nucleus=float(option["nucleus"]),
            mixture=float(option["mixture"]),
            order=str(option["order"]),
        )


class Degenerate(Sampler):
    """Masked conditionals as if they were the model's own."""

    def kernel(self, problem: Problem, chains: int) -> Kernel:
        """With the options of the card."""
        option = self.selection
        target = ScoreTarget(problem, chains)
        return DegenerateGibbs(
            target, float(option["temperature"]), float(option["nucleus"]), 0.0, str(option["order"])
        )


class WithGradients(Sampler):
    """Gibbs with gradients."""

    def kernel(self, problem: Problem, chains: int) -> Kernel:
        """On factor graphs with exact differences."""
        return GradientGibbs(self.followed(problem, chains))


class Langevin(Sampler):
    """Discrete Langevin."""

    def kernel(self, problem: Problem, chains: int) -> Kernel:
        """With the options of the card."""
        target = self.followed(problem, chains)
        return DiscreteLangevin(target, float(self.selection["step_size"]), bool(self.selection["adjusted"]))


class Clusters(Sampler):
    """Swendsen-Wang."""

    def kernel(self, problem: Problem, chains: int) -> Kernel:
        """On factor graphs."""
        return SwendsenWang(self.factor_target(problem, chains))


class Tempered(Sampler):
    """Parallel tempering."""

    @property
    def rungs(self) -> int:
        """How many temperatures a chain has."""
        return int(self.selection["rungs"])

    def kernel(self, problem: Problem, chains: int) -> Tempering:
        """Gibbs sampling at each rung."""
        inner = conditionals(self, problem, chains * self.rungs)
        return Tempering(inner, ladder(self.rungs, float(self.selection["hottest"])))


class SamplerSession(Session):
    """One batch; the chains run once, when a query asks.

    Attributes:
        progress: called after each sweep.
        stopping: asked after each sweep that is kept; once it says yes, what there is must do.
        begin: where chains go on instead of starting, with no burn-in; they must be chains of this batch.
        ended: where they stood after the last sweep.
    """

    def __init__(self, problem: Problem, backend: Sampler) -> None:
        self.problem, self.backend, self.selection = problem, backend, backend.selection
        self.latent = frozenset(v.name for v in problem.graph.discrete if v.kind == "latent")
        self._cache = ValueCache()
        self.once = self._cache.once
        self.progress: Callable[[Progress], None] | None = None
        self.stopping: Callable[[], bool] | None = None
        self.begin: State | None = None
        self.ended: State | None = None

    def drawn(self) -> dict[tuple[str, bool], Any]:
        """The trace, where the chains have run."""
        return self._cache.all()

    def keep_drawn(self, drawn: Mapping[tuple[str, bool], Any]) -> None:
        """Answer with the trace of another session."""
        self._cache.take(drawn)

    def go_on_from(self, tensors: Mapping[str, Tensor]) -> None:
        """Begin where chains stood: the tensors of a state, as `ended.tensors()` gave them."""
        self.begin = State.from_tensors(tensors)

    def ask(self, query: Query) -> Result:
        """Answer a query of the card."""
        if query.kind == "sample":
            trace = self._drawn(query)
            return Result(self._sample(trace, query.count), status=self.status(trace), statistics=_statistics(trace))
        if query.kind == "marginals":
            trace = self.trace()
            value = {name: trace.marginals(name) for name in trace.labels}
            return Result(value, status=self.status(trace), statistics=_statistics(trace))
        raise QueryRefused(f"`{self.selection.name}` does not answer `{query.kind}`")

    def impossible(self) -> Tensor:
        """[B]: what single cells and factors tell."""
        return self.backend.kernel(self.problem, 1).target.impossible()

    def status(self, trace: Trace) -> Status:
        """Chains that have not mixed warn; a sampler that is not valid by its nature says so in its quality.

        Draws that are no answers, or whose scores their type does not hold, are useless.
        """

        def check() -> tuple[bool, str] | None:
            found = trace.trouble()
            if found is None and trace.valid and trace.score.numel():
                missed = told(self.modes().missed(trace))
                found = None if missed is None else (False, missed)
            if found is None or not (found[0] or trace.valid):
                return None
            return found[0], f"`{self.selection.name}`: {found[1]}"

        return Status(check)

    def modes(self) -> Modes:
        """Likely answers, found by a search of its own."""
        chains = int(self.selection["chains"])
        with torch.no_grad():
            found: Modes = self.once("modes", lambda: Modes.found(self.backend.kernel(self.problem, chains), chains))
        return found

    def trace(self) -> Trace:
        """The kept draws of all chains; the seed is torch's own."""
        found: Trace = self.once("trace", lambda: self.run(self._seeded(None), int(self.selection["sweeps"])))
        return found

    def _drawn(self, query: Query) -> Trace:
        """A trace with enough draws; the one that is there where no generator asks for another."""
        needed = -(-query.count // int(self.selection["chains"]))
        sweeps = max(int(self.selection["sweeps"]), needed)
        if query.generator is None and needed <= int(self.selection["sweeps"]):
            return self.trace()
        return self.run(self._seeded(query.generator), sweeps)

    def _seeded(self, generator: torch.Generator | None) -> torch.Generator:
        device = self.problem.env.batch.device
        source = None if generator is None else generator
        where = torch.device("cpu") if generator is None else generator.device
        seed = int(torch.randint(2**62, (), generator=source, device=where))
        return torch.Generator(device).manual_seed(seed)

    # --------------------------------------------------------------------------------------------------------- running

    def run(self, generator: torch.Generator, sweeps: int) -> Trace:
        """Run the chains: burn-in, then `sweeps` sweeps that are kept, or fewer where `stopping` says so."""
        chains = int(self.selection["chains"])
        kernel = self.backend.kernel(self.problem, chains)
        kept = Kept(kernel, chains)
        apart: Tensor | None = None
        if self.begin is None:
            state, burn_in = kernel.init(generator), int(self.selection["burn_in"])
            if chains > 1:
                apart = kernel.target.apart({name: one[:, :: kept.stride] for name, one in state.labels.items()})
        else:
            state, burn_in = self._checked(self.begin, kernel), 0
        before = BurnIn(kernel, chains, state.beta, burn_in)
        begin = 0
        if self.progress is None:  # nobody looks at what is thrown away
            state, begin = before.run(state), burn_in
        for sweep in range(begin, burn_in + sweeps):
            state, info = kernel.step(before.ready(state, sweep))
            if sweep >= burn_in:
                kept.add(state, info.proposed, info.accepted, info.novel)
            if self.progress is not None:
                rate = float(info.accepted.sum() / info.proposed.sum().clamp(min=1))
                energy = float(-state.score.mean()) if state.score.numel() else 0.0
                self.progress(Progress(sweep + 1, burn_in + sweeps, sweep < burn_in, rate, energy))
            if self.stopping is not None and self.stopping():
                if sweep < burn_in:
                    raise EnergyError(
                        f"stopped after {sweep + 1} of {burn_in} sweeps of burn-in: there are no draws yet"
                    )
                break
        self.ended = state
        return kept.trace(self.problem, str(self.selection), burn_in, apart)

    def _checked(self, state: State, kernel: Kernel) -> State:
        """Where chains go on; refused where they are not those of this batch."""
        target = kernel.target
        shapes = {name: (target.size, target.chains, cells) for name, cells in target.cells.items()}
        if {name: tuple(one.shape) for name, one in state.labels.items()} != shapes:
            raise EnergyError(
                f"these chains are of another model, or of other numbers of examples, chains or cells than {shapes}"
            )
        with torch.no_grad():
            score = target.score(state.labels)
        if not torch.allclose(score, state.score.to(score), rtol=1e-4, atol=1e-4):
            raise EnergyError("these chains are of other weights, inputs or evidence: their scores are not the model's")
        return state

    # --------------------------------------------------------------------------------------------------------- answers

    def _sample(self, trace: Trace, count: int) -> Assignment:
        """Draws from all chains, evenly spaced over the sweeps; tables add up to their scores once more, unrounded."""
        sweeps, chains = trace.score.shape[:2]
        pick = ((torch.arange(count, device=trace.score.device) + 0.5) * (sweeps * chains / count)).long()
        drawn = {name: one.flatten(0, 1)[pick].long() for name, one in trace.labels.items()}
        score = trace.score.flatten(0, 1)[pick]
        gone = score.isneginf()
        if self.backend.grounder is not None:
            with torch.no_grad():
                each = {name: one.transpose(0, 1).flatten(0, 1) for name, one in drawn.items()}
                score = self.problem.score(each, count).reshape(-1, count).T.masked_fill(gone, float("-inf"))
        labels = {
            name: one.masked_fill(gone.reshape(*gone.shape, *([1] * (one.dim() - 2))), ABSENT)
            for name, one in drawn.items()
            if name not in self.latent
        }
        return Assignment(labels, score, self.problem.label_names())


def _statistics(trace: Trace) -> Mapping[str, Any]:
    sweeps, chains = trace.score.shape[:2]
    return Measured(
        {
            "sweeps": lambda: sweeps,
            "chains": lambda: chains,
            "acceptance": lambda: float(trace.acceptance.mean()) if trace.acceptance.numel() else 0.0,
            "novel": lambda: float(trace.novel.mean()) if trace.novel.numel() else 0.0,
            "rhat": lambda: max(float(trace.rhat_energy.max()), trace.rhat_cells) if trace.score.numel() else 1.0,
            "ess": lambda: trace.ess if trace.score.numel() else 0.0,
            "standard_error": lambda: {name: trace.marginal_errors(name) for name in trace.labels},
            "valid": lambda: trace.valid,
            "warning": lambda: trace.warning,
        }
    )


# ---------------------------------------------------------------------------------------------------------------- log Z


class Estimator(Sampler):
    """A backend that estimates log Z."""

    def open(self, problem: Problem) -> Session:
        """Nothing is drawn before a query asks."""
        return EstimateSession(problem, self)

    def kernel(self, problem: Problem, chains: int) -> Kernel:
        """Gibbs sampling."""
        return conditionals(self, problem, chains)

    @abstractmethod
    def estimate(self, problem: Problem, generator: torch.Generator) -> Estimate:
        """Log Z of a batch."""


class AnnealedImportance(Estimator):
    """Annealed importance sampling."""

    def estimate(self, problem: Problem, generator: torch.Generator) -> Estimate:
        """From uniform labels to the model in equal steps."""
        steps = int(self.selection["steps"])
        betas = [number / steps for number in range(steps + 1)]
        return annealed_importance(self.kernel(problem, int(self.selection["chains"])), betas, generator)


class BridgeSampling(Estimator):
    """Bridge sampling along a ladder."""

    def estimate(self, problem: Problem, generator: torch.Generator) -> Estimate:
        """Parallel tempering, then a bridge between each two rungs."""
        rungs, option = int(self.selection["rungs"]), self.selection
        inner = self.kernel(problem, int(option["chains"]) * rungs)
        kernel = Tempering(inner, ladder(rungs, float(option["hottest"])))
        return bridge(kernel, int(option["sweeps"]), int(option["burn_in"]), generator)


class EstimateSession(Session):
    """One batch; the estimate is made once."""

    def __init__(self, problem: Problem, backend: Estimator) -> None:
        self.problem, self.backend = problem, backend
        self._cache = ValueCache()
        self.once = self._cache.once

    def drawn(self) -> dict[tuple[str, bool], Any]:
        """The estimate, where it was made."""
        return self._cache.all()

    def keep_drawn(self, drawn: Mapping[tuple[str, bool], Any]) -> None:
        """Answer with the estimate of another session."""
        self._cache.take(drawn)

    def ask(self, query: Query) -> Result:
        """Log Z with its error."""
        if query.kind != "log_partition":
            raise QueryRefused(f"`{self.backend.selection.name}` does not answer `{query.kind}`")
        found: Estimate = self.once("estimate", self._estimated)

        def check() -> tuple[bool, str] | None:
            trouble = found.trouble()
            return None if trouble is None else (trouble[0], f"`{self.backend.selection.name}`: {trouble[1]}")

        statistics = Measured({"error": lambda: found.error, "ess": lambda: found.worth, "rhat": lambda: found.rhat})
        return Result(found.log_z, status=Status(check), statistics=statistics)

    def impossible(self) -> Tensor:
        """[B]: what single cells and factors tell."""
        found: Estimate = self.once("estimate", self._estimated)
        return found.impossible

    def _estimated(self) -> Estimate:
        generator = torch.Generator(self.problem.env.batch.device).manual_seed(int(torch.randint(2**62, ())))
        with torch.no_grad():
            return self.backend.estimate(self.problem, generator)


# ------------------------------------------------------------------------------------------------------------- decoding


class Predict(Sampler):
    """Mask-predict: a decoder."""

    def kernel(self, problem: Problem, chains: int) -> MaskPredict:
        """With the options of the card."""
        option = self.selection
        rounds, pick, hide = int(option["rounds"]), str(option["pick"]), str(option["hide"])
        return MaskPredict(ScoreTarget(problem, chains), rounds, pick, hide)

    def open(self, problem: Problem) -> Session:
        """Nothing is decoded before a query asks."""
        return PredictSession(problem, self)


class PredictSession(Session):
    """One batch."""

    def __init__(self, problem: Problem, backend: Predict) -> None:
        self.problem, self.backend = problem, backend

    def impossible(self) -> Tensor:
        """[B]: what single cells and factors tell."""
        return self.backend.kernel(self.problem, 1).target.impossible()

    def ask(self, query: Query) -> Result:
        """The answer with the best score of a few starts, with its own score."""
        if query.kind != "map":
            raise QueryRefused(f"`{self.backend.selection.name}` does not answer `{query.kind}`")
        kernel = self.backend.kernel(self.problem, int(self.backend.selection["chains"]))
        seed = 0 if query.generator is None else int(torch.randint(2**62, (), generator=query.generator))
        first = kernel.init(torch.Generator(kernel.target.device).manual_seed(seed))
        state, _ = kernel.step(first)
        # The start is an answer too: where constraints are broken by what is predicted, it may be the better one.
        labels = {name: torch.cat([one, first.labels[name]], 1) for name, one in state.labels.items()}
        score = torch.cat([state.score, first.score], 1)
        best = score.argmax(1, keepdim=True)
        found = {}
        for name, one in kernel.target.outward(labels).items():
            index = best.reshape(-1, 1, *([1] * (one.dim() - 2))).expand(-1, 1, *one.shape[2:])
            found[name] = one.gather(1, index).squeeze(1)
        top = score.gather(1, best).squeeze(1)
        aux = kernel.target.auxiliary(labels).gather(1, best).squeeze(1)
        gone = top.isneginf()
        outputs = {
            v.name: found[v.name].masked_fill(gone.reshape(-1, *([1] * (found[v.name].dim() - 1))), ABSENT)
            for v in self.problem.graph.discrete
            if v.kind != "latent"
        }
        lost, score = gone & ~kernel.target.impossible(), top + aux

        def check() -> tuple[bool, str] | None:
            if bool(score.isposinf().any()):
                name = str(score.dtype).removeprefix("torch.")
                return True, f"`mask_predict`: a score is larger than {name} holds: use smaller scores or float64"
            return (True, f"`mask_predict` {no_answer(lost)}") if bool(lost.any()) else None

        return Result(Assignment(outputs, score, self.problem.label_names()), status=Status(check))


__all__ = ["SamplerSession"]
