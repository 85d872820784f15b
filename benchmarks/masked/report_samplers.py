"""The sections of the page about samplers: Tables 6.2 to 6.6, Figures 6.2 to 6.4."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.masked import samplers
from benchmarks.masked.figures import draw
from benchmarks.masked.records import Record
from benchmarks.masked.samplers import Setting
from benchmarks.masked.statistics import difference, prose, row, spread

NAMES = {"deg": "degenerate Gibbs", "local": "MH, local", "raw": "MH, raw"}
COLUMNS = ("local energy", "raw energy", "recovery", "acceptance", "novel")
MEASURES = ("local", "raw", "recovery", "acceptance", "novel")
TITLES = {"sapiens": "Sapiens (RoBERTa, 0.6M weights)", "antiberty": "AntiBERTy (BERT, 26M weights)"}


def sampler_sections(records: list[Record], folder: Path) -> Iterator[str]:
    """Both models: the main contrast of each, and all variations of the smaller one."""
    for model, title in TITLES.items():
        own = {one["name"]: one for one in records if one["model"] == model}
        yield f"\n## Samplers on {title}\n\n"
        if not own:
            yield "Not run yet.\n"
            continue
        yield from _model(model, own, folder)


def _model(model: str, own: dict[str, Record], folder: Path) -> Iterator[str]:
    count, chains, cut = samplers.SIZES[model]
    settings = samplers.SETTINGS[model]
    main = [one for one in settings if one.table == "6.2 main"]
    yield prose(
        f"{count} human heavy chains, each with the {cut} residues of its third CDR cut out and the rest given,",
        f"{chains} chains of the sampler each, all from the greedy answer with all residues masked; seed 0. Energies",
        f"are sums over the {cut} residues; ± is over the {count} antibodies, each the mean of its chains.",
        f"{' and '.join(sorted({one['date'] for one in own.values()}))}.",
    )
    yield "\n"
    yield row("answers", *COLUMNS[:3])
    yield row(*["---"] * 4)
    for name in ("truth", "start", "one at a time", "mask-predict, confidence", "mask-predict, random"):
        if name in own:
            yield row(_REFERENCES.get(name, name), *_cells(own[name], MEASURES[:3]))
    if "whole chains" in own:
        whole = own["whole chains"]
        yield "\n" + prose(
            f"Of all residues of the first {len(whole['masked'])} chains of the file, masked one by one, the network",
            f"puts the real one first at {spread(whole['masked'], 3)} (from {min(whole['masked']):.2f} to",
            f"{max(whole['masked']):.2f}); read without a mask, at {spread(whole['plain'], 3)}.",
        )
    yield f"\n### Degenerate Gibbs against Metropolis-Hastings (Figure 6.2): {_sweeps(main[0])}\n\n"
    yield from _table(main, own, lambda one: NAMES[one.sampler])
    yield "\nPaired by antibody, degenerate less Metropolis-Hastings:\n\n"
    for sampler in ("local", "raw"):
        yield from _less(own, main[0], next(one for one in main if one.sampler == sampler), NAMES[sampler])
    found = [one for one in main if one.name in own]
    if found:
        yield _figure(
            folder / f"masked-{model}-energy.svg", found, own, "local", "local energy", truth=own.get("truth")
        )
    if model == "sapiens":
        yield from _variations(own, samplers.BASE if samplers.BASE[1].name in own else main, folder)


_REFERENCES = {
    "truth": "the real residues", "start": "greedy start, all masked",
    "one at a time": "the best label of each, all others real",
}  # fmt: skip


def _variations(own: dict[str, Record], main: Sequence[Setting], folder: Path) -> Iterator[str]:
    deg, local, raw = main
    heated = sorted({one.temperature for one in samplers.HEATED} | {1.0}, reverse=True)
    yield f"\n### Table 6.2: temperature of the proposals: {_sweeps(samplers.HEATED[0])}\n\n{_note(main)}"
    rows = [
        one for level in heated for one in ([deg, local] if level == 1 else _where(samplers.HEATED, temperature=level))
    ]
    yield from _table(rows, own, lambda one: f"{one.temperature:g}, {NAMES[one.sampler]}")
    nuclei = sorted({one.nucleus for one in samplers.NUCLEI} | {1.0}, reverse=True)
    yield f"\n### Table 6.3: nucleus of the proposals: {_sweeps(samplers.NUCLEI[0])}\n\n{_note(main)}"
    rows = [one for mass in nuclei for one in ([deg, local] if mass == 1 else _where(samplers.NUCLEI, nucleus=mass))]
    yield from _table(rows, own, lambda one: f"{one.nucleus:g}, {NAMES[one.sampler]}")
    yield f"\n### Table 6.4, Figure 6.3: blocks: {_sweeps(samplers.BLOCKS[0])}\n\n{_note(main)}"
    yield from _table([deg, local, raw, *samplers.BLOCKS], own, lambda one: f"{_block(one)}, {NAMES[one.sampler]}")
    yield "\nNovel transitions count moves, of which a block of 4 makes a fourth in a sweep. Paired by antibody:\n\n"
    for one in samplers.BLOCKS:
        single = {"local": local, "raw": raw, "deg": deg}[one.sampler]
        yield from _ratio(own, one, single)
    blocks = [one for one in samplers.BLOCKS if one.name in own and one.block == (4, 1)]
    if blocks:
        yield _figure(folder / "masked-sapiens-blocks.svg", blocks, own, "acceptance", "acceptance, blocks 4 to 1")
    yield (
        f"\n### Table 6.5, Figure 6.4: energies annealed towards modes: {_sweeps(samplers.ANNEALED[0])}\n\n"
        "Not samples. *Last* is the last sweep.\n\n"
    )
    yield from _table(
        sorted(samplers.ANNEALED, key=lambda one: one.anneal),
        own,
        lambda one: f"{one.anneal:g}, {NAMES[one.sampler]}",
        last=True,
    )
    yield "\nPaired by antibody, annealed less not annealed, both in the last sweep:\n\n"
    for one in sorted(samplers.ANNEALED, key=lambda one: one.anneal):
        base = local if one.sampler == "local" else raw
        if one.name in own and base.name in own:
            last = [_by_antibody(own[setting.name], "local", "last") for setting in (one, base)]
            gaps = [a - b for a, b in zip(*last, strict=True)]
            yield f"- {one.anneal:g}, {NAMES[one.sampler]}: local energy {difference(gaps, 2)}\n"
    annealed = [
        one for one in samplers.ANNEALED if one.name in own and one.anneal == min(a.anneal for a in samplers.ANNEALED)
    ]
    if annealed:
        yield _figure(folder / "masked-sapiens-annealed.svg", annealed, own, "local", "local energy, annealed")
    yield f"\n### Table 6.6: answers near modes: {_sweeps(samplers.MODES[0])}\n\n"
    yield "The last sweep; proposals at temperature 0.8, two forced sweeps.\n\n"
    yield row("answers", *COLUMNS[:3])
    yield row(*["---"] * 4)
    for name in ("start", "mask-predict, confidence", "mask-predict, random"):
        if name in own:
            yield row(_REFERENCES.get(name, name), *_cells(own[name], MEASURES[:3]))
    for one in samplers.MODES:
        if one.name in own:
            yield row(
                f"{NAMES[one.sampler]}{', annealed' if one.anneal else ', 0.8'}",
                *_cells(own[one.name], MEASURES[:3], "last"),
            )
    missing = dict.fromkeys(one.name for one in samplers.SETTINGS["sapiens"] if one.name not in own)
    if missing:
        yield f"\nNot run yet: {', '.join(f'`{one}`' for one in missing)}.\n"


def _note(main: Sequence[Setting]) -> str:
    """Where the rows without variation come from."""
    return "" if main[0].table == "base" else "Rows without variation are those of the longer runs above.\n\n"


def _where(settings: Iterable[Setting], **fields: float) -> list[Setting]:
    return [one for one in settings if all(getattr(one, name) == value for name, value in fields.items())]


def _block(one: Setting) -> str:
    return str(one.block) if isinstance(one.block, int) else f"{one.block[0]} to {one.block[1]}"


def _sweeps(one: Setting) -> str:
    return f"{one.sweeps} sweeps after {one.burn_in}"


def _table(settings: Iterable[Setting], own: dict[str, Record], named: Any, last: bool = False) -> Iterator[str]:
    yield row("sampler", *COLUMNS, *(("local energy, last", "recovery, last") if last else ()))
    yield row(*["---"] * (1 + len(COLUMNS) + 2 * last))
    for one in settings:
        if one.name in own:
            more = _cells(own[one.name], ("local", "recovery"), "last") if last else []
            yield row(named(one), *_cells(own[one.name], MEASURES), *more)


def _cells(record: Record, measures: Sequence[str], when: str = "means") -> list[str]:
    return [
        spread(_by_antibody(record, name, when), 1 if name in ("local", "raw") else 2) if name in record[when] else ""
        for name in measures
    ]


def _by_antibody(record: Record, measure: str, when: str = "means") -> list[float]:
    return [statistics.fmean(chains) for chains in record[when][measure]]


def _less(own: dict[str, Record], one: Setting, other: Setting, name: str) -> Iterator[str]:
    if one.name in own and other.name in own:
        a, b = own[one.name], own[other.name]
        parts = []
        for measure, digits in (("local", 2), ("raw", 2), ("recovery", 3)):
            gaps = [x - y for x, y in zip(_by_antibody(a, measure), _by_antibody(b, measure), strict=True)]
            parts.append(f"{'recovery' if measure == 'recovery' else f'{measure} energy'} {difference(gaps, digits)}")
        yield f"- {name}: {', '.join(parts)}\n"


def _ratio(own: dict[str, Record], block: Setting, single: Setting) -> Iterator[str]:
    if block.name in own and single.name in own:
        a, b = _by_antibody(own[block.name], "novel"), _by_antibody(own[single.name], "novel")
        pairs = list(zip(a, b, strict=True))
        ratio, gap = spread([x / y for x, y in pairs], 2), difference([x - y for x, y in pairs], 3)
        yield f"- {_block(block)}, {NAMES[block.sampler]}: {ratio} times the novel transitions of single cells, {gap}\n"


def _figure(
    path: Path,
    settings: Sequence[Setting],
    own: dict[str, Record],
    measure: str,
    label: str,
    truth: Record | None = None,
) -> str:
    """A curve for each setting over all sweeps, burn-in included; returns the line that shows it."""
    lines = {}
    for one in settings:
        curve = own[one.name]["curves"][measure]
        lines[NAMES[one.sampler]] = (range(1, len(curve) + 1), curve)
    levels = {} if truth is None else {"real residues": statistics.fmean(_by_antibody(truth, measure))}
    return draw(path, lines, across="sweep", up=label, levels=levels, burn_in=settings[0].burn_in)
