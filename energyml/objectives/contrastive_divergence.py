"""Contrastive divergence: the gradient of the likelihood from a few steps of a sampler (Hinton 2002; Tieleman 2008)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor

from energyml.bind.binder import used_inputs
from energyml.bind.problem import Problem
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.objectives.full_answers import check_labels_only, unlabelled
from energyml.objectives.kept import Stored, kept
from energyml.posterior import Posterior

if TYPE_CHECKING:
    from energyml.energy_model import EnergyModel

# The cells that an example has, by variable: the shape of the box around them, and which of it.
Cells: TypeAlias = tuple[tuple[tuple[int, ...], bytes], ...]


def contrastive_divergence(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the mean score of where chains went, less that of the data; its gradient estimates that of `nll`.

    `chains` chains of each example start at its labels and make `steps` sweeps of the stage's sampler, or of `gibbs`
    where the stage's backend is none.  With `persistent` they go on from where the last batch left them (Tieleman
    2008): chains are shared by the examples that have the same cells, so this is for models without inputs, or with
    fixed ones; a chain that is not there yet starts at the data.  Checkpoints store them.

    The value is no bound of anything and may be negative: judge models by `nll` where it can be had.  Cost: `steps`
    sweeps without gradients, and the scores of `chains` + 1 answers with them.
    """
    problem, chains = posterior.problem, int(selection["chains"])
    check_labels_only(problem, selection.name)
    gone = unlabelled(problem, answer, selection.name)
    model = cast("EnergyModel", problem.env.module)
    kernel = _kernel(posterior, model, chains)
    begin = {name: one.unsqueeze(1).expand(-1, chains, *one.shape[1:]) for name, one in answer.items()}
    pool = None
    if selection["persistent"]:
        _check_shared(model)
        pool = kept(model, selection, ChainPool)
        begin = pool.taken(problem, begin)
    moved = _moved(kernel, begin, int(selection["steps"]))
    if pool is not None:
        pool.put_back(problem, moved)
    drawn = problem.score({name: one.flatten(0, 1) for name, one in moved.items()}, chains, wide=True)
    own = problem.score(answer, wide=True)
    impossible = own.isneginf()
    losses = drawn.reshape(-1, chains).mean(1) - own.masked_fill(impossible, 0)
    losses = losses.masked_fill(impossible, float("inf")).masked_fill(gone, float("nan"))
    return losses.to(problem.env.batch.dtype)


def _kernel(posterior: Posterior, model: EnergyModel, chains: int) -> Any:
    """The sampler's kernel for the batch: that of the stage, else `gibbs`."""
    backend: Any = model.prepared(posterior.selection)[0]
    if "sample" not in posterior.answers or not hasattr(backend, "kernel"):
        backend = model.prepared("gibbs")[0]
    return backend.kernel(posterior.problem, chains)


def _moved(kernel: Any, begin: Mapping[str, Tensor], steps: int) -> dict[str, Tensor]:
    """[B, C, *dims] by variable: where chains are after some sweeps from labels [B, C, *dims]."""
    target = kernel.target
    chains = next(iter(begin.values())).shape[1]
    rungs = target.chains // chains  # chains at other temperatures stand beside each chain
    inward = {name: one.repeat_interleave(rungs, 1) for name, one in _inward(target, begin).items()}
    seed = int(torch.randint(2**62, ()))
    state = kernel.init(torch.Generator(target.device).manual_seed(seed), labels=inward)
    state, _ = kernel.run(state, steps)
    found: dict[str, Tensor] = target.outward({name: one[:, ::rungs] for name, one in state.labels.items()})
    return found


def _inward(target: Any, labels: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Labels [B, C, *dims] as [B, C, cells] in the order of a sampler's target."""
    made = {}
    for name, cells in target.cells.items():
        numbers = torch.arange(cells, device=target.device).expand(target.size, 1, cells)
        # The number of the cell at each position; where there is none, a place that is dropped again.
        place = target.outward({name: numbers})[name].reshape(target.size, 1, -1)
        place = place.masked_fill(place < 0, cells)
        given = labels[name].reshape(target.size, -1, place.shape[2]).clamp(min=0)
        room = given.new_zeros(*given.shape[:2], cells + 1)
        made[name] = room.scatter(2, place.expand_as(given), given)[:, :, :cells]
    return made


def _check_shared(model: EnergyModel) -> None:
    own = [name for name in used_inputs(model.graph) if name not in model.fixed]
    if own:
        raise EnergyError(
            f"persistent chains belong to one distribution, and here it changes with the input `{own[0]}`; leave "
            "`persistent` out, or fix the input: `model.fix(...)`"
        )


class ChainPool:
    """Chains between batches: for each set of cells as many as a batch has had examples with those."""

    def __init__(self) -> None:
        self.chains: dict[Cells, list[dict[str, Tensor]]] = defaultdict(list)

    def taken(self, problem: Problem, begin: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Labels [B, C, *dims] of chains that are taken out; those of `begin` for examples without any."""
        masks = _masks(problem)
        made = {name: one.clone() for name, one in begin.items()}
        for example, cells in enumerate(_cells(masks)):
            waiting = self.chains[cells]
            if waiting:
                for name, labels in waiting.pop(0).items():
                    made[name][example, :, masks[name][example]] = labels.to(made[name].device)
        return made

    def put_back(self, problem: Problem, labels: Mapping[str, Tensor]) -> None:
        """Keep chains [B, C, *dims] for batches to come."""
        masks = _masks(problem)
        for example, cells in enumerate(_cells(masks)):
            self.chains[cells].append({name: one[example][:, masks[name][example]] for name, one in labels.items()})

    def stored(self) -> Stored:
        """All waiting chains in their order: for each set of cells a tensor [examples, C, cells] for each variable."""
        waiting = [(cells, chains) for cells, chains in self.chains.items() if chains]
        tensors = {
            f"{group}.{name}": torch.stack([one[name] for one in chains])
            for group, (_, chains) in enumerate(waiting)
            for name in chains[0]
        }
        return Stored(tensors, [[[list(box), inside.hex()] for box, inside in cells] for cells, _ in waiting])

    def restore(self, stored: Stored) -> None:
        """Become the pool of a checkpoint."""
        self.chains.clear()
        for group, parts in enumerate(stored.plain):
            own = {
                name.partition(".")[2]: one
                for name, one in stored.tensors.items()
                if name.partition(".")[0] == str(group)
            }
            cells = tuple((tuple(box), bytes.fromhex(inside)) for box, inside in parts)
            count = next(iter(own.values())).shape[0]
            self.chains[cells] = [{name: one[number] for name, one in own.items()} for number in range(count)]


def _masks(problem: Problem) -> dict[str, Tensor]:
    return {v.name: problem.env.batch.cells_exist(v.dims, v.name) for v in problem.graph.discrete}


def _cells(masks: Mapping[str, Tensor]) -> Sequence[Cells]:
    """For each example its cells, the same for any padding behind them."""
    found = []
    at_host = [mask.cpu() for mask in masks.values()]
    for example in range(at_host[0].shape[0]):
        parts = []
        for mask in at_host:
            own, box = mask[example], []
            for axis in range(own.dim()):
                others = [other for other in range(own.dim()) if other != axis]
                line = own.any(others) if others else own
                box.append(int(line.nonzero().max()) + 1 if bool(line.any()) else 0)
            cut = own[tuple(slice(size) for size in box)]
            parts.append((tuple(box), bytes(cut.flatten().tolist())))
        found.append(tuple(parts))
    return found


__all__ = ["ChainPool", "contrastive_divergence"]
