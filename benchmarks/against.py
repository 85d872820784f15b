"""Compares this checkout with another commit, side by side in one run.

    .venv/bin/python -m benchmarks.against c578060 --threads 1 --threads 2 --store before_house

The other commit is checked out and built under `build/against/`.  Each version runs in a process of its own; the two
take turns, so that only one computes at a time, and the order within a pair changes from pair to pair.  Each turn
begins with a call that is not timed.  A figure is the median of the ratios of pairs (other time / our time, above 1
where this checkout is faster) with quartiles.  The peers' times stand in `benchmarks.exact chains`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.exact.results import figure, machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
UAI = ROOT.parent / "shared" / "thirdparty" / "uai"
MEMORY = (16, 500, 200)
TURN = 2e-3  # seconds that the calls of one turn take together, at least


class Version:
    """A process that serves one version of energyml.

    Args:
        root: its checkout.
        threads: how many cores the process has.
    """

    def __init__(self, root: Path, threads: int) -> None:
        count = str(threads)
        environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}
        environment["UAI_FOLDER"] = str(UAI)
        cores = sorted(os.sched_getaffinity(0))[:threads]
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "benchmarks" / "workloads.py")], env=environment, cwd=root, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip
        hello = self._answer()
        if not Path(hello["file"]).is_relative_to(root):
            raise SystemExit(f"{root} was to be measured, and {hello['file']} was imported")
        self.names: list[str] = hello["names"]

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a measured process has ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def checkout(commit: str) -> Path:
    """The built checkout of a commit; made where it is missing."""
    named = subprocess.run(["git", "rev-parse", "--short", commit], cwd=ROOT, capture_output=True, text=True)
    if named.returncode:
        raise SystemExit(f"{commit} is no commit of this repository")
    folder = ROOT / "build" / "against" / named.stdout.strip()
    if not folder.exists():
        print(f"checking out {commit} into {folder.relative_to(ROOT)} and building it", flush=True)
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(["git", "worktree", "add", "--detach", str(folder), commit], cwd=ROOT, check=True)
        build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", "--parallel", "2"]
        subprocess.run(build, cwd=folder, check=True)
    return folder


def compared(name: str, ours: Version, theirs: Version, budget: float) -> dict[str, Any]:
    """The ratio of one workload, with the times of both."""
    once = {who: one.ask(prepare=name) for who, one in (("ours", ours), ("other", theirs))}
    refused = {who: one["refused"] for who, one in once.items() if "refused" in one}
    if refused:
        return {"name": name, "refused": refused}
    times = {who: max(1, min(500, round(TURN / max(one["seconds"], 1e-7)))) for who, one in once.items()}
    found: dict[str, list[float]] = {"ours": [], "other": []}
    start = time.perf_counter()
    while len(found["ours"]) < 5 or (len(found["ours"]) < 60 and time.perf_counter() - start < budget):
        turns = [("ours", ours), ("other", theirs)]
        for who, one in turns if len(found["ours"]) % 2 else reversed(turns):
            found[who].append(one.ask(run=times[who])["seconds"])
    ratios = [b / a for a, b in zip(found["ours"], found["other"], strict=True)]
    micro = {who: figure(1e6 * statistics.median(one)) for who, one in found.items()}
    return {"name": name, "ratio": [figure(one) for one in statistics.quantiles(ratios, n=4)], **micro}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the commit to compare with, such as c578060")
    parser.add_argument("--threads", type=int, action="append", help="1, 2 or both; both where it is left out")
    parser.add_argument("--only", action="append", default=[], help="workloads whose name holds this text")
    parser.add_argument("--budget", type=float, default=0.4, help="seconds for each workload")
    parser.add_argument("--store", help="name of the file under benchmarks/results")
    options = parser.parse_args()
    other, rows = checkout(options.commit), []
    for threads in options.threads or [1, 2]:
        ours, theirs = Version(ROOT, threads), Version(other, threads)
        names = [name for name in ours.names if all(text in name for text in options.only)]
        if not names:
            parser.error(f"no workload holds {' and '.join(options.only)}; there are {', '.join(ours.names[:3])}, ...")
        for name in names:
            row = {"threads": threads, **compared(name, ours, theirs, options.budget)}
            rows.append(row)
            told = row.get("refused") or "{1:.2f} ({0:.2f} to {2:.2f})".format(*row["ratio"]) + f", {row['ours']} us"
            print(f"{name} x{threads}: {told}", flush=True)
        if threads == 1 and not options.only:
            memory = {who: one.ask(memory=MEMORY) for who, one in (("ours", ours), ("other", theirs))}
            rows.append({"threads": 1, "name": f"memory of nll {MEMORY}", **memory})
            print(rows[-1], flush=True)
        ours.close()
        theirs.close()
    if options.store:
        head = {"machine": machine(), "commit": options.commit, "command": " ".join(sys.argv[1:])}
        lines = ",\n".join(json.dumps(row) for row in rows)
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{options.store}.json").write_text(f'{json.dumps(head)[:-1]},\n"rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
