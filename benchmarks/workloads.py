"""Calls of the public interface that two versions of energyml are compared on; see `benchmarks.against`.

Run as a program it serves one version: it reads requests, a line of JSON each, and answers with a line of JSON.  It
imports nothing of this repository but `energyml`, which the environment variable PYTHONPATH chooses.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import energyml as em

Call = Callable[[], object]
Size = tuple[int, int, int]

CHAIN = """\
labels Tag = {{{labels}}}
dim T
input u : real[T, Tag]
output y : Tag[T]
param W : real[from: Tag, to: Tag]
chain y {{ unary: u, pair: W }}
train nll {{ reduction: sum }}
"""
TREE = """\
labels Tag = {{{labels}}}
dim N
dim E
input u : real[N, Tag]
input link : edge(N, N)[E]
output y : Tag[N]
param W : real[a: Tag, b: Tag]
factor node [n in N] (y[n]) = u[n]
factor arc [e = (i, j) in link] (a: y[i], b: y[j]) = W
train nll {{ reduction: sum }}
"""
GRID = """\
labels Spin = {down, up}
dim H, W
input bias : real[H, W, Spin]
output s : Spin[H, W]
param J : real = constant(0.6)
factor site [i in H, j in W] (s[i, j]) = bias[i, j]
factor below [i in H-1, j in W] (s[i, j], s[i+1, j]) = potts(J)
factor right [i in H, j in W-1] (s[i, j], s[i, j+1]) = potts(J)
"""
BEAM = """\
labels Word = {{{labels}}}
dim S
dim T
input memory : real[S, {hidden}]
output y : Word[T]
net decoder = {net}
sequence y {{ step: decoder, given: memory, normalize: local }}
"""
TAGGER = """\
labels Tag = {{{labels}}}
dim T
input x : real[T, 64]
output y : Tag[T]
net emit = blstm(out: Tag, hidden: 64)
param W : real[from: Tag, to: Tag] = normal(0.1)
chain y {{ unary: emit(x), pair: W }}
train nll {{ reduction: sum }}
"""
NETS = {
    "lstm": "lstm_decoder(hidden: {hidden}, embed: {hidden}, attention: bahdanau)",
    "transformer": "transformer_decoder(hidden: {hidden}, heads: 4, layers: 2)",
}
TASKS = ("log_partition", "nll", "nll without a tape", "viterbi", "marginals")


@dataclass(frozen=True)
class Chains:
    """A batch of chains.

    Attributes:
        unary: [B, T, C] scores of labels.
        pair: [C, C] scores of neighbouring labels (earlier, later).
        lengths: [B], or `None` where all chains have T cells.
        gold: [B, T] labels, -1 beyond the end.
    """

    unary: Tensor
    pair: Tensor
    lengths: Tensor | None
    gold: Tensor

    @staticmethod
    def of(size: Size, ragged: bool, scores: str) -> Chains:
        """Normal scores; `x30` are thirty times as large, of `masked` ones a fifth are -1e9."""
        batch, length, labels = size
        generator = torch.Generator().manual_seed(0)
        unary = torch.randn(batch, length, labels, generator=generator)
        pair = torch.randn(labels, labels, generator=generator)
        gold = torch.randint(labels, (batch, length), generator=generator)
        if scores == "x30":
            unary, pair = 30 * unary, 30 * pair
        if scores == "masked":
            unary = unary.masked_fill(torch.rand(unary.shape, generator=generator) < 0.2, -1e9)
        if not ragged:
            return Chains(unary, pair, None, gold)
        lengths = torch.randint(max(1, length // 4), length + 1, (batch,), generator=generator)
        lengths[batch // 2] = length
        return Chains(unary, pair, lengths, gold.masked_fill(torch.arange(length) >= lengths[:, None], -1))

    def call(self, task: str) -> Call:
        """A task on bare scores."""
        unary, pair = self.unary.clone(), self.pair.clone()
        if task == "nll":
            unary.requires_grad_(), pair.requires_grad_()

            def train() -> object:
                loss = -em.functional.chain_log_prob(unary, pair, self.gold, self.lengths).sum()
                return torch.autograd.grad(loss, (unary, pair))

            return train
        if task == "nll without a tape":
            return lambda: em.functional.chain_nll_and_grad(unary, pair, self.gold, self.lengths)
        names = {"log_partition": "chain_log_partition", "viterbi": "chain_best", "marginals": "chain_marginals"}
        function = getattr(em.functional, names[task])
        return lambda: function(unary, pair, self.lengths)


def labels(count: int) -> str:
    """Names of labels, as a spec has them."""
    return ", ".join(f"L{label}" for label in range(count))


def asked(model: em.EnergyModel, inputs: dict[str, Tensor], task: str, using: str | None = None) -> Call:
    """A query about a batch through a compiled spec, without gradients."""
    given = {name: one for name, one in inputs.items() if name != "y"}

    @torch.no_grad()
    def call() -> object:
        posterior = model.infer(**given, using=using)
        return posterior.map() if task == "viterbi" else getattr(posterior, task)

    return call


def trained(model: em.EnergyModel, inputs: dict[str, Tensor]) -> Call:
    """The loss and all gradients."""
    parameters = [one for one in model.parameters() if one.requires_grad]

    def call() -> object:
        loss = model.loss(**inputs)
        return torch.autograd.grad(loss, parameters)

    return call


def through_spec(case: Chains, task: str) -> Call:
    """A task on chains through a compiled spec."""
    model = em.compile(CHAIN.format(labels=labels(case.unary.shape[2])), seed=0)
    with torch.no_grad():
        model.get_parameter("W").copy_(case.pair)
    inputs: dict[str, Any] = {"u": case.unary, "y": case.gold}
    if case.lengths is not None:
        inputs["lengths"] = {"T": case.lengths}
    return trained(model, inputs) if task == "nll" else asked(model, inputs, task)


def trees(task: str, batch: int = 64, nodes: int = 100, count: int = 20) -> Call:
    """A task on random recursive trees whose nodes are renumbered at random."""
    generator = torch.Generator().manual_seed(0)
    edges = []
    for _ in range(batch):
        names = torch.randperm(nodes, generator=generator)
        parents = [int(torch.randint(child, (), generator=generator)) for child in range(1, nodes)]
        edges.append(torch.stack([names[torch.tensor(parents)], names[1:]], 1))
    case = Chains.of((batch, nodes, count), False, "ordinary")
    model = em.compile(TREE.format(labels=labels(count)), seed=0)
    with torch.no_grad():
        model.get_parameter("W").copy_(case.pair)
    inputs = {"u": case.unary, "link": torch.stack(edges), "y": case.gold}
    return trained(model, inputs) if task == "nll" else asked(model, inputs, task)


def gibbs(side: int = 32) -> Call:
    """Twenty sweeps of 16 chains on an Ising grid."""
    model = em.compile(GRID, seed=0)
    bias = 0.2 * torch.randn(1, side, side, 2, generator=torch.Generator().manual_seed(0))
    return asked(model, {"bias": bias}, "marginals", "gibbs(chains: 16, sweeps: 15, burn_in: 5)")


def mean_field(side: int = 64) -> Call:
    """Mean field on the same grid."""
    model = em.compile(GRID, seed=0)
    bias = 0.2 * torch.randn(8, side, side, 2, generator=torch.Generator().manual_seed(0))
    return asked(model, {"bias": bias}, "marginals", "mean_field")


def beam(net: str) -> Call:
    """Beam search of width 5 over 30 words of 1,000, for 8 sentences."""
    made = NETS[net].format(hidden=128)
    model = em.compile(BEAM.format(labels=labels(1000), hidden=128, net=made), seed=0).eval()
    memory = torch.randn(8, 12, 128, generator=torch.Generator().manual_seed(0))
    lengths = {"T": torch.full((8,), 30)}
    return torch.no_grad()(lambda: model.infer(memory=memory, lengths=lengths, using="beam(width: 5)").map())


def training_step() -> Call:
    """Loss and gradients of a small tagger."""
    model = em.compile(TAGGER.format(labels=labels(23)), seed=0)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 30, 64, generator=generator), torch.randint(23, (32, 30), generator=generator)
    return trained(model, {"x": x, "y": y})


def uai(path: Path, task: str) -> Call:
    """A query about a UAI model and its evidence."""
    model = em.interop.read_uai(path)
    known = Path(f"{path}.evid")
    evidence = em.interop.read_evid(known, model) if known.exists() else None

    @torch.no_grad()
    def call() -> object:
        return getattr(model.infer(evidence=evidence, using="exact"), task)

    return call


SIZES: tuple[Size, ...] = (
    (32, 20, 26), (32, 50, 23), (16, 50, 100), (8, 40, 400), (64, 128, 10), (1, 2000, 23), (24, 37, 45), (20, 25, 7),
)  # fmt: skip
UAI = ("Grids_12.uai", "Promedus_24.uai", "Pedigree_13.uai")
FOLDER = Path(os.environ.get("UAI_FOLDER", "."))


def workloads() -> dict[str, Callable[[], Call]]:
    """By name: a function that prepares a call."""
    found: dict[str, Callable[[], Call]] = {}
    for size in SIZES:
        for ragged in (False, True):
            for scores in ("ordinary", "x30", "masked"):
                for task in TASKS:
                    place = f"{size} {'ragged' if ragged else 'full'} {scores}"
                    found[f"chains {task} {place}"] = lambda s=size, r=ragged, k=scores, t=task: Chains.of(
                        s, r, k
                    ).call(t)
                    if scores == "ordinary" and task != "nll without a tape":
                        found[f"specs {task} {place}"] = lambda s=size, r=ragged, t=task: through_spec(
                            Chains.of(s, r, "ordinary"), t
                        )
    for task in TASKS:
        if task != "nll without a tape":
            found[f"trees {task}"] = lambda t=task: trees(t)
    for file in UAI:
        if (FOLDER / file).exists():
            for task in ("log_partition", "marginals"):
                found[f"uai {task} {file}"] = lambda f=file, t=task: uai(FOLDER / f, t)
    found["sampling gibbs"] = gibbs
    found["variational mean_field"] = mean_field
    found["beam lstm"] = lambda: beam("lstm")
    found["beam transformer"] = lambda: beam("transformer")
    found["training step"] = training_step
    return found


def memory(size: Size) -> float:
    """Megabytes that likelihood and gradients need beyond what is there before."""
    Chains.of((2, 5, size[2]), False, "ordinary").call("nll")()
    call = Chains.of(size, False, "ordinary").call("nll")
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    held = call()
    peak = _status("VmHWM")
    assert held is not None
    return (peak - before) / 1e6


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def serve() -> Iterator[str]:
    """Answer requests: {"prepare": name}, {"run": times}, {"memory": size}."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    known = workloads()
    call: Call = list
    yield json.dumps({"file": em.__file__, "names": list(known)})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "prepare" in request:
                call = known[request["prepare"]]()
                call()
                start = time.perf_counter()
                call()
                yield json.dumps({"seconds": time.perf_counter() - start})
            elif "run" in request:
                call()
                start = time.perf_counter()
                for _ in range(request["run"]):
                    call()
                yield json.dumps({"seconds": (time.perf_counter() - start) / request["run"]})
            else:
                yield json.dumps({"megabytes": memory(tuple(request["memory"]))})
        except Exception as error:  # a refusal is a result
            yield json.dumps({"refused": f"{type(error).__name__}: {error}".splitlines()[0][:200]})


if __name__ == "__main__":
    for answer in serve():
        print(answer, flush=True)
