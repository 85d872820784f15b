"""One cell of a table: ours against every peer, interleaved, after their answers were compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.exact.timing import pairs
from benchmarks.gaussian.cases import Case
from benchmarks.gaussian.ours import Prepared
from benchmarks.gaussian.peers import Refused
from benchmarks.gaussian.results import figure, ratio

AGREE = 1e-4  # relative distance of a peer's solution from ours, where all solve to a residual of 1e-6
AGREE_PER_CONDITION = 1e-6

Contestant = Callable[[Case, str], Prepared]


def measure(
    case: Case, task: str, ours: Prepared, peers: dict[str, Contestant], budget: float, condition: float = 1.0
) -> dict[str, Any]:
    """Ratios by peer with notes, iterations, distances of the answers, and why a peer did not run."""
    found: dict[str, Any] = {"peers": {}, "notes": {}, "iterations": {}, "apart": {}, "refused": {}}
    answer = ours.run().reshape(-1)
    if ours.iterations is not None and (taken := ours.iterations()):
        found["iterations"]["energyml"] = taken[:4]
    for name, contestant in peers.items():
        try:
            peer = contestant(case, task)
        except Refused as reason:
            found["refused"][name] = str(reason)
            continue
        apart = float((peer.run().reshape(-1) - answer).norm() / answer.norm())
        found["apart"][name] = figure(apart)
        if not apart <= max(AGREE, AGREE_PER_CONDITION * condition):
            found["refused"][name] = f"its answer is {apart:.1g} away from ours"
            continue
        if peer.iterations is not None and (taken := peer.iterations()):
            found["iterations"][name] = taken[:4]
        found["notes"][name] = peer.note
        found["peers"][name] = ratio(pairs(ours.run, peer.run, budget))
    return found


def shown(name: str, found: dict[str, Any]) -> str:
    """A line to watch while it runs."""
    parts = [f"{peer} {one[1]:.2f} ({one[3]:.2f} / {one[4]:.2f} ms)" for peer, one in found["peers"].items()]
    return f"{name}: {', '.join(parts)}; iterations {found['iterations']}"
