"""UD-EWT, part of speech and features: the tables of Goyal et al. 2018 and 2019; see study.py for the command line.

The decoder starts from zeros and looks at the encoder's state of its own position alone, so that an encoder that reads
from left to right hides the rest of the sentence from it.  2,000 training sentences of at most 30 tokens, a beam of 3,
five epochs after a teacher-forced start.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.approximate_inference.tagging import universal
from benchmarks.beams.study import Row, Study, Way, main, shortened, write_columns

LONGEST = 30
SIZES = {"train": 2000, "dev": 400, "test": 1000}
SPEC = """\
labels Word from data(min: 2, unknown: '<unk>')
labels Tag from data
dim T
input word : Word[T]
output y : Tag[T]
net encoder = {encoder}
net decoder = lstm_decoder(hidden: 128, embed: 64, attention: aligned)
sequence y {{ step: decoder, given: encoder(word), normalize: {normalize} }}
infer beam(width: 3)
decode map
train {train}
{data}
"""
DATA = "data conll('train.txt', columns: 'word y', validation: 'dev.txt', test: 'test.txt', unknown: count_wrong)"

_FIRST = "optimizer: adam(lr: 2e-3), epochs: 10, batch: 16, clip: 5, stop: plateau(accuracy, patience: 10, reduce: 3)"
_THEN = "optimizer: adam(lr: {lr}), epochs: 5, batch: 16, clip: 5"
ANNEALED, CONSTANT = "alpha: 1 -> 10, anneal: exponential", "alpha: 1"


def searched(objective: str, alpha: str, cost: str = "hamming", lr: str = "3e-4") -> str:
    return f"{objective} {{ cost: {cost}, infer: relaxed_beam(width: 3, {alpha}), {_THEN.format(lr=lr)} }}"


ROWS = {
    "ce": Row(f"teacher_forcing {{ {_FIRST} }}"),
    "l2": Row(f"self_normalized {{ weight: 0.1, {_FIRST} }}"),
    "ce_longer": Row(f"teacher_forcing {{ {_THEN.format(lr='3e-4')} }}", "ce"),
    "local_ce": Row(searched("direct_loss", ANNEALED), "ce"),
    "global_ce": Row(searched("direct_loss", ANNEALED), "ce", "global"),
    "local_l2": Row(searched("direct_loss", ANNEALED), "l2"),
    "global_l2": Row(searched("direct_loss", ANNEALED), "l2", "global"),
    "direct_constant": Row(searched("direct_loss", CONSTANT), "ce", only=("forward",)),
    "hinge_annealed": Row(searched("beam_hinge", ANNEALED), "ce", only=("forward",)),
    "hinge_count": Row(searched("beam_hinge", ANNEALED, "hamming(normalize: false)"), "ce", only=("forward",)),
    "hinge_constant": Row(searched("beam_hinge", CONSTANT), "ce", only=("forward",)),
}
WAYS = {
    "greedy": Way("greedy"),
    "beam": Way("beam(width: 3)"),
    "soft": Way("relaxed_beam(width: 3, alpha: 10)"),
    "beam of raw scores": Way("beam(width: 3)", "global", "ce|l2|ce_longer"),
}


def prepare(root: Path, out: Path) -> None:
    for part, count in SIZES.items():
        found = list(universal(root / "ud_ewt" / f"{part}.conllu.gz"))
        write_columns(out / f"{part}.txt", shortened(found, LONGEST, count))


TAGGING = Study(
    name="tagging",
    spec=SPEC,
    data=DATA,
    variants={
        "forward": {"encoder": "lstm(hidden: 128, embed: 100, dropout: 0.3)"},
        "both": {"encoder": "blstm(hidden: 64, embed: 100, dropout: 0.3)"},
    },
    rows=ROWS,
    ways=WAYS,
    metric="accuracy",
    prepare=prepare,
)

if __name__ == "__main__":
    main(TAGGING)
