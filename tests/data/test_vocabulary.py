"""Vocabularies: made from training alone, ordered, saved and read."""

import json
from pathlib import Path

import pytest
import torch

import energyml as em
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


def test_labels_of_outputs_that_occur_once_are_named() -> None:
    """A misspelt label becomes one of its own; words that occur once are as words are."""
    reader = "conll('t', columns: 'word y', validation: 0)"
    once = load(TAGGER, reader, {"t": SENTENCES + "\ncats NN\ncow  O\n"}).notes
    assert any("`Tag` has 2 labels that occur once in training (`NN`, `O`)" in note for note in once)
    assert any("`labels Tag = {...}`" in note for note in once) and not any("`Word`" in note for note in once)
    single = load(TAGGER, reader, {"t": SENTENCES + "\ncats NN\n"}).notes
    assert any("`Tag` has 1 label that occurs once in training (`NN`)" in note for note in single)
    assert not any("once" in note for note in load(TAGGER, reader, {"t": SENTENCES}).notes)
    frequent = TAGGER.replace("labels Tag from data", "labels Tag from data(min: 2, unknown: 'X')")
    assert not any("once" in note for note in load(frequent, reader, {"t": SENTENCES + "\ncats NN\n"}).notes)


def test_a_listed_set_takes_no_other_label_from_training() -> None:
    listed = TAGGER.replace("labels Tag from data", "labels Tag = {D, N, V}")
    with pytest.raises(EnergyError, match=r"E0807.*`VV` is no label of `Tag`"):
        load(listed, "conll('t', columns: 'word y', validation: 0)", {"t": SENTENCES + "\nruns VV\n"})


def test_labels_from_data_fit_the_scheme() -> None:
    spec = TAGGER + "scheme y bio\n"
    reader = "conll('t', columns: 'word y', validation: 0)"
    wrong = load(spec, reader, {"t": SENTENCES})
    with pytest.raises(EnergyError, match=r"E0320.*the label `N` of `Tag` does not fit the scheme `bio`") as refused:
        em.compile(spec, labels=wrong.labels)
    assert "note: nor do `D` and `V`" in str(refused.value) and str(refused.value).count("E0320") == 1
    right = load(spec, reader, {"t": SENTENCES.replace(" D", " O").replace(" N", " B-N").replace(" V", " I-N")})
    made = em.compile(spec, labels=right.labels, seed=0)
    names = made.infer(word=torch.zeros(1, 3, dtype=torch.long)).n_best(27).decode("y")
    assert not any(one[0] == "I-N" for one in names[0] if one)


def test_end_labels_and_constraints_know_the_labels_from_data() -> None:
    sets = {"Source": ["a"], "Target": ["b", "c"]}
    with pytest.raises(EnergyError, match=r"E0313.*`</s>` is not a label of `Target`"):
        em.compile(TRANSLATION, labels=sets)
    em.compile(TRANSLATION, labels={**sets, "Target": ["b", "</s>"]})
    labels = {"Word": ["a"], "Tag": ["D", "N"]}
    for rule in ("y[0] = Z", "y[0] ~ 'Z*'", "y[0] != Z"):
        with pytest.warns(UserWarning, match="no label of `Tag` is like that"):
            em.compile(TAGGER + f"forbid {rule}\n", labels=labels)
    em.compile(TAGGER + "forbid y[0] ~ 'N*'\n", labels=labels)


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (["D", "N", "D"], "`D` occurs twice"),
        ([], "there are none"),
        ("DN", "a list of texts, found 'DN'"),
        ([0, 1], "a list of texts"),
    ],
)
def test_labels_that_are_no_set_are_refused(labels: list[str], problem: str) -> None:
    with pytest.raises(EnergyError, match=f"E0517.*`Tag` cannot be used: .*{problem}"):
        em.compile(TAGGER, labels={"Word": ["a"], "Tag": labels})


def test_listed_labels_are_not_replaced_from_outside() -> None:
    listed = TAGGER.replace("labels Tag from data", "labels Tag = {D, N}")
    em.compile(listed, labels={"Word": ["a"], "Tag": ["D", "N"]})
    with pytest.raises(EnergyError, match=r"E0517.*the spec lists others, or the same in another order"):
        em.compile(listed, labels={"Word": ["a"], "Tag": ["N", "D"]})
