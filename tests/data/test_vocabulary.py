"""Vocabularies: made from training alone, ordered, saved and read."""

import json
from pathlib import Path

import pytest

from energyml.data import Vocabulary, load_vocabularies, save_vocabularies
from energyml.diagnostics import EnergyError
from tests.data.specs import SENTENCES, TAGGER, TRANSLATION, load

COUNTS = {"b": 3, "a": 3, "c": 1, "d": 2}


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({}, ["a", "b", "d", "c"]),
        ({"min": 2}, ["a", "b", "d"]),
        ({"most": 1}, ["a"]),
        ({"min": 2, "unknown": "<unk>", "pad": "<pad>", "end": "</s>"}, ["a", "b", "d", "<unk>", "<pad>", "</s>"]),
        ({"unknown": "c"}, ["a", "b", "d", "c"]),  # a label that the data has itself is not doubled
    ],
)
def test_the_most_frequent_come_first_and_extras_last(options: dict[str, object], labels: list[str]) -> None:
    assert list(Vocabulary.from_counts("Word", COUNTS, options).labels) == labels


def test_only_training_counts() -> None:
    reader = "conll('t', columns: 'word y', validation: 'v')"
    data = load(TAGGER, reader, {"t": SENTENCES, "v": "zebra N\nzebra N\n"})
    assert "zebra" not in data.vocabularies["Word"]
    assert data.validation is not None
    assert data.validation.batch().tensors["word"].tolist() == [[1, 1]]


def test_frozen_vocabularies_stay_as_they_are() -> None:
    first = load(TAGGER, "conll('t', columns: 'word y', validation: 0)", {"t": SENTENCES})
    again = load(
        TAGGER,
        "conll('t', columns: 'word y', validation: 0)",
        {"t": "dogs N\ndogs N\nthe N\n"},
        vocabularies=first.vocabularies,
    )
    assert again.vocabularies == first.vocabularies and again.train is not None
    assert again.train.batch().tensors["word"].tolist() == [[1, 1, 0]]


def test_vocabularies_survive_a_file(tmp_path: Path) -> None:
    data = load(TRANSLATION, "pairs('a.de', 'a.en', validation: 0)", {"a.de": "süß \u2028\n", "a.en": "sweet\n"})
    save_vocabularies(tmp_path / "v.json", data.vocabularies)
    assert load_vocabularies(tmp_path / "v.json") == data.vocabularies


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "not a JSON file"),
        ("[]", "an object of objects"),
        ('{"W": {"name": "W"}}', "list of `labels`"),
        ('{"W": {"name": "W", "labels": []}}', "list of `labels`"),
        ('{"W": {"name": "W", "labels": ["a", "a"]}}', "a label twice"),
        ('{"W": {"name": "W", "labels": ["a", 1]}}', "no text"),
        ('{"W": {"name": "W", "labels": ["a"], "unknown": "b"}}', "lacks its `unknown` label `b`"),
    ],
)
def test_files_that_hold_no_vocabularies(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "v.json").write_text(text, encoding="utf-8")
    with pytest.raises(EnergyError, match=part.replace("(", r"\(")):
        load_vocabularies(tmp_path / "v.json")


def test_a_missing_file_of_vocabularies(tmp_path: Path) -> None:
    with pytest.raises(EnergyError, match="no such file"):
        load_vocabularies(tmp_path / "none.json")


def test_spelling_stops_at_the_end_label() -> None:
    vocabulary = Vocabulary("Target", ("a", "b", "</s>"), end="</s>")
    assert vocabulary.spell([1, -1, 0, 2, 1]) == ["b", "a"]
    assert json.loads(json.dumps(vocabulary.as_json()))["end"] == "</s>"


def test_rare_output_labels_are_trained_as_unknown_and_judged_as_wrong() -> None:
    # Supertagging keeps frequent labels and maps the rest to one label that is never right.
    spec = TAGGER.replace("labels Tag from data", "labels Tag from data(min: 2, unknown: '*')")
    data = load(spec, "conll('t', columns: 'word y', validation: 0)", {"t": "a N\na N\na V\n"})
    assert data.train is not None and not data.notes
    batch = data.train.batch()
    assert batch.tensors["y"].tolist() == [[0, 0, 1]] and batch.gold["y"].tolist() == [[0, 0, 2]]
    accuracy = data.train.metric("accuracy", "y")
    accuracy.update(batch.tensors["y"], batch.gold["y"])
    assert accuracy.value() == pytest.approx(2 / 3)
