"""The real data sets, where they are: counts of each split as published."""

import os
from pathlib import Path

import pytest

from energyml.data import Data, load_data
from energyml.diagnostics import Source

ROOT = Path(__file__).resolve().parent.parent.parent
DATA = Path(os.environ.get("ENERGYML_DATA", ROOT.parent / "shared" / "data"))


def load(example: str, folder: str, reader: str | None, root: Path = DATA, changed: tuple[str, str] = ("", "")) -> Data:
    if not (DATA / folder).is_dir():
        pytest.skip(f"{DATA / folder} is not here")
    text = (ROOT / "examples" / f"{example}.energy").read_text(encoding="utf-8").replace(*changed)
    return load_data(Source(f"{example}.energy", text), root=root, using=reader)


def counts(data: Data) -> list[int]:
    return [len(one or ()) for one in (data.train, data.validation, data.test)]


def cells(data: Data, dim: str = "T") -> list[int]:
    return [int(one.sizes(dim).sum()) for one in (data.train, data.validation, data.test) if one is not None]


def test_handwritten_words() -> None:
    data = load("ocr", "ocr", None, DATA / "ocr")  # the example's own line
    assert sum(counts(data)) == 6877 and sum(cells(data)) == 52152
    assert counts(data)[1:] == [626, 704] and cells(data)[1:] == [4617, 5375]


def test_chunking() -> None:
    reader = "conll('conll2000/train.txt', columns: 'word pos y', validation: 0.2, test: 'conll2000/test.txt')"
    data = load("chunking", "conll2000", reader)
    assert counts(data) == [7149, 1787, 2012]
    assert sum(cells(data)[:2]) == 211727 and cells(data)[2] == 47377


def test_chunking_with_labels_from_data_says_which_it_lacks() -> None:
    reader = "conll('conll2000/train.txt', columns: 'word y', validation: 0, test: 'conll2000/test.txt')"
    reader = reader.replace("'word y'", "'word _ y'")
    data = load("tagger", "conll2000", reader)
    assert len(data.labels["Tag"]) == 22
    assert data.notes == ["test: 2 cells have labels of `y` that training never saw (`I-LST`): counted as wrong"]


def test_tweets() -> None:
    parts = "validation: 'twitter_pos/oct27.dev', test: 'twitter_pos/oct27.test'"
    data = load("tagger", "twitter_pos", f"conll('twitter_pos/oct27.train', columns: 'word y', {parts})")
    assert counts(data) == [1000, 327, 500] and len(data.labels["Tag"]) == 25


def test_universal_dependencies() -> None:
    parts = "validation: 'ud_ewt/dev.conllu', test: 'ud_ewt/test.conllu'"
    data = load("tagger", "ud_ewt", f"conllu('ud_ewt/train.conllu', labels: upos_feats, {parts})")
    assert counts(data) == [12544, 2001, 2077] and len(data.labels["Tag"]) == 321
    assert [note.split(" have")[0] for note in data.notes[:2]] == ["validation: 19 cells", "test: 9 cells"]
    assert "`Tag` has 65 labels that occur once in training" in data.notes[2] and len(data.notes) == 3


def test_parallel_sentences() -> None:
    options = "longest: 50, split: words, lower: true, validation: 'multi30k/val', test: 'multi30k/test_2016_flickr'"
    data = load("translation", "multi30k", f"pairs('multi30k/train.de', 'multi30k/train.en', {options})")
    assert counts(data) == [29000, 1014, 1000]


def test_horses() -> None:
    pytest.importorskip("PIL")
    reader = "images('horses/rgb', 'horses/figure_ground', size: 64, validation: 50, folds: 5)"
    data = load("horses", "horses", reader)
    assert counts(data) == [222, 50, 56] and data.train is not None
    share = float((data.train.batch().tensors["y"] == 1).double().mean())
    assert 0.1 < share < 0.5  # a horse fills a part of a photograph
