"""One epoch of the OCR chain: the share of inference, the share of loading, and pytorch-crf on the same network.

Run with `.venv-peers/bin/python -m benchmarks.training --root FOLDER [--markdown docs/performance.md]`, where FOLDER
holds `letter.data`; without `--root` the table is made of the stored figures.  On each batch of the epoch a step of
ours and a step of the peer take turns (loss, gradients, Adam), one thread each.  Inference is timed on the same batch
with the network's scores as inputs: its loss and gradients through `model.loss`, everything between the call and the
kernel included.  Shares and ratios are of processor time, which other processes disturb less than the wall clock; wall
times of the epoch stand beside.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchcrf import CRF

from benchmarks.exact.results import figure, machine
from energyml.data.batches import Batches
from energyml.data.dataset import Batch
from energyml.data.load import load_data
from energyml.driver import compile_source, read_source
from energyml.loading import bind, compile

SPEC = Path(__file__).parents[2] / "examples" / "ocr.energy"
SCORES = """\
labels Letter = 'a'..'z'
dim T
input u : real[T, Letter]
output y : Letter[T]
param W : real[from: Letter, to: Letter] = normal(0.1)
chain y { unary: u, pair: W }
infer exact
"""
RESULTS = Path(__file__).parent / "results" / "epoch.json"
START, END = "<!-- measured: training -->", "<!-- end measured: training -->"
BATCH = 32
BUSY = 1.2  # a thread that waits more than a fifth of its time does not have a core of its own


@dataclass
class Clock:
    """Times of one kind of work, batch by batch: processor and wall seconds."""

    processor: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def time(self, work: Callable[[], Any]) -> Any:
        """Do the work and note how long it took."""
        wall, processor = time.perf_counter(), time.process_time()
        result = work()
        self.processor.append(time.process_time() - processor)
        self.wall.append(time.perf_counter() - wall)
        return result


class Peer(nn.Module):
    """The same network below the linear-chain CRF of pytorch-crf."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.crf = network, CRF(26, batch_first=True)

    def loss(self, batch: Batch) -> Tensor:
        """The mean negative log-likelihood of the words."""
        image, gold = batch.tensors["image"], batch.tensors["y"]
        mask = torch.arange(image.shape[1]) < lengths_of(batch)[:, None]
        scores = self.network(image, masks={"T": mask})
        return -self.crf(scores, gold.clamp(min=0), mask=mask, reduction="mean")


def lengths_of(batch: Batch) -> Tensor:
    """How long each word is: [B]."""
    size, longest = batch.tensors["y"].shape
    return batch.lengths.get("T", torch.full((size,), longest))


def stepper(parameters: Iterator[nn.Parameter]) -> Callable[[Callable[[], Tensor]], None]:
    """A step of Adam on a loss."""
    optimizer = torch.optim.Adam(parameters, lr=1e-3)

    def step(loss: Callable[[], Tensor]) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    return step


def measure(root: Path, most: int | None) -> dict[str, Any]:
    """The times of an epoch, or of its first batches."""
    compiled = compile_source(read_source(SPEC))
    began = time.process_time()
    data = load_data(compiled, root=root, splits=["train"])
    reading = time.process_time() - began
    assert data.train is not None
    model = bind(compiled, labels=data.labels, seed=0)
    peer = Peer(bind(compiled, labels=data.labels, seed=0).cnn)
    scores = compile(SCORES, seed=0)
    ours, theirs = stepper(model.parameters()), stepper(peer.parameters())
    clocks = {name: Clock() for name in ("load", "ours", "inference", "peer")}
    batches = iter(Batches(data.train, BATCH))
    count = len(Batches(data.train, BATCH)) if most is None else most
    for number in range(-2, count):  # two batches to get warm
        into = clocks if number >= 0 else {name: Clock() for name in clocks}
        batch: Batch = into["load"].time(batches.__next__)
        given: dict[str, Any] = {**batch.tensors, "lengths": batch.lengths or None}
        with torch.no_grad():
            u = model.cnn(batch.tensors["image"], masks={})
        leaf = {"u": u.requires_grad_(), "y": batch.tensors["y"], "lengths": batch.lengths or None}
        turns: list[tuple[str, Callable[[], Any]]] = [
            ("ours", lambda given=given: ours(lambda: model.loss(objective="nll", **given))),
            ("inference", lambda leaf=leaf: scores.loss(objective="nll", **leaf).backward()),
            ("peer", lambda batch=batch: theirs(lambda: peer.loss(batch))),
        ]
        for name, work in turns if number % 2 else reversed(turns):
            into[name].time(work)
        if number == -1:
            batches = iter(Batches(data.train, BATCH))
    return summary(clocks, count, len(data.train), reading)


def summary(clocks: dict[str, Clock], count: int, words: int, reading: float) -> dict[str, Any]:
    """Sums over the epoch, and quartiles of the ratios of single batches."""

    def quartiles(above: Clock, below: Clock) -> list[float]:
        ratios = [a / b for a, b in zip(above.processor, below.processor, strict=True)]
        return [figure(one) for one in statistics.quantiles(ratios, n=4)]

    total = {name: figure(sum(clock.processor)) for name, clock in clocks.items()}
    return {
        "batches": count, "words": words, "batch": BATCH, "reading": figure(reading), "processor": total,
        "wall": {name: figure(sum(clock.wall)) for name, clock in clocks.items()},
        "inference": quartiles(clocks["inference"], clocks["ours"]),
        "load": quartiles(clocks["load"], clocks["ours"]),
        "peer": quartiles(clocks["peer"], clocks["ours"]),
    }  # fmt: skip


def rows(found: dict[str, Any]) -> list[tuple[str, str, str, str, bool]]:
    """What is held to a bar: its name, median, quartiles, bar, and whether it is kept."""

    def row(what: str, key: str, bar: float, *, least: bool = False, percent: bool = True) -> Any:
        low, middle, high = found[key]
        shown = (lambda x: f"{100 * x:.1f}%") if percent else (lambda x: f"{x:.2f}")
        kept = middle >= bar if least else middle < bar
        limit = f"{'at least' if least else 'under'} {shown(bar)}"
        return what, shown(middle), f"{shown(low)} to {shown(high)}", limit, kept

    return [
        row("inference, share of a step", "inference", 0.15),
        row("making a batch, share of a step", "load", 0.05),
        row("a step with pytorch-crf over a step of ours", "peer", 1.0, least=True, percent=False),
    ]


def markdown(found: dict[str, Any]) -> str:
    """The table with what it was made of."""
    made, wall, processor = found["machine"], found["wall"], found["processor"]
    busy = ", as other processes kept the machine busy" if wall["ours"] > BUSY * processor["ours"] else ""
    lines = [
        f"`python -m benchmarks.training`, {made['date']}, {made['processor']}, one thread, Python {made['python']}, "
        f"torch {found['versions']['torch']}, pytorch-crf {found['versions']['pytorch-crf']}; {found['batches']} "
        f"batches of {found['batch']} words. Shares and ratios are medians over batches of processor time; the wall "
        f"clock took {wall['ours'] / processor['ours']:.1f} times as long{busy}.", "",
        "| what | median | quartiles | bar | kept |", "|---|---|---|---|---|",
        *(f"| {what} | {middle} | {spread} | {bar} | {'yes' if kept else '**NO**'} |"
          for what, middle, spread, bar, kept in rows(found)), "",
        f"The epoch in seconds, processor (wall): ours {processor['ours']} ({wall['ours']}), with pytorch-crf "
        f"{processor['peer']} ({wall['peer']}), inference alone {processor['inference']} ({wall['inference']}), making "
        f"batches {processor['load']} ({wall['load']}); reading the file once, {found['reading']}.",
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, help="the folder of letter.data; the stored figures when left out")
    parser.add_argument("--batches", type=int, help="only so many, for a look; nothing is stored")
    parser.add_argument("--markdown", type=Path, help="a page with the markers of this benchmark")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.root is None:
        found = json.loads(RESULTS.read_text(encoding="utf-8"))
    else:
        found = measure(options.root, options.batches)
        found["machine"] = machine()
        found["versions"] = {one: version(one) for one in ("torch", "pytorch-crf")}
        if options.batches is None:
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(markdown(found))
    if options.markdown is not None:
        before, rest = options.markdown.read_text(encoding="utf-8").split(START)
        after = rest.split(END)[1]
        options.markdown.write_text(f"{before}{START}\n{markdown(found)}\n{END}{after}", encoding="utf-8")
    return int(not all(kept for *_, kept in rows(found)))


if __name__ == "__main__":
    sys.exit(main())
