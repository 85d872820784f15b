"""Chunking on CoNLL-2000, the second block of Table 2; see study.py for the command line.

Word vectors are learned, or GloVe's in place of SENNA's where `--vectors FILE` names them.  The plain procedures train
the model of two linear layers, `blstm_` ones a BiLSTM at a size that two cores can train.  `joint_pairs` is joint
training in which the table of pairs moves ten times as fast, as for OCR.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from benchmarks.scaling_matters.study import EXAMPLES, FASTER_PAIRS, Study, main

_BODY = "  hidden: 300,\n  layers: 2\n"
_LINEAR = (_BODY, "  hidden: 300,\n  body: linear\n")

CHUNKING = Study(
    name="chunking",
    spec=EXAMPLES / "chunking.energy",
    metric="f1",
    rows={"marginal_ce": ("marginal_ce", "exact"), "nll": ("nll", "exact")},
    procedures={
        "unary": ("balance=none", "without=y.pair"),
        "joint": ("balance=none",),
        "joint_pairs": ("balance=none",),
        "stage": ("balance=none", "procedure=staged()"),
        "online": ("balance=online(subset: 3000)",),
        "blstm_unary": ("balance=none", "without=y.pair"),
        "blstm_joint": ("balance=none",),
        "blstm_online": ("balance=online(subset: 3000)",),
    },
    stop="plateau(f1, patience: 3, reduce: 1, threshold: 1e-3)",
    epochs=30,
    batch=32,
    edits={
        **dict.fromkeys(("unary", "joint", "stage", "online"), (_LINEAR,)),
        "joint_pairs": (_LINEAR, *FASTER_PAIRS),
        **dict.fromkeys(("blstm_unary", "blstm_joint", "blstm_online"), ((_BODY, "  hidden: 150,\n  layers: 1\n"),)),
    },
)

if __name__ == "__main__":
    study = CHUNKING
    if "--vectors" in sys.argv:
        at = sys.argv.index("--vectors")
        file = sys.argv[at + 1]
        del sys.argv[at : at + 2]
        study = replace(study, text=(("  pos: 10,\n", f"  pos: 10,\n  vectors: '{file}',\n"),))
    main(study)
