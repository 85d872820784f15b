"""Tables 6.2 to 6.6 and Figures 6.2 to 6.4 on translations: what samplers do with a masked model of Multi30k, in BLEU.

    python -m benchmarks.masked.translation --root DATA [--runs runs/masked]      # resumable
    python -m benchmarks.masked.report

German to English, at most 15 words, the length of the reference given.  The model is trained first and kept in the
runs' folder; then there is one line of results for each setting.  Chains start from the greedy answer with all words
hidden (the thesis's warm start), or from that of mask-predict, and the same seed serves all settings.  `Enorm` of the
thesis is the local energy, measured whatever the sampler's own energy is.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import energyml as em
from benchmarks.masked.fitting import Settings
from benchmarks.masked.pairs import Encoder, Judge, Pairs, compiled, read, trained
from benchmarks.masked.records import Records
from benchmarks.masked.samplers import Setting
from energyml.backends.mcmc.kernel import Current, Kernel
from energyml.backends.mcmc.metropolis import Block, DegenerateGibbs, MaskPredict, Metropolis
from energyml.backends.mcmc.proposals import evaluate
from energyml.backends.mcmc.randomness import Randomness
from energyml.backends.mcmc.target import ScoreTarget
from energyml.cards.options import Annealed

RECORDS = Records("translation", ("name",))
SIZES = {"train": ("train", 10_000), "validation": ("val", 300), "test": ("test_2016_flickr", 100)}
TRAINING = Settings(steps=2500, batch=64, lr=2e-3, every=100, patience=3)
CHAINS = 2


@dataclass(frozen=True)
class Started(Setting):
    """A sampler, and where its chains start: `greedy` or `mask-predict`."""

    start: str = "greedy"
    burn_in: int = 3
    sweeps: int = 9

    @property
    def name(self) -> str:
        return f"{super().name}/{self.start}"


# The thesis makes 7 + 26 sweeps.  Annealing falls in steps of 0.02, 0.04 and 0.06 there, which end at 0.34 and at the
# floor; over 12 sweeps steps that are three times as large end where those do.
MAIN = [Started("6.2 main", one, burn_in=7, sweeps=17) for one in ("deg", "local", "raw")]
BASE = [replace(one, table="base", burn_in=3, sweeps=9) for one in MAIN]
BLOCKS = [Started("6.4", one, block=(4, 1)) for one in ("deg", "local", "raw")]
BLOCKS += [Started("6.4", "local", block=size) for size in (4, 2)]
ANNEALED = [Started("6.5", one, anneal=step) for step in (0.06, 0.12, 0.18) for one in ("local", "raw")]
MODES = [Started("6.6", "deg", temperature=0.8)]
MODES += [Started("6.6", one, temperature=0.8, anneal=0.06, forced=2) for one in ("local", "raw")]
MODES += [
    Started("6.6", one, temperature=0.8, anneal=0.06, start="mask-predict") for one in ("local", "raw")
]  # fmt: skip
STARTS = [replace(one, table="starts", start="mask-predict") for one in BASE]
HEATED = [Started("6.2", one, temperature=level) for level in (2.0, 0.5, 1.5, 0.8) for one in ("deg", "local")]
NUCLEI = [Started("6.3", one, nucleus=mass) for mass in (0.8, 0.95, 0.9, 0.99) for one in ("deg", "local")]
SETTINGS: list[Started] = [
    *BASE, *BLOCKS, *ANNEALED[:2], *MODES, *HEATED[:4], *NUCLEI[:2], *STARTS, *MAIN, *ANNEALED[2:], *HEATED[4:],
    *NUCLEI[2:],
]  # fmt: skip


class DegenerateBlocks(DegenerateGibbs):
    """Degenerate Gibbs sampling in blocks that are hidden together, as in the thesis."""

    def __init__(self, target: ScoreTarget, block: int | Annealed, sweeps: int, **options: Any) -> None:
        super().__init__(target, **options)
        self.blocks = Metropolis(target, block=block, sweeps=sweeps, hide="some", **options)

    def plan(self, current: Current, random: Randomness) -> Iterable[Any]:
        """All cells once, in blocks."""
        return self.blocks.plan(current, random)

    def move(self, current: Current, move: Any, random: Randomness) -> None:
        """Draw the cells of a block."""
        cells = self._cells(move)
        hidden = torch.zeros_like(current.labels["y"], dtype=torch.bool)
        hidden[:, :, cells] = True
        hidden = hidden & self.target.existing("y")
        scores = evaluate(self.target, current.labels, {"y": hidden}).proposals["y"][:, :, cells]
        drawn = random.categorical(self.narrowed(scores))
        present = hidden.any(-1).to(current.score.dtype)
        current.count(present, present, (drawn != current.labels["y"][:, :, cells]).any(-1).to(present.dtype))
        current.labels["y"][:, :, cells] = drawn

    def _cells(self, move: Block) -> list[int]:
        return [cell for _, cell in move]


class Study:
    """The model on test sentences, as both energies; they share their networks."""

    def __init__(self, root: Path, runs: Path) -> None:
        self.parts: dict[str, Pairs] = {part: read(root, name, count) for part, (name, count) in SIZES.items()}
        self.encoder = Encoder(self.parts["train"])
        self.models: dict[str, em.EnergyModel] = {one: compiled(self.encoder, one).eval() for one in ("local", "raw")}
        self.path, self.judge = runs / "translation.safetensors", Judge()
        test = self.parts["test"]
        self.source, self.truth, self.lengths = self.encoder(test, range(len(test)))

    def ready(self) -> None:
        """Train the model, or load it; then the starts."""
        if not self.path.exists():
            began = time.perf_counter()
            done = trained(self.models["local"], self.encoder, self.parts, TRAINING)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            save_file(self.models["local"].state_dict(), self.path)
            RECORDS.add({
                "name": "training", "table": "training", "curve": done.curve, "steps": done.steps, "taken": done.taken,
                "validation": done.validation, "seconds": round(time.perf_counter() - began, 1),
                "words": {name: len(words) for name, words in self.encoder.labels.items()},
                "pairs": {part: len(one) for part, one in self.parts.items()},
            })  # fmt: skip
        for model in self.models.values():
            model.load_state_dict(load_file(self.path))
        self.starts = {"greedy": self._predicted(1), "mask-predict": self._predicted(10)}

    def _predicted(self, rounds: int, pick: str = "confidence", hide: str = "some") -> Tensor:
        """[B, T]: by mask-predict; one round is the greedy answer with all words hidden."""
        kernel = MaskPredict(self.target("local", 1), rounds, pick, hide)
        begin = None if hide == "some" else {"y": self.starts["greedy"].unsqueeze(1)}
        state = kernel.init(torch.Generator().manual_seed(0), labels=begin)
        return kernel.step(state)[0].labels["y"][:, 0]

    def target(self, energy: str, chains: int = CHAINS) -> ScoreTarget:
        return ScoreTarget(self.models[energy].problem(source=self.source, lengths=self.lengths), chains)

    def kernel(self, setting: Started) -> Kernel:
        """A setting as a sampler of the product."""
        block = setting.block if isinstance(setting.block, int) else Annealed(*setting.block)
        total = setting.burn_in + setting.sweeps
        shared: dict[str, Any] = {
            "temperature": setting.temperature, "nucleus": setting.nucleus, "order": "random",
        }  # fmt: skip
        if setting.sampler == "deg":
            return DegenerateBlocks(self.target("local"), block, total, **shared)
        return Metropolis(
            self.target(setting.sampler), block=block, sweeps=total, anneal=setting.anneal, forced=setting.forced,
            hide="some", **shared,
        )  # fmt: skip

    @torch.no_grad()
    def measured(self, y: Tensor) -> dict[str, Tensor]:
        """By name ``[B, C]`` the energies of answers ``[B, C, T]``, and their counts for BLEU ``[B, C, 10]``."""
        target = self.target("local", y.shape[1])
        exists = target.existing("y")
        scores = evaluate(target, {"y": y}).proposals["y"]

        def energy(of: Tensor) -> Tensor:
            return -of.gather(-1, y.unsqueeze(-1)).squeeze(-1).masked_fill(~exists, 0).sum(-1)

        rows = y.masked_fill(~exists, -1).tolist()
        references = self.parts["test"].target
        counts = [
            [self.judge.counts(self.encoder.words(one), reference) for one in chains]
            for chains, reference in zip(rows, references, strict=True)
        ]
        return {
            "local": energy(scores.log_softmax(-1)), "raw": energy(scores), "bleu": torch.tensor(counts),
        }  # fmt: skip

    def run(self, setting: Started) -> dict[str, object]:
        """All sweeps of a setting, measured after each."""
        began, kernel = time.perf_counter(), self.kernel(setting)
        begin = self.starts[setting.start].unsqueeze(1).repeat(1, CHAINS, 1)
        state = kernel.init(torch.Generator().manual_seed(0), labels={"y": begin})
        kept: dict[str, list[Tensor]] = {}
        for _ in range(setting.burn_in + setting.sweeps):
            state, info = kernel.step(state)
            found = self.measured(state.labels["y"])
            found["acceptance"] = info.accepted / info.proposed
            found["novel"] = info.novel / info.proposed
            for name, one in found.items():
                kept.setdefault(name, []).append(one.double())
        stacked = {name: torch.stack(one) for name, one in kept.items()}  # [sweeps, B, C, ...]
        counts = stacked.pop("bleu")
        after = counts[setting.burn_in :]
        return {
            "name": setting.name, **vars(setting), "chains": CHAINS,
            "means": {name: one[setting.burn_in :].mean((0, 2)).tolist() for name, one in stacked.items()},
            "last": {name: one[-1].mean(1).tolist() for name, one in stacked.items()},
            "curves": {
                **{name: one.mean((1, 2)).tolist() for name, one in stacked.items()},
                "bleu": [self.judge.score(one.flatten(0, 1)) for one in counts],
            },
            "bleu": self.judge.score(after.flatten(0, 2)), "bleu_last": self.judge.score(counts[-1].flatten(0, 1)),
            "bleu_chains": [self.judge.score(after[:, :, chain].flatten(0, 1)) for chain in range(CHAINS)],
            "counts": after.sum((0, 2)).long().tolist(), "counts_last": counts[-1].sum(1).long().tolist(),
            "seconds": round(time.perf_counter() - began, 1),
        }  # fmt: skip

    def words(self, setting: Started) -> dict[str, object]:
        """What the answers of a setting's last sweep are made of; the same draws as those of `run`."""
        kernel = self.kernel(setting)
        begin = self.starts[setting.start].unsqueeze(1).repeat(1, CHAINS, 1)
        state = kernel.init(torch.Generator().manual_seed(0), labels={"y": begin})
        state, _ = kernel.run(state, setting.burn_in + setting.sweeps)
        return {"name": f"words of {setting.name}", "table": "words", **self._made_of(state.labels["y"])}

    def _made_of(self, y: Tensor) -> dict[str, object]:
        """Of answers ``[B, C, T]``: the shares of unknown words and of repeats of the word before; a few answers."""
        answers = y.masked_fill(~self.target("local", 1).existing("y"), -1)
        there = answers >= 0
        behind = there[..., 1:]
        again = (answers[..., 1:] == answers[..., :-1]) & behind
        return {
            "unknown": float(((answers == 0) & there).sum() / there.sum()),
            "repeated": float(again.sum() / behind.sum()),
            "examples": [" ".join(self.encoder.words(row)) for row in answers[:5, 0].tolist()],
        }  # fmt: skip

    def references(self) -> Iterable[dict[str, object]]:
        """What samplers are held against."""
        answers = {"truth": self.truth.clamp(min=0), **self.starts}
        answers["mask-predict, random"] = self._predicted(10, "random")
        answers["mask-predict, one hidden"] = self._predicted(10, hide="one")
        exists = self.target("local", 1).existing("y").squeeze(1)
        for name, y in answers.items():
            found = self.measured(y.unsqueeze(1))
            counts = found.pop("bleu").squeeze(1)
            rows = y.masked_fill(~exists, -1)[:5].tolist()
            yield {
                "name": name, "table": "reference", "bleu": self.judge.score(counts), "counts": counts.tolist(),
                "means": {key: one.squeeze(1).tolist() for key, one in found.items()},
                "examples": [" ".join(self.encoder.words(row)) for row in rows],
            }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="the folder with multi30k/")
    parser.add_argument("--runs", type=Path, default=Path("runs/masked"), help="where the trained model is kept")
    parser.add_argument("--only", default=".*", help="a regular expression over TABLE/SETTING: '6.4/.*'")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    study = Study(options.root, options.runs)
    study.ready()
    if not RECORDS.has(name="mask-predict, one hidden"):
        for record in study.references():
            RECORDS.add(record)
            print(f"{record['name']}: BLEU {record['bleu']:.1f}", flush=True)
    for setting in SETTINGS:
        if RECORDS.has(name=setting.name) or not re.fullmatch(options.only, f"{setting.table}/{setting.name}"):
            continue
        record = study.run(setting)
        RECORDS.add(record)
        local = torch.tensor(record["means"]["local"]).mean()  # type: ignore[index]
        print(
            f"{setting.table} {setting.name}: local energy {local:.2f}, BLEU {record['bleu']:.1f}, "
            f"{record['seconds']} s", flush=True,
        )  # fmt: skip
    for setting in BASE:
        name = f"words of {setting.name}"
        if not RECORDS.has(name=name) and re.fullmatch(options.only, f"words/{name}"):
            RECORDS.add(study.words(setting))
    for name, y in {"truth": study.truth.clamp(min=0), **study.starts}.items():
        if not RECORDS.has(name=f"words of {name}") and re.fullmatch(options.only, f"words/{name}"):
            RECORDS.add({"name": f"words of {name}", "table": "words", **study._made_of(y.unsqueeze(1))})


if __name__ == "__main__":
    main()
