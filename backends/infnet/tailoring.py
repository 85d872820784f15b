"""Instance tailoring (Tu & Gimpel 2019, section 4.2.1): a few steps of a network's parameters for each input.

All examples of a batch are tailored at once: each has its own copy of the parameters, and `torch.func` runs the network
on every example with its own.  The parameters themselves are never written to.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from energyml.backends.infnet.architectures import lstm_step
from energyml.backends.infnet.network import InferenceNetwork, SequenceNetwork
from energyml.backends.infnet.reading import Table

Tensors = dict[str, Tensor]
# From scores [B, *dims, labels] by variable to what is maximised, [B].
Judge = Callable[[Mapping[str, Tensor]], Tensor]


class SteppedLSTM(nn.Module):
    """An LSTM written as a loop of cells: `torch.func.vmap` has no rule for the fused one.

    Args:
        fused: one direction, batch first; its parameters are shared under their names.
    """

    def __init__(self, fused: nn.LSTM) -> None:
        super().__init__()
        self.hidden_size, self.layers, self.biased = fused.hidden_size, fused.num_layers, fused.bias
        for name, parameter in fused.named_parameters():
            self.register_parameter(name, parameter)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """All states ``[B, T, H]`` of ``[B, T, F]``."""
        for layer in range(self.layers):
            enter, recur = (getattr(self, f"weight_{kind}_l{layer}") for kind in ("ih", "hh"))
            gates = x @ enter.transpose(-1, -2)
            if self.biased:
                gates = gates + getattr(self, f"bias_ih_l{layer}") + getattr(self, f"bias_hh_l{layer}")
            turned = recur.transpose(-1, -2)
            hidden = cell = torch.zeros_like(gates[:, 0, : self.hidden_size])
            states = []
            for step in gates.unbind(1):
                hidden, cell = lstm_step(step + hidden @ turned, cell)
                states.append(hidden)
            x = torch.stack(states, dim=1)
        return x, None


def steppable(network: nn.Module) -> nn.Module | None:
    """A network that shares its tensors with the given one and runs under `vmap`; `None` where it would not.

    LSTMs of one direction become loops of cells; other fused recurrences have no such form here.
    """
    shared = {id(one): one for one in (*network.parameters(), *network.buffers())}
    made = copy.deepcopy(network, shared)
    made.eval()
    for parent in list(made.modules()):
        for name, child in list(parent.named_children()):
            if not isinstance(child, nn.RNNBase):
                continue
            if not isinstance(child, nn.LSTM) or child.bidirectional or not child.batch_first or child.proj_size:
                return None
            setattr(parent, name, SteppedLSTM(child))
    return made


@dataclass
class Tailored:
    """What tailoring found.

    Attributes:
        scores: [B, *dims, labels] by variable: those of the best step of each example.
        began: [B] what was maximised, before the first step.
        ended: [B] the same at the best step.
    """

    scores: Tensors
    began: Tensor
    ended: Tensor


@dataclass
class Tailoring:
    """The tailoring of a network to the examples of a batch.

    Gradient steps with momentum on the parameters of each example; the best step of an example is kept, so that its
    relaxed score never gets worse.  Of an embedding only the rows that an example uses are copied; the tables of a
    network that the spec names (`infnet(net: NAME)`) stay as they are.  Memory: three times the parameters for each
    example; cost: a forward and a backward pass of the network and of the relaxed score for each step.

    Attributes:
        network: the network.
        tensors: its inputs [B, ...] by name.
        masks: its masks [B, ...] by dim.
        looped: whether examples are run one by one, because the network does not run under `vmap`; found out.
    """

    network: InferenceNetwork
    tensors: Mapping[str, Tensor]
    masks: Mapping[str, Tensor]
    looped: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Copy the parameters, and the rows of embeddings."""
        self._given = dict(self.tensors)
        self._size = next(iter(self._given.values())).shape[0]
        made = steppable(self.network)
        self.looped = made is None
        self._twin = made if made is not None else _in_evaluation(self.network)
        self.parameters = {
            name: one.expand(self._size, *one.shape)
            for name, one in self.network.named_parameters()
            if name not in _tables(self.network)
        }
        self._own_rows()

    def _own_rows(self) -> None:
        """Give each example the rows of moving embeddings that it uses, and inputs that point at them."""
        for number, part in enumerate(self.network.parts):
            if not isinstance(part, SequenceNetwork):
                continue
            for place, name in enumerate(part.reader.embedded):
                weight = part.reader.tables[place].weight
                path = f"parts.{number}.reader.tables.{place}.weight"
                if not isinstance(weight, nn.Parameter):
                    continue
                labels = self.tensors[name].clamp(0, weight.shape[0] - 1)
                flat = labels.flatten(1)
                if flat.shape[1] >= weight.shape[0]:
                    self.parameters[path] = weight.expand(self._size, *weight.shape)
                    continue
                first = (flat.unsqueeze(2) == flat.unsqueeze(1)).to(torch.uint8).argmax(2)
                self._given[name] = first.reshape(labels.shape)
                self.parameters[path] = weight[flat]

    def scores(self, parameters: Mapping[str, Tensor]) -> Tensors:
        """Scores [B, *dims, labels] by variable, each example's with its own parameters [B, ...]."""
        if not self.looped:
            try:
                found: Tensors = vmap(self._single)(dict(parameters), self._given, dict(self.masks))
                return found
            except RuntimeError as problem:
                if "vmap" not in str(problem) and "functorch" not in str(problem):
                    raise
                self.looped = True
        every = (parameters, self._given, self.masks)
        rows = [
            self._single(*({name: one[row] for name, one in each.items()} for each in every))
            for row in range(self._size)
        ]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _single(self, parameters: Tensors, tensors: Tensors, masks: Tensors) -> Tensors:
        """The scores of one example, without its axis."""
        alone = tuple({name: one.unsqueeze(0) for name, one in each.items()} for each in (tensors, masks))
        found: Tensors = functional_call(self._twin, parameters, alone)
        return {name: one.squeeze(0) for name, one in found.items()}

    def run(self, judge: Judge, steps: int, lr: float, momentum: float) -> Tailored:
        """Make the steps.  Gradients flow from the scores to the network as if the steps were constant.

        Args:
            judge: gives what is maximised, [B], an example's by its own scores alone.
            steps: how many.
            lr: their size.
            momentum: share of the last step that is added.
        """
        moved = {name: torch.zeros_like(one) for name, one in self.parameters.items()}
        speed = {name: torch.zeros_like(one) for name, one in self.parameters.items()}
        best = dict(moved)
        began = ended = None
        for step in range(steps + 1):
            with torch.enable_grad():
                here = {name: (one.detach() + moved[name]).requires_grad_() for name, one in self.parameters.items()}
                value = judge(self.scores(here))
                last = step == steps
                found = () if last else torch.autograd.grad(value.sum(), list(here.values()), allow_unused=True)
            value = value.detach()
            if ended is None or began is None:
                began = ended = value
            else:
                better = value > ended
                ended = torch.where(better, value, ended)
                best = {name: _chosen(better, one, best[name]) for name, one in moved.items()}
            for (name, before), slope in zip(speed.items(), found, strict=False):
                if slope is not None:
                    speed[name] = momentum * before + slope
                    moved[name] = moved[name] + lr * speed[name]
        assert began is not None and ended is not None
        return Tailored(self.scores({name: one + best[name] for name, one in self.parameters.items()}), began, ended)


def _chosen(which: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(which.reshape(-1, *([1] * (one.dim() - 1))), one, other)


def _in_evaluation(network: nn.Module) -> nn.Module:
    shared = {id(one): one for one in (*network.parameters(), *network.buffers())}
    return copy.deepcopy(network, shared).eval()


def _tables(network: nn.Module) -> set[str]:
    """The names of the weights of embeddings."""
    return {f"{name}.weight" for name, one in network.named_modules() if isinstance(one, nn.Embedding | Table)}


__all__ = ["SteppedLSTM", "Tailored", "Tailoring", "steppable"]
