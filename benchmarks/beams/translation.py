"""Multi30k from German to English: Tables 1, 4, 5 and 6 of Goyal et al. 2019; see study.py for the command line.

The stand-in for IWSLT14: captions of 13 words on average, so that nothing can be said about long sentences.  Words in
lower case, attention by Bahdanau, a beam of 3.  Search-aware training sees a part of the pairs of its start.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from benchmarks.beams.study import Row, Study, Way, main

LONGEST = 13
SIZES = {"train": 8_000, "small": 1_000, "val": 200, "test": 500}
SPEC = """\
labels Source from data(min: 3, unknown: '<unk>')
labels Target from data(min: 3, unknown: '<unk>', end: '</s>')
dim S
dim T free <= 40
input source : Source[S]
output y : Target[T]
net encoder = blstm(hidden: {half}, embed: {hidden}, dropout: 0.2)
net decoder = lstm_decoder(hidden: {hidden}, embed: {hidden}, attention: bahdanau)
sequence y {{ step: decoder, given: encoder(source), normalize: {normalize}, end: '</s>' }}
infer beam(width: 3)
decode map
train {train}
{data}
"""
_DATA = "data pairs('{0}.de', '{0}.en', validation: 'val', test: 'test', split: words, lower: true)"
_FIRST = "optimizer: adam(lr: 3e-3), epochs: 6, batch: 32, clip: 5"
_THEN = "optimizer: adam(lr: 3e-4), epochs: 2, batch: 16, clip: 5"
_SEARCHED = f"direct_loss {{ infer: relaxed_beam(width: 3, alpha: 1 -> 10, anneal: exponential), {_THEN} }}"
_SMALL = _DATA.format("small")

ROWS = {
    "ce": Row(f"teacher_forcing {{ {_FIRST} }}"),
    "l2": Row(f"self_normalized {{ weight: 0.1, {_FIRST} }}"),
    "local_ce": Row(_SEARCHED, "ce", data=_SMALL),
    "global_ce": Row(_SEARCHED, "ce", "global", data=_SMALL),
    "local_l2": Row(_SEARCHED, "l2", data=_SMALL),
    "global_l2": Row(_SEARCHED, "l2", "global", data=_SMALL),
    "ce_longer": Row(f"teacher_forcing {{ {_THEN} }}", "ce", data=_SMALL),
}
WAYS = {
    "greedy": Way("greedy"),
    "beam": Way("beam(width: 3)"),
    "soft": Way("relaxed_beam(width: 3, alpha: 10)", rows="ce|l2|(local|global)_.*"),
    "beam of raw scores": Way("beam(width: 3)", "global", "ce|l2|ce_longer"),
}


def prepare(root: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    names = {"train": "train", "small": "train", "val": "val", "test": "test_2016_flickr"}
    for part, name in names.items():
        sides = [_lines(root / "multi30k" / f"{name}.{side}.gz") for side in ("de", "en")]
        pairs = list(zip(*sides, strict=True))
        if name == "train":
            pairs = [pair for pair in pairs if max(len(side.split()) for side in pair) <= LONGEST]
        for number, side in enumerate(("de", "en")):
            text = "".join(f"{pair[number]}\n" for pair in pairs[: SIZES[part]])
            (out / f"{part}.{side}").write_text(text, encoding="utf-8")


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return [line.strip() for line in stream]


TRANSLATION = Study(
    name="translation",
    spec=SPEC,
    data=_DATA.format("train"),
    variants={"bahdanau": {"hidden": "128", "half": "64"}},
    rows=ROWS,
    ways=WAYS,
    metric="bleu",
    prepare=prepare,
)

if __name__ == "__main__":
    main(TRANSLATION)
