"""The OCR block of Table 2, and what Figure 1 and Tables 3 and 4 need; see study.py for the command line.

`joint_long` is joint training with as many epochs as the three stages take together.  `stage_tuned` has a learning rate
for each stage: ten times the usual one for the table of pairs, a tenth for everything together.  `joint_pairs` is joint
training in which the table of pairs moves ten times as fast: it is written as ten times a smaller one.  Figure 1a is
`constant` with several `--alpha`; Table 3 is `--optimizer sgd`; Table 4 are the temperature procedures.
"""

from __future__ import annotations

from benchmarks.scaling_matters.study import EXAMPLES, FASTER_PAIRS, Study, main

OCR = Study(
    name="ocr",
    spec=EXAMPLES / "ocr.energy",
    metric="averaged_accuracy",
    rows={
        "marginal_ce": ("marginal_ce", "exact"),
        "ssvm": ("ssvm", "exact"),
        "nll": ("nll", "exact"),
        "marginal_ce_mf": ("marginal_ce", "mean_field"),
    },
    procedures={
        "unary": ("balance=none", "without=y.pair"),
        "joint": ("balance=none",),
        "joint_pairs": ("balance=none",),
        "joint_long": ("balance=none", "epochs=80", "stop=plateau(averaged_accuracy, patience: 80, reduce: 10)"),
        "stage": ("balance=none", "procedure=staged()"),
        "stage_tuned": (
            "balance=none",
            "1.without=y.pair",
            "2.only=W",
            "2.optimizer=adam(lr: 1e-2)",
            "3.optimizer=adam(lr: 1e-4)",
        ),
        "online": ("balance=online(subset: 2000)",),
        "offline": ("balance=offline(alpha: {alpha})",),
        "offline_reg": ("balance=offline(alpha: {alpha}, regularized: true, weight: 0.1)",),
        "constant": ("balance=constant(alpha: {alpha})",),
        "temperature": ("balance=temperature(alpha: {alpha})",),
        "temperature_norm": ("balance=temperature(alpha: {alpha}, normalize: true)",),
        "joint_sigmoid": ("balance=none",),
    },
    stop="plateau(averaged_accuracy, patience: 7, reduce: 3, threshold: 1e-3)",
    epochs=60,
    batch=16,
    stages={"stage_tuned": "marginal_ce then {objective} then {objective}"},
    edits={
        "joint_sigmoid": (("lenet5(out: Letter)", "lenet5(out: Letter, activation: sigmoid)"),),
        "joint_pairs": FASTER_PAIRS,
    },
)

if __name__ == "__main__":
    main(OCR)
