"""Posteriors as Pyro distributions, for use inside larger Pyro programs.  An optional extra: `sampling`."""

from __future__ import annotations

from importlib import import_module
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from energyml.diagnostics import EnergyError, QueryRefused
from energyml.queries import Quality

if TYPE_CHECKING:
    from energyml.posterior import Posterior

# Answers of one example that are listed by `enumerate_support`.
LARGEST_SUPPORT = 100_000


def distribution(posterior: Posterior) -> Any:
    """A `pyro.distributions.TorchDistribution` over the one output or field of a model.

    Its batch shape is [B], its event shape the variable's axes; values are label numbers, or real values.  `log_prob`
    is differentiable in inputs and parameters.  The backend must answer `log_prob` exactly and `sample`: `exact` and
    `enumerate` do.

    Raises:
        QueryRefused: for several outputs, ragged examples, or a backend that only estimates.
    """
    pyro = _pyro()
    graph = posterior.problem.graph
    found = [*(v for v in graph.discrete if v.kind != "latent"), *graph.fields]
    if len(found) != 1:
        names = ", ".join(v.name for v in found)
        raise QueryRefused(f"a Pyro distribution is over one output or field, and this model has {names or 'none'}")
    (variable,) = found
    for kind in ("log_prob", "sample"):
        if posterior.answers.get(kind) is not Quality.EXACT:
            raise QueryRefused(f"a Pyro distribution needs an exact `{kind}`, and `{posterior.backend}` has none")
    batch = posterior.problem.env.batch
    if batch.cells(variable.name, variable.dims) is not None:
        raise QueryRefused("a Pyro distribution has one event shape: pass examples without padding or masks")
    return _made(pyro, posterior, variable.name, variable.kind == "field")


def _made(pyro: Any, posterior: Posterior, name: str, is_field: bool) -> Any:
    """The distribution; its class is made here because its base is imported here."""
    constraints = torch.distributions.constraints
    problem = posterior.problem
    batch = problem.env.batch
    declared = problem.graph.variables[name]
    if is_field:
        with torch.no_grad():
            event = tuple(posterior.mode[name].shape[1:])
        support = constraints.independent(constraints.real, len(event))
    else:
        event = tuple(batch.size_of(dim) for dim in declared.dims)
        support = constraints.independent(constraints.integer_interval(0, problem.label_count(name) - 1), len(event))

    class EnergyDistribution(pyro.distributions.TorchDistribution):  # type: ignore[misc]
        """p(y | x) of one batch."""

        arg_constraints: dict[str, Any] = {}  # noqa: RUF012 - the name and kind that torch.distributions asks for
        has_rsample = False

        @property
        def support(self) -> Any:
            """Labels, or reals."""
            return support

        @property
        def has_enumerate_support(self) -> bool:
            """Whether all answers can be listed."""
            return not is_field and problem.label_count(name) ** prod(event) <= LARGEST_SUPPORT

        def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
            """Only to the shape that it has."""
            if torch.Size(batch_shape) == self.batch_shape:
                return self
            raise NotImplementedError("an energy distribution has one example for each row: pass more inputs instead")

        def sample(self, sample_shape: Any = ()) -> Tensor:
            """[*sample_shape, B, *event]."""
            shape = torch.Size(sample_shape)
            with torch.no_grad():
                drawn: Tensor = posterior.sample(max(1, shape.numel()))[name]
            return drawn[: shape.numel()].reshape(*shape, *self.batch_shape, *self.event_shape)

        def log_prob(self, value: Tensor) -> Tensor:
            """[..., B] of values [..., B, *event]; one look for each leading index."""
            lead = value.shape[: value.dim() - 1 - len(event)]
            flat = value.expand(*lead, *self.batch_shape, *event).reshape(-1, *self.batch_shape, *event)
            kept = flat if is_field else flat.long()
            each = [posterior.log_prob(**{name: one}) for one in kept]
            return torch.stack(each).reshape(*lead, *self.batch_shape)

        def enumerate_support(self, expand: bool = True) -> Tensor:
            """[answers, B or 1, *event]: every combination of labels, what is forbidden included."""
            if not self.has_enumerate_support:
                raise NotImplementedError("too many answers to list, or a field's")
            labels = range(problem.label_count(name))
            rows = torch.tensor(list(product(labels, repeat=prod(event))), dtype=torch.long, device=batch.device)
            listed = rows.reshape(-1, 1, *event)
            return listed.expand(-1, *self.batch_shape, *event) if expand else listed

    return EnergyDistribution(torch.Size([batch.size]), torch.Size(event), validate_args=False)


def _pyro() -> Any:
    try:
        import_module("pyro.distributions")
        return import_module("pyro")
    except ImportError as problem:
        raise EnergyError("this needs Pyro: pip install 'energyml[sampling]'") from problem


__all__ = ["distribution"]
