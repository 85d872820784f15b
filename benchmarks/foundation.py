"""The road's own cost: importing, compiling, checking from the shell, and calling `infer`.

Run with `make bench`, or `python -m benchmarks.foundation [--markdown docs/performance.md]`.  Contestants alternate
within one run, and the figures are medians with quartiles.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

SPEC = Path(__file__).parent / "forty_lines.energy"
MARKERS = ("<!-- measured: foundation -->", "<!-- end measured -->")


@dataclass(frozen=True)
class Figure:
    """A measured quantity beside its bar."""

    what: str
    value: float
    low: float
    high: float
    bar: float
    unit: str

    @property
    def met(self) -> bool:
        """Whether the median keeps the bar."""
        return self.value <= self.bar


def _summary(what: str, samples: list[float], bar: float, unit: str) -> Figure:
    low, middle, high = statistics.quantiles(samples, n=4)
    return Figure(what, middle, low, high, bar, unit)


def _processor_time(code: str) -> float:
    """Seconds of processor time of a Python process that runs some code; steadier than wall time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def import_costs(rounds: int) -> list[Figure]:
    """Extra processor time of importing energyml, bare and with its main names loaded, over importing torch."""
    bare = "import torch, energyml"
    loaded = "import torch, energyml as em; em.load, em.compile, em.Builder, em.EnergyModel"
    extra: dict[str, list[float]] = {bare: [], loaded: []}
    for _ in range(rounds):
        base = _processor_time("import torch")
        for code, samples in extra.items():
            samples.append(_processor_time(code) - base)
    return [
        _summary("import energyml over import torch", extra[bare], 0.3, "s"),
        _summary("the same, with em.load, em.compile, em.Builder and em.EnergyModel", extra[loaded], 0.3, "s"),
    ]


def compile_cost(rounds: int) -> Figure:
    """Milliseconds from text to plan for a 40-line spec, warm."""
    from energyml.diagnostics import Source
    from energyml.driver import compile_source

    source = Source(SPEC.name, SPEC.read_text(encoding="utf-8"))
    compile_source(source)
    return _summary(
        "compile a 40-line spec, warm", [1e3 * _once(lambda: compile_source(source)) for _ in range(rounds)], 30.0, "ms"
    )


def _once(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def check_cost(rounds: int) -> Figure:
    """Seconds of wall time of `energyml check FILE`, process start included; fails if torch is imported."""
    probe = (
        "import sys, energyml.cli as c; sys.argv = ['energyml', 'check', sys.argv[1]]; code = c._guarded(c.app);"
        "assert 'torch' not in sys.modules and code == 0"
    )
    subprocess.run([sys.executable, "-c", probe, str(SPEC)], check=True, stdout=subprocess.DEVNULL)
    command = [sys.executable, "-m", "energyml.cli", "check", str(SPEC)]
    samples = [_once(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)) for _ in range(rounds)]
    return _summary("energyml check on a file", samples, 0.5, "s")


CHAIN = """\
labels Tag = {A, B, C, D, E}
dim T
input u : real[T, Tag]
output y : Tag[T]
param W : real[from: Tag, to: Tag]
chain y { unary: u, pair: W }
infer exact
"""


def call_cost(rounds: int) -> Figure:
    """Microseconds that `model.infer(...).log_partition` adds to the kernel on the same potentials."""
    import torch

    import energyml as em
    from energyml.backends.exact.engines import ENGINES
    from energyml.backends.exact.potentials import Potentials

    torch.set_num_threads(1)
    model = em.compile(CHAIN, seed=0)
    u = torch.randn(8, 10, 5)
    lengths = torch.tensor([10, 9, 8, 7, 6, 5, 4, 3])
    weights = model.W.detach()
    kernel = ENGINES["auto"].log_partition
    direct = Potentials(u, weights[None, None], lengths)
    extra = []
    with torch.no_grad():
        for round_ in range(rounds + 20):
            ours = _once(lambda: model.infer(u=u, lengths=lengths).log_partition)
            alone = _once(lambda: kernel(direct))
            if round_ >= 20:
                extra.append(1e6 * (ours - alone))
    return _summary("model.infer over the kernel, per call", extra, 60.0, "µs")


def main() -> int:
    """Measure, print a table, and write it between its markers in a Markdown file when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=15, help="process starts for each figure; calls are repeated more often"
    )
    parser.add_argument("--markdown", type=Path, help="file that holds the table between its markers")
    parser.add_argument("--json", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    figures = [
        *import_costs(options.rounds),
        compile_cost(20 * options.rounds),
        check_cost(options.rounds),
        call_cost(100 * options.rounds),
    ]
    table = _table(figures)
    print(table)
    if options.markdown:
        _write_between(options.markdown, table)
    if options.json:
        options.json.write_text(json.dumps([figure.__dict__ for figure in figures], indent=2), encoding="utf-8")
    return 0 if all(figure.met for figure in figures) else 1


def _table(figures: list[Figure]) -> str:
    import torch

    lines = [
        f"`python -m benchmarks.foundation`, {date.today().isoformat()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {os.cpu_count()} cores.",
        "",
        "| what | median | quartiles | bar | kept |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_row, figures)])


def _row(f: Figure) -> str:
    kept = "yes" if f.met else "NO"
    return f"| {f.what} | {f.value:.3g} {f.unit} | {f.low:.3g} to {f.high:.3g} | {f.bar:g} {f.unit} | {kept} |"


def _write_between(path: Path, table: str) -> None:
    text = path.read_text(encoding="utf-8")
    start, end = text.index(MARKERS[0]) + len(MARKERS[0]), text.index(MARKERS[1])
    made = f"{text[:start]}\n{table}\n{text[end:]}"
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as partial:
        partial.write(made)
    Path(partial.name).replace(path)


if __name__ == "__main__":
    sys.exit(main())
