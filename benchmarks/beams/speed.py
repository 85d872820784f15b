"""Tokens per second of beam search, beside `transformers` on the same decoders.

    BENCH_CLOCK=cpu python -m benchmarks.beams.speed [--only lstm-256] ...
    python -m benchmarks.beams.speed report     # the table in docs/performance.md, from stored figures

Decoders have random weights: `transformer_decoder` beside a Pegasus decoder, whose layers compute the same function,
and `lstm_decoder` beside an LSTM cell with dot attention as a model of `transformers`, all with the same weights.  Both
sides search with beam 5 over a batch of 32 and no length penalty.  There are two kinds of rows:

- `given`: the length is given, nothing ends before it, and both make the same steps of the same rows;
- `free`: an end label ends answers at different lengths (a bias on it and sharper scores see to that).  Ours drops a
  hypothesis as soon as it cannot come before the best complete answer; the peer goes on until that holds for all five
  answers of all examples.

Answers are compared before anything is timed.  At the longest length the peer returns what has not ended, without the
end label's score, where ours ends it: examples in which the peer's answer has no end are counted apart.  Tokens are
those of our best answers, end labels included.  Contestants alternate in one process with one thread; ratios are of
pairs.  `products` is the share of our time that the multiplications of the decoder's layers alone take, in sizes as the
search has them: where it is near 1, nothing but other arithmetic could be faster.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import energyml as em
from benchmarks.beams.peers import PEERS
from benchmarks.beams.study import RESULTS
from benchmarks.exact.timing import CLOCK, Call, Ratio, fastest_seconds, seconds

DOCS = Path(__file__).parents[2] / "docs" / "performance.md"
STORED = RESULTS / "speed.jsonl"
NETS = {
    "transformer": "transformer_decoder(hidden: {hidden}, heads: 4, layers: {layers})",
    "lstm": "lstm_decoder(hidden: {hidden}, embed: {hidden}, attention: dot)",
}
SPEC = """
labels Word from data{ends}
dim S
dim T{free}
input memory : real[S, {hidden}]
output y : Word[T]
net decoder = {net}
sequence y {{ step: decoder, given: memory, normalize: local{end} }}
infer beam(width: {width})
"""
# decoder, hidden units, layers, words
SIZES = (
    ("lstm", 256, 1, 1000), ("lstm", 256, 1, 8000), ("lstm", 512, 1, 1000), ("lstm", 512, 1, 8000),
    ("transformer", 128, 2, 1000), ("transformer", 128, 2, 8000), ("transformer", 256, 2, 1000),
    ("transformer", 256, 2, 8000), ("transformer", 256, 4, 1000), ("transformer", 512, 2, 1000),
    ("transformer", 512, 4, 4000),
)  # fmt: skip


def made(options: argparse.Namespace, *, fixed: bool) -> tuple[em.EnergyModel, Tensor]:
    """A model with random weights, and a batch."""
    words = [f"w{number}" for number in range(options.words - 1)]
    parts = {
        "net": NETS[options.net].format(**vars(options)),
        "ends": "" if fixed else "(end: '</s>')",
        "free": "" if fixed else f" free <= {options.longest}",
        "end": "" if fixed else ", end: '</s>'",
    }
    text = SPEC.format(**parts, hidden=options.hidden, width=options.width)
    model = em.compile(text, labels={"Word": [*words, "</s>"]}, seed=options.seed).eval()
    decoder: Any = model.get_submodule("decoder")
    with torch.no_grad():
        decoder.readout.weight.mul_(options.sharpness)
        if not fixed:
            decoder.readout.bias[-1] = options.end
    generator = torch.Generator().manual_seed(options.seed)
    return model, torch.randn(options.batch, options.source, options.hidden, generator=generator)


def tuned(options: argparse.Namespace) -> float:
    """The bias of the end label under which the mean length of the best answers is about the one that is wanted."""
    low, high = -2.0, 16.0
    for _ in range(7):
        options.end = (low + high) / 2
        model, memory = made(options, fixed=False)
        mean = float((model.infer(memory=memory).map()["y"] >= 0).sum(1).float().mean())
        low, high = (options.end, high) if mean > options.mean_length else (low, options.end)
    return float(options.end)


def products(options: argparse.Namespace, rows: int, budget: float) -> float:
    """Seconds that the multiplications of one step take, one after another, at their fastest."""
    hidden, wide = options.hidden, options.words
    layer = [(hidden, hidden)] * 3 + [(hidden, 2 * hidden), (hidden, 4 * hidden), (4 * hidden, hidden)]
    layer.append((hidden, hidden))
    shapes = [*layer * options.layers, (hidden, wide)]
    if options.net == "lstm":  # what labels add is computed once for each label and left out here
        shapes = [(hidden, 4 * hidden), (2 * hidden, wide)]
    given = [(torch.randn(rows, inner), torch.randn(outer, inner)) for inner, outer in shapes]
    room = [x.new_empty(rows, weight.shape[0]) for x, weight in given]

    def multiply() -> None:
        for (x, weight), out in zip(given, room, strict=True):
            torch.mm(x, weight.t(), out=out)

    return fastest_seconds(multiply, budget)


def measured(options: argparse.Namespace, *, fixed: bool) -> dict[str, Any]:
    """Compare the answers, then time both."""
    model, memory = made(options, fixed=fixed)
    lengths = {"T": torch.full((options.batch,), options.longest)} if fixed else None

    def ours() -> em.Assignment:
        return model.infer(memory=memory, lengths=lengths).map()

    answer = ours()
    labels, last = answer["y"], options.words - 1
    sizes = (labels >= 0).sum(1)
    tokens = int(sizes.sum())
    peer = PEERS[options.net](model, memory, options, fixed=fixed)
    theirs, scores = peer(scored=True)
    ended = torch.ones_like(sizes, dtype=torch.bool) if fixed else (theirs == last).any(1)
    same = (labels.masked_fill(labels < 0, last) == theirs).all(1) & ended
    apart = float((answer.score - scores)[same].abs().max()) if bool(same.any()) else 0.0
    if peer()[0].shape != theirs.shape or not torch.equal(peer()[0], theirs):
        raise SystemExit("the peer's answer changes from call to call")
    ratio = alternated(ours, peer, options.pairs)
    row: dict[str, Any] = {
        "net": options.net, "hidden": options.hidden, "layers": options.layers, "words": options.words,
        "lengths": "given" if fixed else "free", "shortest": int(sizes.min()), "mean": round(tokens / len(sizes), 1),
        "longest": int(sizes.max()), "same": int(same.sum()), "comparable": int(ended.sum()), "apart": apart,
        "ours": round(tokens / ratio.ours), "peer": round(tokens / ratio.peer), "ratio": round(ratio.middle, 2),
        "low": round(ratio.low, 2), "high": round(ratio.high, 2), "pairs": ratio.pairs,
        "clock": "cpu" if CLOCK is time.process_time else "wall", "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__, "transformers": version("transformers"), "python": platform.python_version(),
    }  # fmt: skip
    if fixed:
        step = products(options, options.batch * options.width, 1.0)
        row["products"] = round(step * options.longest / ratio.ours, 2)
    return row


def alternated(ours: Call, peer: Call, count: int) -> Ratio:
    """Pairs of single calls, each taking long enough to be timed alone; both have run before."""
    calls = [(seconds(ours), seconds(peer)) if k % 2 else (seconds(peer), seconds(ours))[::-1] for k in range(count)]
    low, middle, high = statistics.quantiles([b / a for a, b in calls], n=4)
    mine, theirs = (statistics.median(each) for each in zip(*calls, strict=True))
    return Ratio(low, middle, high, mine, theirs, count)


def run(options: argparse.Namespace) -> None:
    """A row for given and one for free lengths of each size; rows that were stored before are replaced."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    try:
        version("transformers")
    except PackageNotFoundError:
        raise SystemExit("install `transformers`, which this is compared with: pip install transformers") from None
    for net, hidden, layers, words in SIZES:
        name = f"{net}-{hidden}-{layers}-{words}"
        if options.only and not any(one in name for one in options.only):
            continue
        options.net, options.hidden, options.layers, options.words = net, hidden, layers, words
        options.end = tuned(options)
        for fixed in (True, False):
            row = measured(options, fixed=fixed)
            print(row, flush=True)
            store(row)


KEY = ("net", "hidden", "layers", "words", "lengths")


def stored() -> list[dict[str, Any]]:
    """The rows of earlier runs."""
    if not STORED.exists():
        return []
    return [json.loads(line) for line in STORED.read_text(encoding="utf-8").splitlines()]


def store(row: dict[str, Any]) -> None:
    """Keep a row, in the order of sizes."""
    rows = [one for one in stored() if any(one[key] != row[key] for key in KEY)] + [row]
    place = {size: number for number, size in enumerate(SIZES)}
    rows.sort(key=lambda one: (place[tuple(one[key] for key in KEY[:4])], one["lengths"] != "given"))
    RESULTS.mkdir(exist_ok=True)
    STORED.write_text("".join(f"{json.dumps(one)}\n" for one in rows), encoding="utf-8")


def report() -> None:
    """Write the table into docs/performance.md."""
    rows = stored()
    dates, clocks = sorted({row["date"] for row in rows}), sorted({row["clock"] for row in rows})
    first = rows[0]
    lines = [
        f"`BENCH_CLOCK=cpu python -m benchmarks.beams.speed`, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}, "
        f"one thread, {' and '.join(clocks)} time, Python {first['python']}, torch {first['torch']}, "
        f"transformers {first['transformers']}.",
        "",
        "| decoder | words | lengths | same answers | ours, tokens/s | transformers | ratio | products |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        layers = f" x {row['layers']}" if row["net"] == "transformer" else ""
        spread = f"{row['shortest']} to {row['longest']}, mean {row['mean']:g}"
        lengths = f"given, {row['longest']}" if row["lengths"] == "given" else spread
        share = f"{100 * row['products']:.0f}%" if "products" in row else ""
        lines.append(
            f"| {row['net']} {row['hidden']}{layers} | {row['words']} | {lengths} | {row['same']} of "
            f"{row['comparable']} | {row['ours']} | {row['peer']} | **{row['ratio']:.2f}** ({row['low']:.2f} to "
            f"{row['high']:.2f}) | {share} |"
        )
    for kind in ("given", "free"):
        ratios = [row["ratio"] for row in rows if row["lengths"] == kind]
        kept = sum(ratio >= 3 for ratio in ratios)
        lines += [
            "",
            f"Lengths {kind}: at least 3 times in {kept} of {len(ratios)} rows, median "
            f"{statistics.median(ratios):.2f}, least {min(ratios):.2f}.",
        ]
    known = {tuple(row[key] for key in KEY) for row in rows}
    missing = [(*size, kind) for size in SIZES for kind in ("given", "free") if (*size, kind) not in known]
    if missing:
        named = ", ".join(
            f"{net} {hidden} x {layers}, {words} words, {kind}" for net, hidden, layers, words, kind in missing
        )
        lines += ["", f"Not run: {named}."]
    text = DOCS.read_text(encoding="utf-8")
    body = "\n".join(lines)
    pattern = re.compile(r"(<!-- measured: beams -->\n).*?(<!-- end measured: beams -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{DOCS.name} has no `<!-- measured: beams -->`")
    DOCS.write_text(pattern.sub(lambda m: f"{m[1]}{body}\n{m[2]}", text), encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("run", "report"), default="run")
    sizes = {"width": 5, "batch": 32, "longest": 50, "source": 20, "seed": 1, "mean-length": 22}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sharpness", type=float, default=8.0, help="factor of the readout's weights")
    parser.add_argument("--only", nargs="+", default=[], help="sizes to run, as `lstm-256` or `transformer-128-2-1000`")
    parser.add_argument("--pairs", type=int, default=7, help="how often each row is timed")
    options = parser.parse_args()
    if options.what == "report":
        report()
    else:
        run(options)


if __name__ == "__main__":
    main()
