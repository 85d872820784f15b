"""The demonstration runs, learns something, and shows three backends; its words come from a file that is checked."""

import hashlib
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from energyml import demo, demo_words
from energyml.data import load_data
from energyml.demo_words import MEMBER, NoWords, drawn_words, letter_data, wheel_words
from energyml.diagnostics import Source


def test_the_demo_learns_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "VALIDATION", 10)
    said: list[str] = []
    accuracy = demo.run(said.append, words=drawn_words(340), training=300, test=30)
    text = "\n".join(said)
    assert list(accuracy) == ["exact", "mean_field", "bp"]
    assert accuracy["exact"] > 0.5  # one letter in eight by chance
    assert accuracy["bp"] == accuracy["exact"]  # a chain is a tree
    assert "chain of order 1" in text and "gold \\ predicted" in text
    rows = {line.split()[0]: line.split() for line in said if line.startswith(("  written", "  exact", "  bp"))}
    assert rows["exact"][1:7] == rows["bp"][1:7] and len(rows["written"]) == 7


def test_without_a_registry_letters_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise NoWords("no network")

    monkeypatch.setattr(demo, "registry_words", gone)
    said: list[str] = []
    words = demo._words(said.append, 0)
    assert len(words) == demo.TRAINING + demo.VALIDATION + demo.TEST
    assert "no network" in said[0] and "drawn" in said[0]


def test_a_missing_pip_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_words.sys, "executable", "/nowhere/python")
    with pytest.raises(NoWords, match="pip does not answer"):
        demo_words.registry_words()


def test_words_go_through_the_reader() -> None:
    words = drawn_words(12)
    data = load_data(Source("demo.energy", demo.SPEC), root={"letter.data": letter_data(words, 2, 3)})
    assert data.train is not None and data.validation is not None and data.test is not None
    assert [len(data.train), len(data.validation), len(data.test)] == [7, 2, 3]
    one = data.test[0]
    assert "".join("abcdefghijklmnopqrstuvwxyz"[int(label)] for label in one["y"]) == words[2].text
    assert np.array_equal(one["image"].reshape(-1, 128).numpy(), words[2].pixels)


def wheel_of(folder: Path, content: object) -> tuple[Path, str]:
    path = folder / "words.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, pickle.dumps(content, protocol=2))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_wheel_is_checked_and_nothing_in_it_is_run(tmp_path: Path) -> None:
    content = {"labels": [[2, 0, 19]], "data": [np.eye(3, 128, dtype=np.uint8).tolist()]}
    path, sha256 = wheel_of(tmp_path, content)
    (word,) = wheel_words(path, sha256)
    assert word.text == "cat"
    with pytest.raises(NoWords, match="has the hash"):
        wheel_words(path, "0" * 64)
    path, sha256 = wheel_of(tmp_path, {"labels": print})
    with pytest.raises(NoWords, match="which is no array"):
        wheel_words(path, sha256)
