"""CRFsuite through python-crfsuite: Viterbi in C, one chain after another, in float64.

A tagger scores labels by weighted attributes.  With one attribute for each label, of weight 1 for that label, the value
of attribute `a3` at a position is the score of label 3 there.  The library writes models only by training them, so one
is trained for a single step and its weights are then replaced in the file, whose format is that of `crf1d_model.c`.
"""

from __future__ import annotations

import struct
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import pycrfsuite
from torch import Tensor

from benchmarks.exact.contestants import NATIVE, Prepared, Refused
from benchmarks.exact.contestants.torch_crfs import padded
from benchmarks.exact.sizes import VITERBI, Case

_HEADER = struct.Struct("<4sI4s10I")
_FEATURE = struct.Struct("<IIId")  # kind (0 attribute, 1 transition), source, target, weight


@lru_cache
def _skeleton(labels: int) -> bytes:
    """A model of all transitions and one attribute for each label."""
    trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
    trainer.set_params({"feature.possible_transitions": True, "max_iterations": 1, "c2": 1.0})
    names = [str(index) for index in range(labels)]
    trainer.append([{f"a{name}": 1.0} for name in names], names)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        trainer.train(str(path))
        return path.read_bytes()


def _model(trans: Tensor) -> bytes:
    labels = trans.shape[0]
    made = bytearray(_skeleton(labels))
    header = _HEADER.unpack_from(made)
    offset = header[7]  # of the features, behind their chunk's name, size and count
    count = struct.unpack_from("<I", made, offset + 8)[0]
    if count != labels * labels + labels:
        raise Refused(f"the model has {count} features instead of {labels * labels + labels}")
    weights = trans.double().tolist()
    for index in range(count):
        at = offset + 12 + index * _FEATURE.size
        kind, source, target, _ = _FEATURE.unpack_from(made, at)
        # labels and attributes were numbered in the order in which training met them
        _FEATURE.pack_into(made, at, kind, source, target, weights[source][target] if kind else 1.0)
    return bytes(made)


def _items(case: Case) -> list[Any]:
    names = [f"a{label}" for label in range(case.size[2])]
    return [
        pycrfsuite.ItemSequence([dict(zip(names, cell, strict=True)) for cell in one[:end].double().tolist()])
        for one, end in zip(case.unary, case.ends.tolist(), strict=True)
    ]


def _read(case: Case, model: bytes) -> Any:
    """Names of labels as numbers; holds the model, which taggers point into and do not own."""

    def read(found: list[list[str]], held: bytes = model) -> tuple[Tensor, ...]:
        return (padded([[int(name) for name in path] for path in found], case.size[1]),)

    return read


class CrfsuiteTag:
    """`tagger.tag(items)` on items that were converted before."""

    name, kind, whole = "crfsuite", NATIVE, True

    def prepare(self, case: Case, task: str) -> Prepared:
        if task != VITERBI:
            raise Refused("its tagger gives neither log-partitions nor gradients, and marginals one number at a time")
        tagger, model = pycrfsuite.Tagger(), _model(case.trans)
        tagger.open_inmemory(model)
        items = _items(case)
        return Prepared(lambda: [tagger.tag(one) for one in items], _read(case, model))


class CrfsuiteViterbi:
    """`tagger.tag()` alone: each chain has its own tagger whose scores are already set.

    Less than the task: turning the scores of labels into its own table of scores is left out.
    """

    name, kind, whole = "crfsuite viterbi", NATIVE, False

    def prepare(self, case: Case, task: str) -> Prepared:
        if task != VITERBI:
            raise Refused("as crfsuite")
        model = _model(case.trans)
        taggers = []
        for items in _items(case):
            tagger = pycrfsuite.Tagger()
            tagger.open_inmemory(model)
            tagger.set(items)
            taggers.append(tagger)
        return Prepared(lambda: [tagger.tag() for tagger in taggers], _read(case, model))
