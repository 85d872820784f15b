"""Weizmann horses at 64 x 64, the third block of Table 2; see study.py for the command line.

`--root` is the folder that holds `horses/`.  The unary baseline is the field without couplings.
"""

from __future__ import annotations

from benchmarks.scaling_matters.study import EXAMPLES, Study, main

HORSES = Study(
    name="horses",
    spec=EXAMPLES / "horses.energy",
    metric="jaccard",
    rows={"marginal_ce": ("marginal_ce", "exact")},
    procedures={
        "unary": ("balance=none", "without=s.pair"),
        "joint": ("balance=none",),
        "stage": ("balance=none", "procedure=staged()"),
        "online": ("balance=online(subset: 100)",),
    },
    stop="plateau(jaccard, patience: 13, reduce: 5, threshold: 1e-3)",
    epochs=60,
    batch=4,
)

if __name__ == "__main__":
    main(HORSES)
