"""A contract case in the making: a spec that grows by declarations and terms, and tensors for it.

Structure is drawn by hypothesis, so that failures shrink; numbers come from a seeded generator.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.contract.cases import Case

TAGS = {2: "{A, B}", 3: "{A, B, 'B-x'}"}
SCHEME_TAGS = "{O, 'B-x', 'I-x'}"
END_TAGS = "{A, B, stop}"


@dataclass
class Numbers:
    """How tensors look."""

    dtype: torch.dtype = torch.float64
    magnitude: float = 1.0
    holes: bool = False
    garbage: bool = False


@dataclass
class Draft:
    """A spec in the making, with the sizes that its tensors need."""

    numbers: Numbers
    seed: int
    batch: int
    sizes: dict[str, int] = field(default_factory=dict)
    declarations: list[str] = field(default_factory=list)
    terms: list[str] = field(default_factory=list)
    shapes: dict[str, tuple[object, ...]] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    lengths: dict[str, Tensor] = field(default_factory=dict)
    masks: dict[str, Tensor] = field(default_factory=dict)
    evidence: dict[str, Tensor] = field(default_factory=dict)
    variables: dict[str, tuple[tuple[str, ...], int]] = field(default_factory=dict)
    counter: int = 0

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def name(self, stem: str) -> str:
        """A fresh name."""
        self.counter += 1
        return f"{stem}{self.counter}"

    def declare(self, line: str) -> None:
        """Add a declaration once."""
        if line not in self.declarations:
            self.declarations.append(line)

    def real(self, type_: str, *shape: int, holes: bool = True) -> str:
        """A real input that is read as a table: its numbers may be huge, and -inf here and there."""
        name = self.name("u")
        self.declare(f"input {name} : real[{type_}]" if type_ else f"input {name} : real")
        values = torch.randn(self.batch, *shape, generator=self.generator, dtype=torch.float64) * self.numbers.magnitude
        if self.numbers.holes and holes:
            gone = torch.rand(self.batch, *shape, generator=self.generator) < 0.2
            values = values.masked_fill(gone, float("-inf"))
        self.inputs[name] = values.to(self.numbers.dtype)
        return name

    def feature(self, type_: str, *shape: int) -> str:
        """A real input that networks read."""
        name = self.name("x")
        self.declare(f"input {name} : real[{type_}]" if type_ else f"input {name} : real")
        values = torch.randn(self.batch, *shape, generator=self.generator, dtype=torch.float64)
        self.inputs[name] = values.to(self.numbers.dtype)
        return name

    def param(self, type_: str) -> str:
        """A parameter."""
        name = self.name("w")
        self.declare(f"param {name} : real{f'[{type_}]' if type_ else ''}")
        return name

    def net(self, call: str) -> str:
        """A network."""
        name = self.name("f")
        self.declare(f"net {name} = {call}")
        return name

    def factor(self, binders: str, scope: str, value: str) -> None:
        """A factor."""
        self.terms.append(f"factor {self.name('g')} {f'[{binders}] ' if binders else ''}({scope}) = {value}")

    def below(self, high: int, *shape: int) -> Tensor:
        """Random integers."""
        return torch.randint(0, high, shape, generator=self.generator)

    def case(self) -> Case:
        """The finished case."""
        for dim in self.sizes:
            self._anchor(dim)
        self._drop_far_edges()
        if self.numbers.garbage:
            self._fill_padding()
        text = "\n".join([*self.declarations, *self.terms, "infer auto", ""])
        return Case(
            text, self.inputs, self.sizes, self.lengths, self.masks, self.evidence, self.batch,
            self.numbers.magnitude, self.numbers.dtype,
        )  # fmt: skip

    def _anchor(self, dim: str) -> None:
        """Let an input that no score reads say how large a dim is, where nothing else does."""
        line = next(one for one in self.declarations if one.startswith((f"dim {dim}", f"dim {dim}[")))
        if "free" in line or "=" in line:
            return
        told = any(f"real[{dim}," in one or f"real[{dim}]" in one or f"[{dim}]" in one.partition("edge")[2]
                   for one in self.declarations if one.startswith("input"))  # fmt: skip
        told = told or any(dim in self.variables[name][0] for name in self.masks)
        known = self.lengths.get(dim, torch.zeros(0))
        tied = any("edge(" in one or (one.startswith("dim") and f"[{dim}]" in one) for one in self.declarations)
        full = known.numel() and int(known.max()) == self.sizes[dim] and not tied
        if told or full:
            return
        within = line.partition("[")[2].rstrip("]")
        dims = [within, dim] if within else [dim]
        name = self.name("n")
        self.declare(f"input {name} : real[{', '.join(dims)}]")
        self.inputs[name] = torch.zeros(self.batch, *(self.sizes[d] for d in dims), dtype=self.numbers.dtype)

    def _drop_far_edges(self) -> None:
        """Edges stay within an example's own length; one beyond it is a mistake."""
        for line in self.declarations:
            if line.startswith("input") and "edge(T, T)" in line and "T" in self.lengths:
                name = line.split()[1]
                far = (self.inputs[name] >= self.lengths["T"].reshape(-1, 1, 1)).any(-1, keepdim=True)
                self.inputs[name] = self.inputs[name].masked_fill(far, -1)

    def _fill_padding(self) -> None:
        """What lies beyond the lengths is never read, whatever it is."""
        for name, tensor in list(self.inputs.items()):
            line = next(one for one in self.declarations if one.startswith(f"input {name} :"))
            if "T" not in self.lengths or not any(mark in line for mark in ("[T,", "[T]")):
                continue
            filler = float("nan") if tensor.is_floating_point() else 99
            beyond = torch.arange(tensor.shape[1]) >= self.lengths["T"].reshape(-1, 1)
            shape = (*beyond.shape, *[1] * (tensor.dim() - 2))
            self.inputs[name] = tensor.masked_fill(beyond.reshape(shape), filler)


@st.composite
def numbers(draw: st.DrawFn) -> Numbers:
    """Precisions, magnitudes and -inf."""
    wide = draw(st.sampled_from([1.0, 1.0, 1.0, 1e4, 1e6]))
    dtype = draw(st.sampled_from([torch.float64, torch.float64, torch.float32]))
    return Numbers(dtype, wide, draw(st.booleans()), draw(st.booleans()))


def sizes(smallest: int, largest: int) -> st.SearchStrategy[int]:
    """All sizes, the largest more often: it has the most to get wrong."""
    return st.sampled_from([*range(smallest, largest + 1), largest, largest])


def ragged(draw: st.DrawFn, draft: Draft, dim: str, size: int) -> None:
    """Lengths, which may be 0 and 1, or none at all."""
    if draw(st.booleans()):
        drawn = draw(st.lists(st.integers(0, size), min_size=draft.batch, max_size=draft.batch))
        draft.lengths[dim] = torch.tensor(drawn, dtype=torch.long)


def masked(draw: st.DrawFn, draft: Draft) -> None:
    """Masks with gaps anywhere: the first cell absent, all absent, or nothing absent."""
    for name, (dims, _) in draft.variables.items():
        kind = draw(st.sampled_from(["none", "none", "gaps", "first", "all"]))
        if kind == "none":
            continue
        shape = (draft.batch, *(draft.sizes[dim] for dim in dims))
        mask = torch.rand(shape, generator=draft.generator) < 0.6
        if kind == "first" and mask.dim() > 1:
            mask[:, :1] = False
        if kind == "all" and draft.batch:
            mask[0] = False
        draft.masks[name] = mask


def observed(draw: st.DrawFn, draft: Draft) -> None:
    """Evidence: labels with -1, or allowed sets; sometimes nothing is left."""
    for name, (dims, count) in draft.variables.items():
        kind = draw(st.sampled_from(["none", "none", "none", "labels", "sets", "nothing"]))
        shape = (draft.batch, *(draft.sizes[dim] for dim in dims))
        if kind == "labels":
            labels = draft.below(count, *shape)
            draft.evidence[name] = labels.masked_fill(torch.rand(shape, generator=draft.generator) < 0.6, -1)
        elif kind in ("sets", "nothing"):
            allowed = torch.rand((*shape, count), generator=draft.generator) < 0.7
            if kind == "nothing" and draft.batch:
                allowed[0] = False
            draft.evidence[name] = allowed


def start(draw: st.DrawFn, largest: int, smallest: int = 0) -> tuple[Draft, int]:
    draft = Draft(draw(numbers()), draw(st.integers(0, 2**16)), draw(st.sampled_from([1, 2, 3])))
    size = draw(sizes(smallest, largest))
    draft.sizes["T"] = size
    draft.declare("dim T")
    return draft, size


def finish(draw: st.DrawFn, draft: Draft, masks: bool = True) -> Case:
    if masks:
        masked(draw, draft)
    observed(draw, draft)
    return draft.case()


def edges(draft: Draft, size: int, rows: int) -> Tensor:
    """Edges that differ from example to example; some rows are padding."""
    found = torch.randint(-1, max(size, 1), (draft.batch, rows, 2), generator=draft.generator)
    return found if size else torch.full_like(found, -1)


def tree_edges(draft: Draft, size: int, rows: int) -> Tensor:
    """Edges of a random forest for each example, in any order and direction; the other rows are padding."""
    found = torch.full((draft.batch, rows, 2), -1)
    for example in range(draft.batch):
        names = torch.randperm(max(1, size), generator=draft.generator)
        order = torch.randperm(rows, generator=draft.generator).tolist()
        for node in range(1, size):
            above = int(draft.below(node + 1))  # the last choice leaves the node without a parent
            if above < node and order:
                ends = names[torch.tensor([above, node])]
                found[example, order.pop()] = ends if int(draft.below(2)) else ends.flip(0)
    return found
