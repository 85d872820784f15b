"""Tables 6.2 to 6.6 and Figures 6.2 to 6.4 on pretrained antibody models: what samplers do with masked conditionals.

    python -m benchmarks.masked.samplers sapiens --weights sapiens-1.0.5-py3-none-any.whl --chains heavy.txt
    python -m benchmarks.masked.samplers antiberty --weights antiberty-0.1.3-py3-none-any.whl --chains heavy.txt
    python -m benchmarks.masked.report

Both are resumable, one line of results for each setting.  The task is to fill in the third CDR of a heavy chain; every
chain of a sampler starts from the greedy answer with all residues masked, and the same seed serves all settings.
`Enorm` of the thesis is the local energy, measured whatever the sampler's own energy is; recovery (the share of
residues that are those of the real antibody) takes the place of BLEU.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import energyml as em
from benchmarks.masked.infilling import BLANK, Infilling, Task, antiberty_folder, chains, compiled, encoded, task
from benchmarks.masked.records import Records
from energyml.backends.mcmc.kernel import Current, Kernel
from energyml.backends.mcmc.metropolis import DegenerateGibbs, MaskPredict, Metropolis
from energyml.backends.mcmc.proposals import evaluate
from energyml.backends.mcmc.randomness import Randomness
from energyml.backends.mcmc.target import ScoreTarget
from energyml.cards.options import Annealed

RECORDS = Records("samplers", ("model", "name"))


@dataclass(frozen=True)
class Setting:
    """A sampler.

    Attributes:
        table: which tables and figures it belongs to.
        sampler: `deg` (degenerate Gibbs), `raw` and `local` (Metropolis-Hastings on that energy).
        temperature: of the proposals.
        nucleus: of the proposals.
        block: cells proposed together, or (first, last) of a schedule over all sweeps.
        anneal: by how much the energy's temperature falls with each sweep.
        forced: sweeps at the beginning that accept everything.
        burn_in: sweeps that are not counted.
        sweeps: sweeps that are.
    """

    table: str
    sampler: str
    temperature: float = 1.0
    nucleus: float = 1.0
    block: int | tuple[int, int] = 1
    anneal: float = 0.0
    forced: int = 0
    burn_in: int = 2
    sweeps: int = 6

    @property
    def name(self) -> str:
        block = self.block if isinstance(self.block, int) else f"{self.block[0]}->{self.block[1]}"
        parts = (self.temperature, self.nucleus, block, self.anneal, self.forced, self.burn_in, self.sweeps)
        return "/".join(map(str, (self.sampler, *parts)))


# The thesis makes 7 + 26 sweeps.  Here there are 3 + 9 for the main contrast and 2 + 6 for what varies around it, where
# annealing falls in steps that are four times as large (0.02, 0.04 and 0.06 there), so that it ends as cold.
MAIN = [Setting("6.2 main", one, burn_in=3, sweeps=9) for one in ("deg", "local", "raw")]
BASE = [replace(one, table="base", burn_in=2, sweeps=6) for one in MAIN]  # to compare with what varies
BLOCKS = [Setting("6.4", one, block=(4, 1)) for one in ("deg", "local", "raw")]
BLOCKS += [Setting("6.4", "local", block=size) for size in (4, 2)]
ANNEALED = [Setting("6.5", one, anneal=step) for step in (0.08, 0.24, 0.16) for one in ("local", "raw")]
MODES = [Setting("6.6", "deg", temperature=0.8)]
MODES += [Setting("6.6", one, temperature=0.8, anneal=0.08, forced=2) for one in ("local", "raw")]
HEATED = [Setting("6.2", one, temperature=level) for level in (2.0, 0.5, 1.5, 0.8) for one in ("deg", "local")]
NUCLEI = [Setting("6.3", one, nucleus=mass) for mass in (0.8, 0.95, 0.9, 0.99) for one in ("deg", "local")]
SETTINGS = {
    "sapiens": [*MAIN, *BASE, *BLOCKS, *HEATED[:4], *NUCLEI[:2], *ANNEALED, *MODES, *HEATED[4:], *NUCLEI[2:]],
    "antiberty": [replace(one, burn_in=2, sweeps=4) for one in MAIN],
}
# How many chains are filled in, with how many chains of a sampler each, and how many residues are cut out.
SIZES = {"sapiens": (8, 3, 12), "antiberty": (2, 2, 8)}


class CellByCell(DegenerateGibbs):
    """Degenerate Gibbs sampling that asks the network for the cells of a move alone; the same draws, fewer passes.

    The cells of a block are drawn at once, each given the others' old labels, as `Metropolis` proposes them.
    """

    def __init__(self, target: ScoreTarget, net: Infilling, block: int | Annealed, sweeps: int, **options: Any) -> None:
        super().__init__(target, **options)
        self.net = net
        self.blocks = Metropolis(target, block=block, sweeps=sweeps, order=self.order)

    def advance(self, current: Current, random: Randomness) -> None:
        """A sweep; the energy is looked at behind it."""
        for move in self.blocks.plan(current, random):
            cells = [cell for _, cell in move]
            labels = current.labels["y"]
            scores = self.net.scores_at(labels.flatten(0, 1), self._given(labels.shape[1]), cells)
            drawn = random.categorical(self.narrowed(scores.reshape(*labels.shape[:2], len(cells), -1)))
            one = torch.ones_like(current.score)
            current.count(one, one, (drawn != labels[:, :, cells]).any(-1).to(one.dtype))
            labels[:, :, cells] = drawn
        found = evaluate(self.target, current.labels)
        current.score, current.cache = found.score, dict(found.proposals)

    def _given(self, copies: int) -> tuple[Tensor, Tensor]:
        batch = self.target.problem.env.batch
        heavy = batch.tensors["heavy"]
        exists = batch.exists.get("L", torch.ones_like(heavy, dtype=torch.bool))
        return heavy.repeat_interleave(copies, 0), exists.repeat_interleave(copies, 0)


class Study:
    """A pretrained model on its task, as both energies; they share one network and its memory."""

    def __init__(self, model: str, path: Path, lines: Path) -> None:
        count, self.chains, cut = SIZES[model]
        network = {"sapiens": "Sapiens", "antiberty": "AntiBERTy"}[model]
        self.name = model
        self.task: Task = task(lines, count, seed=0, cut=cut)
        self.models: dict[str, em.EnergyModel] = {"local": compiled(network, path, "local")}
        self.net: Infilling = self.models["local"].mlm  # type: ignore[assignment]
        self.models["raw"] = compiled(network, path, "raw")
        self.models["raw"].mlm = self.net
        with torch.no_grad():
            all_masked = self.net.all_masked(self.task.blank(), self.task.place, self.task.exists)
        self.start = all_masked.argmax(-1)

    def target(self, energy: str) -> ScoreTarget:
        lengths = {"L": self.task.lengths, "N": torch.full_like(self.task.lengths, self.start.shape[1])}
        return ScoreTarget(self.models[energy].problem(heavy=self.task.blank(), lengths=lengths), self.chains)

    def kernel(self, setting: Setting) -> Kernel:
        """A setting as a sampler of the product."""
        block = setting.block if isinstance(setting.block, int) else Annealed(*setting.block)
        total = setting.burn_in + setting.sweeps
        shared: dict[str, Any] = {
            "temperature": setting.temperature, "nucleus": setting.nucleus, "order": "random",
        }  # fmt: skip
        if setting.sampler == "deg":
            return CellByCell(self.target("local"), self.net, block, total, **shared)
        return Metropolis(
            self.target(setting.sampler), block=block, sweeps=total, anneal=setting.anneal, forced=setting.forced,
            **shared,
        )  # fmt: skip

    def starts(self) -> dict[str, Tensor]:
        return {"y": self.start.unsqueeze(1).repeat(1, self.chains, 1)}

    @torch.no_grad()
    def measured(self, y: Tensor) -> dict[str, Tensor]:
        """By name ``[B, C]``: the energies and the recovery of answers ``[B, C, N]``."""
        chains = y.shape[1]
        heavy, exists = (one.repeat_interleave(chains, 0) for one in (self.task.blank(), self.task.exists))
        scores = self.net.masked_scores(y.flatten(0, 1), (heavy,), {"L": exists})

        def energy(of: Tensor) -> Tensor:
            return -of.gather(-1, y.reshape(-1, y.shape[2], 1)).sum((1, 2)).reshape(y.shape[:2])

        right = (y == self.task.truth.unsqueeze(1)).double().mean(-1)
        return {"local": energy(scores.log_softmax(-1)), "raw": energy(scores), "recovery": right}

    def run(self, setting: Setting) -> dict[str, object]:
        """All sweeps of a setting, measured after each."""
        began, passes, kernel = time.perf_counter(), self.net.passes, self.kernel(setting)
        state = kernel.init(torch.Generator().manual_seed(0), labels=self.starts())
        kept: dict[str, list[Tensor]] = {}
        for _ in range(setting.burn_in + setting.sweeps):
            state, info = kernel.step(state)
            found = self.measured(state.labels["y"])
            found["acceptance"] = info.accepted / info.proposed
            found["novel"] = info.novel / info.proposed
            found["moves"] = info.proposed
            for name, one in found.items():
                kept.setdefault(name, []).append(one.double())
        stacked = {name: torch.stack(one) for name, one in kept.items()}  # [sweeps, B, C]
        counted = {name: one[setting.burn_in :].mean(0).tolist() for name, one in stacked.items()}
        return {
            "model": self.name, "name": setting.name, **vars(setting), "chains": self.chains, "means": counted,
            "last": {name: one[-1].tolist() for name, one in stacked.items()},
            "curves": {name: one.mean((1, 2)).tolist() for name, one in stacked.items()},
            "passes": self.net.passes - passes, "seconds": round(time.perf_counter() - began, 1),
        }  # fmt: skip

    def references(self) -> Iterable[dict[str, object]]:
        """What samplers are held against: the real residues, the greedy start, mask-predict, one-at-a-time recovery."""
        truth = self.task.truth
        answers = {"truth": truth, "start": self.start}
        for pick in ("confidence", "random"):
            kernel = MaskPredict(self.target("local"), 10, pick)
            state = kernel.init(torch.Generator().manual_seed(0), labels=self.starts())
            answers[f"mask-predict, {pick}"] = kernel.step(state)[0].labels["y"][:, 0]
        with torch.no_grad():
            scores = self.net.masked_scores(truth, (self.task.blank(),), {"L": self.task.exists})
        answers["one at a time"] = scores.argmax(-1)
        for name, y in answers.items():
            means = {key: one.tolist() for key, one in self.measured(y.unsqueeze(1)).items()}
            yield {"model": self.name, "name": name, "table": "reference", "means": means}


@torch.no_grad()
def whole_chains(study: Study, lines: Path, count: int = 8) -> dict[str, object]:
    """The share of all residues that a network puts first, in the first chains of a file: masked one by one, or not."""
    masked, plain = [], []
    for line in islice(chains(lines), count):
        y = encoded([line], [range(len(line))]).chain
        every, exists = torch.arange(len(line)).unsqueeze(0), torch.ones_like(y, dtype=torch.bool)
        best = study.net.masked_scores(y, (torch.full_like(y, BLANK),), {}).argmax(-1)
        read = study.net.residue_scores(y, torch.zeros_like(exists), exists, every).argmax(-1)
        masked.append(float((best == y).double().mean()))
        plain.append(float((read == y).double().mean()))
    return {"model": study.name, "name": "whole chains", "table": "recovery", "masked": masked, "plain": plain}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(SETTINGS))
    parser.add_argument("--weights", type=Path, required=True, help="the wheel with the pretrained model")
    parser.add_argument("--chains", type=Path, required=True, help="heavy chains, one a line")
    parser.add_argument("--runs", type=Path, default=Path("runs/masked"), help="where converted models are kept")
    parser.add_argument("--only", default=".*", help="a regular expression over TABLE/SETTING: '6.4/.*'")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    path = options.weights.resolve()
    if options.model == "antiberty":
        path = antiberty_folder(path, options.runs.resolve() / "antiberty")
    study = Study(options.model, path, options.chains)
    if not RECORDS.has(model=options.model, name="one at a time"):
        for record in study.references():
            RECORDS.add(record)
    if not RECORDS.has(model=options.model, name="whole chains"):
        RECORDS.add(whole_chains(study, options.chains))
    for setting in SETTINGS[options.model]:
        if RECORDS.has(model=options.model, name=setting.name) or not re.fullmatch(
            options.only, f"{setting.table}/{setting.name}"
        ):
            continue
        record = study.run(setting)
        RECORDS.add(record)
        local = torch.tensor(record["means"]["local"]).mean()  # type: ignore[index]
        print(f"{setting.table} {setting.name}: local energy {local:.2f}, {record['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
