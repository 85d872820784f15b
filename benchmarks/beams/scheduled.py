"""Scheduled sampling on Twitter part-of-speech: Tables 3.1 and 3.2 of Goyal's thesis; study.py has the command line.

The stand-in for German named entities, at the thesis's size: an encoder in both directions, 64 units, fixed attention.
Every row starts from random weights.  Own labels are the best ones or samples; fed as they are (`hard`), or as a peaked
softmax with a constant or an annealed alpha.  The last rows vary how fast gold labels give way: k = 3 over 12 epochs
ends where the thesis's k = 10 ends over 50.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.approximate_inference.tagging import columns
from benchmarks.beams.study import Row, Study, Way, main, write_columns

SPEC = """\
labels Word from data(min: 2, unknown: '<unk>')
labels Tag from data
dim T
input word : Word[T]
output y : Tag[T]
net encoder = {encoder}
net decoder = lstm_decoder(hidden: 64, embed: 32, attention: aligned)
sequence y {{ step: decoder, given: encoder(word), normalize: {normalize} }}
infer greedy
decode map
train {train}
{data}
"""
DEV = 250
DATA = "data conll('train.txt', columns: 'word y', validation: 'dev.txt', test: 'test.txt', unknown: count_wrong)"
_STAGE = "optimizer: adam(lr: 5e-3), epochs: 12, batch: 32, clip: 5"
HARD, FIXED, ANNEALED = "relax: hard", "relax: fixed, alpha: 5", "relax: annealed, alpha: 1 -> 10"


def mixed(choose: str, relax: str, mixing: str = "inverse_sigmoid(k: 3)") -> Row:
    return Row(f"scheduled_sampling {{ choose: {choose}, {relax}, mixing: {mixing}, {_STAGE} }}")


ROWS = {
    "ce": Row(f"teacher_forcing {{ {_STAGE} }}"),
    "greedy_hard": mixed("greedy", HARD),
    "greedy_fixed": mixed("greedy", FIXED),
    "greedy_annealed": mixed("greedy", ANNEALED),
    "sample_hard": mixed("sample", HARD),
    "sample_fixed": mixed("sample", FIXED),
    "sample_annealed": mixed("sample", ANNEALED),
    "annealed_k100": mixed("greedy", ANNEALED, "inverse_sigmoid(k: 100)"),
    "annealed_k10": mixed("greedy", ANNEALED, "inverse_sigmoid(k: 10)"),
    "annealed_k1": mixed("greedy", ANNEALED, "inverse_sigmoid(k: 1)"),
    "annealed_always": mixed("greedy", ANNEALED, "always"),
}


def prepare(root: Path, out: Path) -> None:
    folder = root / "twitter_pos"
    known = [*columns(folder / "oct27.train.gz", 0, 1), *columns(folder / "oct27.dev.gz", 0, 1)]
    write_columns(out / "train.txt", known)
    write_columns(out / "dev.txt", list(columns(folder / "oct27.test.gz", 0, 1))[:DEV])
    write_columns(out / "test.txt", list(columns(folder / "daily547.conll.gz", 0, 1)))


SCHEDULED = Study(
    name="scheduled",
    spec=SPEC,
    data=DATA,
    variants={"both": {"encoder": "blstm(hidden: 64, embed: 64, dropout: 0.3)"}},
    rows=ROWS,
    ways={"greedy": Way("greedy"), "beam": Way("beam(width: 3)")},
    metric="accuracy",
    prepare=prepare,
)

if __name__ == "__main__":
    main(SCHEDULED)
