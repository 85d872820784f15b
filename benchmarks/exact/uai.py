"""The models of the UAI competitions: PR and MAR against memory speed and against pgmpy.

The time that the operation count implies: every multiplication and addition of the elimination (the entries of each
clique, times the tables that it multiplies) reads 8 bytes, at the speed at which this machine copies memory; marginals
take one pass up and one down.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.exact import results
from benchmarks.exact.timing import in_child

FOLDER = Path(__file__).parents[3] / "shared" / "thirdparty" / "uai"
PATIENCE = 60  # seconds that pgmpy has for a task
MOST = 6 * 2**30  # bytes that it may ask for
TASKS = ("PR", "MAR")
PASSES = {"PR": 1, "MAR": 2}
FIRST = 15  # first calls, each of a model that was just read; their median counts


@dataclass(frozen=True)
class File:
    """A model as its file has it: sizes of variables, scopes and tables of factors, evidence."""

    sizes: list[int]
    scopes: list[tuple[int, ...]]
    tables: list[list[float]]
    evidence: dict[int, int]


def read(path: Path) -> File:
    """Read a model and its evidence."""
    words = path.read_text().split()
    count = int(words[1])
    sizes = [int(word) for word in words[2 : 2 + count]]
    at, scopes, tables = 3 + count, [], []
    for _ in range(int(words[2 + count])):
        arity = int(words[at])
        scopes.append(tuple(int(word) for word in words[at + 1 : at + 1 + arity]))
        at += 1 + arity
    for _ in scopes:
        entries = int(words[at])
        tables.append([float(word) for word in words[at + 1 : at + 1 + entries]])
        at += 1 + entries
    evid = Path(f"{path}.evid")
    known = [int(word) for word in evid.read_text().split()] if evid.exists() else [0]
    # one dialect starts with the number of samples; with an odd count of words it does not
    pairs = known[1:] if len(known) % 2 else known[2:]
    return File(sizes, scopes, tables, dict(zip(pairs[::2], pairs[1::2], strict=True)))


def implied(file: File, task: str, speed: float) -> tuple[float, float]:
    """Operations of the plan, and the seconds that they imply."""
    from energyml.plan.elimination import make_program

    operations = make_program(file.scopes, file.sizes, known=file.evidence).operations
    return operations, PASSES[task] * 8 * operations / speed


def memory_speed(megabytes: int = 256) -> float:
    """Bytes a second of a copy, read and written: the fastest that was seen."""
    import torch

    from benchmarks.exact.timing import fastest_seconds

    given, out = (
        torch.zeros(megabytes * 2**17, dtype=torch.float64),
        torch.zeros(megabytes * 2**17, dtype=torch.float64),
    )
    return 2 * 8 * given.numel() / fastest_seconds(lambda: out.copy_(given), 3.0, 30)


def ours(path: Path, task: str) -> dict[str, float | str]:
    """Milliseconds of a first call, which plans, and of later ones; log10 of the partition."""
    import torch

    import energyml as em
    from benchmarks.exact.timing import CLOCK, median_seconds

    evid = Path(f"{path}.evid")

    def answer(posterior: Any) -> Any:
        return posterior.log_partition if task == "PR" else posterior.marginals

    def asked(model: Any, evidence: Any) -> Callable[[], Any]:
        return torch.no_grad()(lambda: answer(model.infer(evidence=evidence, using="exact")))

    first = []
    for _ in range(FIRST):
        model = em.interop.read_uai(path)
        evidence = em.interop.read_evid(evid, model) if evid.exists() else None
        call = asked(model, evidence)
        start = CLOCK()
        found = call()
        first.append(1e3 * (CLOCK() - start))
    later = 1e3 * median_seconds(call, 1.0, 30)
    row: dict[str, float | str] = {
        "first": results.figure(statistics.median(first)),
        "later": results.figure(later),
    }
    if task == "PR":
        row["log10"] = found.item() / math.log(10)
    return row


def pgmpy_child(path: Path, task: str) -> dict[str, float | str]:
    """Milliseconds of pgmpy on a model that is already built.

    Tables are divided by their largest entries first: its products would overflow.  PR is variable elimination down to
    one variable, which gives an unnormalised table whose sum is the partition; MAR is a calibrated junction tree whose
    clique beliefs are summed down to every variable.
    """
    import numpy as np
    from pgmpy.factors.discrete import DiscreteFactor
    from pgmpy.inference import BeliefPropagation, VariableElimination
    from pgmpy.models import DiscreteMarkovNetwork

    from benchmarks.exact.timing import CLOCK

    warnings.filterwarnings("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MOST, MOST))
    file = read(path)
    network = DiscreteMarkovNetwork()
    network.add_nodes_from(range(len(file.sizes)))
    log_scale = 0.0
    factors = []
    for scope, table in zip(file.scopes, file.tables, strict=True):
        network.add_edges_from((a, b) for a in scope for b in scope if a < b)
        best = max(table)
        log_scale += math.log10(best)
        sizes = [file.sizes[one] for one in scope]
        factors.append(DiscreteFactor(list(scope), sizes, np.array(table) / best))
    lonely = set(range(len(file.sizes))) - {one for scope in file.scopes for one in scope}
    factors += [DiscreteFactor([one], [file.sizes[one]], np.ones(file.sizes[one])) for one in lonely]
    network.add_factors(*factors)
    free = [one for one in range(len(file.sizes)) if one not in file.evidence]

    def partition() -> float:
        found = VariableElimination(network).query([free[0]], evidence=file.evidence or None, show_progress=False)
        return math.log10(found.values.sum()) + log_scale

    def marginals() -> float:
        tree = BeliefPropagation(network)
        if file.evidence:
            tree.query(free, evidence=file.evidence, joint=False, show_progress=False)
        else:
            tree.calibrate()
            home = {one: clique for clique in tree.get_cliques() for one in clique}
            beliefs = tree.get_clique_beliefs()
            for one in free:
                beliefs[home[one]].marginalize(set(home[one]) - {one}, inplace=False)
        return math.nan

    call = partition if task == "PR" else marginals
    took: list[float] = []
    while len(took) < 5 and sum(took) < 5:  # the first call of a short one is not yet warm
        start = CLOCK()
        found = call()
        took.append(CLOCK() - start)
    best = {"ms": results.figure(1e3 * min(took))}
    return best if math.isnan(found) else {**best, "log10": found}


def pgmpy(path: Path, task: str) -> dict[str, float | str]:
    """What pgmpy takes in its own process, with a time limit."""
    return in_child("benchmarks.exact.uai", ("--child", str(path), task), PATIENCE)


def right(path: Path, found: Any) -> bool | None:
    """Whether a partition is the published one, to the six digits it is printed with."""
    solution = Path(f"{path}.PR")
    if not solution.exists() or not isinstance(found, float):
        return None
    known = float(solution.read_text().split()[-1])
    return abs(found - known) <= 1e-5 * max(1.0, abs(known))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--without-pgmpy", action="store_true", help="keep pgmpy's figures of the last run")
    parser.add_argument("--task", choices=TASKS, action="append", help="only this one; pgmpy has its patience for each")
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(pgmpy_child(Path(options.child[0]), options.child[1])))
        return
    import torch

    torch.set_num_threads(1)
    speed = memory_speed()
    before = {(row["model"], row["task"]): row.get("pgmpy") for row in results.load("uai")["rows"]}
    rows = []
    models = sorted(options.folder.glob("*.uai"), key=lambda path: path.stat().st_size)
    for path in models[:2] if options.quick else models:
        file = read(path)
        for task in options.task or TASKS:
            operations, least = implied(file, task, speed)
            row: dict[str, Any] = {
                "model": path.name, "task": task, "variables": len(file.sizes),
                "operations": results.figure(operations), "implied": results.figure(1e3 * least),
            }  # fmt: skip
            try:
                row.update(ours(path, task))
                row["right"] = right(path, row.get("log10"))
            except Exception as error:  # a refusal is a result
                row["refused"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            row["pgmpy"] = before.get((path.name, task)) if options.without_pgmpy else pgmpy(path, task)
            rows.append(row)
            print(row, flush=True)
        results.store(
            "uai-quick" if options.quick else "uai", rows, ("model", "task"), speed=results.figure(speed / 1e9)
        )


if __name__ == "__main__":
    main()
