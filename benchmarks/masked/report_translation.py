"""The section of the page about translations: Tables 6.2 to 6.6, Figures 6.2 to 6.4, in BLEU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.masked import pairs, translation
from benchmarks.masked.figures import draw
from benchmarks.masked.pairs import Judge
from benchmarks.masked.records import Record
from benchmarks.masked.report_samplers import NAMES
from benchmarks.masked.statistics import difference, prose, row
from benchmarks.masked.translation import Started

COLUMNS = ("local energy", "raw energy", "BLEU", "of each chain", "acceptance", "novel")
REFERENCES = {
    "truth": "the references, `<unk>` for words outside of the vocabulary", "greedy": "greedy start, all hidden",
    "mask-predict": "mask-predict, 10 rounds", "mask-predict, random": "mask-predict, random cells",
    "mask-predict, one hidden": "mask-predict, one word hidden at a time, from the greedy start",
}  # fmt: skip
# Goyal 2021, De-En of at most 20 words: BLEU and novel transitions, by (table, sampler, what varies)
THESIS = {
    ("6.2", "local", 2.0): (25.91, 0.03), ("6.2", "deg", 2.0): (14.53, 1.0), ("6.2", "local", 1.5): (24.78, 0.05),
    ("6.2", "deg", 1.5): (10.12, 0.97), ("6.2", "local", 1.0): (24.74, 0.11), ("6.2", "deg", 1.0): (9.03, 0.36),
    ("6.2", "local", 0.8): (25.84, 0.06), ("6.2", "deg", 0.8): (24.77, 0.08), ("6.2", "local", 0.5): (27.23, 0.03),
    ("6.2", "deg", 0.5): (26.12, 0.04), ("6.3", "local", 1.0): (24.74, 0.11), ("6.3", "deg", 1.0): (9.03, 0.36),
    ("6.3", "local", 0.99): (24.95, 0.12), ("6.3", "deg", 0.99): (14.03, 0.33), ("6.3", "local", 0.95): (26.15, 0.10),
    ("6.3", "deg", 0.95): (18.04, 0.22), ("6.3", "local", 0.9): (27.35, 0.07), ("6.3", "deg", 0.9): (23.25, 0.10),
    ("6.3", "local", 0.8): (27.23, 0.05), ("6.3", "deg", 0.8): (23.55, 0.06), ("6.4", "deg", (4, 1)): (9.03, 0.77),
    ("6.4", "raw", (4, 1)): (27.12, 0.40), ("6.4", "local", (4, 1)): (26.78, 0.41),
}  # fmt: skip
Named = Callable[[Started], str]


def translation_section(records: list[Record], folder: Path) -> Iterator[str]:
    """The model, and its samplers."""
    yield "\n## Samplers on translations (Multi30k, German to English)\n\n"
    own = {one["name"]: one for one in records}
    if "training" not in own:
        yield "Not run yet.\n"
        return
    trained, judge = own["training"], Judge()
    parts, minutes = trained["pairs"], trained["seconds"] / 60
    yield prose(
        f"A BiLSTM of masked conditionals that attends to a BiLSTM over the German words (hidden {pairs.HIDDEN},",
        f"`masked_blstm` with `given: encoder(source)`), trained on {parts['train']:,} pairs of at most",
        f"{pairs.LONGEST} words with {trained['words']['Target']:,} English words, by `mlm` and `mlm(hide: some)` in",
        f"turns ({trained['steps']:,} updates of 64 pairs, the best on validation; {minutes:.0f} minutes of wall time",
        f"beside other work). {parts['test']} test sentences of at most {pairs.LONGEST} words, **the length of the",
        "reference given**, which mask-predict and the thesis predict; BLEU (sacrebleu, words as they are) is of words",
        "in lower case with marks apart, so that it cannot be compared with published figures.",
        f"{translation.CHAINS} chains each from the greedy answer with all words hidden, seed 0. Energies are means",
        "over sentences, of sums over words; BLEU is that of all answers of all kept sweeps together; its intervals",
        "are from 1,000 resamplings of sentences. Blocks are hidden together, as in the thesis.",
        f"{' and '.join(sorted({one['date'] for one in own.values()}))}.",
    )
    yield "\n" + row("answers", *COLUMNS[:3]) + row(*["---"] * 4)
    for name, shown in REFERENCES.items():
        if name in own:
            yield row(shown, *_cells(own[name])[:3])
    yield from _words(own)
    yield from _main(own, judge, folder)
    yield from _variations(own, judge, folder)
    missing = dict.fromkeys(one.name for one in translation.SETTINGS if one.name not in own)
    if missing:
        yield f"\nNot run yet: {', '.join(f'`{one}`' for one in missing)}.\n"


def _words(own: dict[str, Record]) -> Iterator[str]:
    """What answers are made of."""
    rows = [(name, name) for name in ("truth", "greedy", "mask-predict")]
    rows += [(one.name, f"{NAMES[one.sampler]}, last of {one.burn_in + one.sweeps} sweeps") for one in translation.BASE]
    known = [
        (own[f"words of {name}"], REFERENCES.get(name, shown)) for name, shown in rows if f"words of {name}" in own
    ]
    if known:
        yield "\nWhat answers are made of, and the first three of them:\n\n"
        yield row("answers", "`<unk>`", "repeats of the word before", "examples") + row(*["---"] * 4)
        for one, shown in known:
            shares = [f"{one[name]:.3f}" for name in ("unknown", "repeated")]
            yield row(shown, *shares, "<br>".join(f"`{text}`" for text in one["examples"][:3]))


def _main(own: dict[str, Record], judge: Judge, folder: Path) -> Iterator[str]:
    main = translation.MAIN if all(one.name in own for one in translation.MAIN) else translation.BASE
    yield f"\n### Translations: degenerate Gibbs against Metropolis-Hastings (Figure 6.2): {_sweeps(main[0])}\n\n"
    yield from _table(main, own, lambda one: NAMES[one.sampler])
    deg, *others = main
    yield "\nPaired by sentence, degenerate less Metropolis-Hastings:\n\n"
    for one in others:
        yield from _less(own, deg, one, NAMES[one.sampler], judge)
    found = [one for one in main if one.name in own]
    if found:
        truth = {"references": statistics.fmean(own["truth"]["means"]["local"])} if "truth" in own else {}
        start = {"greedy start": own["greedy"]["bleu"]} if "greedy" in own else {}
        yield _figure(folder / "masked-translation-energy.svg", found, own, "local", "local energy", truth)
        yield _figure(folder / "masked-translation-bleu.svg", found, own, "bleu", "BLEU", start)
    starts = [one for one in translation.STARTS if one.name in own]
    if starts:
        yield f"\nFrom the answers of mask-predict instead ({_sweeps(starts[0])}):\n\n"
        base = [one for one in translation.BASE if one.name in own]
        yield from _table([*base, *starts], own, lambda one: f"{NAMES[one.sampler]}, from {one.start}")
        yield "\nPaired by sentence, degenerate less Metropolis-Hastings, then one start less the other:\n\n"
        for first, *rest in (translation.BASE, translation.STARTS):
            for one in rest:
                yield from _less(own, first, one, f"{NAMES[one.sampler]}, from {one.start}", judge)
        for one, other in zip(translation.STARTS, translation.BASE, strict=True):
            yield from _less(own, one, other, f"{NAMES[one.sampler]}, mask-predict less greedy", judge)


def _variations(own: dict[str, Record], judge: Judge, folder: Path) -> Iterator[str]:
    deg, local, raw = translation.BASE
    by_level = _ordered([deg, local, *translation.HEATED], lambda one: one.temperature)
    yield f"\n### Translations, Table 6.2: temperature of the proposals: {_sweeps(local)}\n\n"
    yield from _table(by_level, own, lambda one: f"{one.temperature:g}, {NAMES[one.sampler]}", "6.2", "temperature")
    by_mass = _ordered([deg, local, *translation.NUCLEI], lambda one: one.nucleus)
    yield f"\n### Translations, Table 6.3: nucleus of the proposals: {_sweeps(local)}\n\n"
    yield from _table(by_mass, own, lambda one: f"{one.nucleus:g}, {NAMES[one.sampler]}", "6.3", "nucleus")
    yield f"\n### Translations, Table 6.4, Figure 6.3: blocks: {_sweeps(local)}\n\n"
    blocks = translation.BLOCKS
    yield from _table(
        [deg, local, raw, *blocks], own, lambda one: f"{_block(one)}, {NAMES[one.sampler]}", "6.4", "block"
    )
    yield "\nNovel transitions count moves. Paired by sentence:\n\n"
    for one in blocks:
        single = {"local": local, "raw": raw, "deg": deg}[one.sampler]
        if one.name in own and single.name in own:
            a, b = (own[each.name]["means"]["novel"] for each in (one, single))
            gap = difference([x - y for x, y in zip(a, b, strict=True)], 3)
            ratio = f"{statistics.fmean(a) / statistics.fmean(b):.2f} times" if any(b) else "no comparison with"
            shown = f"{_block(one)}, {NAMES[one.sampler]}"
            yield f"- {shown}: {ratio} the novel transitions of single words, {gap}\n"
    shrinking = [one for one in blocks if one.name in own and one.block == (4, 1)]
    if shrinking:
        path = folder / "masked-translation-blocks.svg"
        yield _figure(path, shrinking, own, "acceptance", "acceptance, blocks 4 to 1")
    yield f"\n### Translations, Table 6.5, Figure 6.4: energies annealed towards modes: {_sweeps(local)}\n\n"
    yield "Not samples. *Last* is the last sweep.\n\n"
    annealed = sorted(translation.ANNEALED, key=lambda one: one.anneal)
    yield from _table([local, raw, *annealed], own, lambda one: f"{one.anneal:g}, {NAMES[one.sampler]}", last=True)
    least = [one for one in annealed if one.name in own and one.anneal == annealed[0].anneal]
    if least:
        yield _figure(folder / "masked-translation-annealed.svg", least, own, "local", "local energy, annealed")
    yield f"\n### Translations, Table 6.6: answers near modes: {_sweeps(translation.MODES[0])}\n\n"
    yield prose(
        "The last sweep, proposals at temperature 0.8; from the greedy start with two forced sweeps, or from",
        "mask-predict. The thesis (De-En): greedy 20.27, degenerate 27.88, mask-predict 29.27, local 29.74, raw 30.12.",
    )
    yield "\n" + row("answers", "local energy", "raw energy", "BLEU", "less mask-predict") + row(*["---"] * 5)
    for name in ("greedy", "mask-predict", "mask-predict, random"):
        if name in own:
            yield row(REFERENCES[name], *_cells(own[name])[:3], "")
    for one in translation.MODES:
        if one.name in own:
            record = own[one.name]
            energies = [f"{statistics.fmean(record['last'][name]):.1f}" for name in ("local", "raw")]
            shown = f"{NAMES[one.sampler]}{', annealed' if one.anneal else ', 0.8'}, from {one.start}"
            gap = _resampled(judge, record["counts_last"], own["mask-predict"]["counts"])
            yield row(shown, *energies, f"{record['bleu_last']:.1f}", gap)


# --------------------------------------------------------------------------------------------------------------- parts


def _ordered(settings: Iterable[Started], level: Callable[[Started], float]) -> list[Started]:
    return sorted(settings, key=lambda one: (-level(one), one.sampler != "deg"))


def _block(one: Started) -> str:
    return str(one.block) if isinstance(one.block, int) else f"{one.block[0]} to {one.block[1]}"


def _sweeps(one: Started) -> str:
    return f"{one.sweeps} sweeps after {one.burn_in}"


def _table(
    settings: Iterable[Started],
    own: dict[str, Record],
    named: Named,
    table: str = "",
    varied: str = "",
    last: bool = False,
) -> Iterator[str]:
    """Rows of settings; `table` and `varied` find the thesis's figures."""
    more = (["thesis: BLEU, novel"] if table else []) + (["local energy, last", "BLEU, last"] if last else [])
    yield row("sampler", *COLUMNS, *more) + row(*["---"] * (1 + len(COLUMNS) + len(more)))
    for one in settings:
        if one.name in own:
            record, cells = own[one.name], []
            if table:
                known = THESIS.get((table, one.sampler, getattr(one, varied)))
                cells.append("" if known is None else f"{known[0]:.1f}, {known[1]:.2f}")
            if last:
                cells += [f"{statistics.fmean(record['last']['local']):.1f}", f"{record['bleu_last']:.1f}"]
            yield row(named(one), *_cells(record), *cells)


def _cells(record: Record) -> list[str]:
    """Energies, BLEU, and what samplers have beside it."""
    means = record["means"]
    cells = [*(f"{statistics.fmean(means[name]):.1f}" for name in ("local", "raw")), f"{record['bleu']:.1f}"]
    if "acceptance" in means:
        cells.append(", ".join(f"{one:.1f}" for one in record["bleu_chains"]))
        cells += [f"{statistics.fmean(means[name]):.2f}" for name in ("acceptance", "novel")]
    return cells


def _less(own: dict[str, Record], one: Started, other: Started, name: str, judge: Judge) -> Iterator[str]:
    if one.name in own and other.name in own:
        a, b = own[one.name], own[other.name]
        parts = []
        for energy in ("local", "raw"):
            gaps = [x - y for x, y in zip(a["means"][energy], b["means"][energy], strict=True)]
            parts.append(f"{energy} energy {difference(gaps, 2)}")
        yield f"- {name}: {', '.join(parts)}, BLEU {_resampled(judge, a['counts'], b['counts'])}\n"


def _resampled(judge: Judge, one: Sequence[Sequence[int]], other: Sequence[Sequence[int]], times: int = 1000) -> str:
    """The difference of BLEU with an interval of 95%, by resampling sentences (Koehn 2004), always the same ones."""
    a, b = torch.tensor(one), torch.tensor(other)
    pick = torch.randint(len(a), (times, len(a)), generator=torch.Generator().manual_seed(0))
    gaps = sorted(judge.score(a[some]) - judge.score(b[some]) for some in pick)
    low, high = gaps[int(0.025 * times)], gaps[int(0.975 * times) - 1]
    return f"{judge.score(a) - judge.score(b):+.1f} [{low:+.1f}, {high:+.1f}]"


def _figure(
    path: Path,
    settings: Sequence[Started],
    own: dict[str, Record],
    measure: str,
    label: str,
    levels: dict[str, float] | None = None,
) -> str:
    lines = {}
    for one in settings:
        curve = own[one.name]["curves"][measure]
        lines[NAMES[one.sampler]] = (range(1, len(curve) + 1), curve)
    return draw(path, lines, across="sweep", up=label, levels=levels, burn_in=settings[0].burn_in)
