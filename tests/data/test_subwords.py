"""Vocabularies of pieces: merges learnt from training, words divided and joined again, frozen as data."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import energyml as em
from energyml.data import Vocabulary, load_vocabularies, save_vocabularies
from energyml.data.problems import DataError
from energyml.data.subwords import Divider, learned
from energyml.diagnostics import EnergyError
from energyml.metrics.words import BEGIN, joined
from tests.data.specs import load
from tests.train.test_commands import energyml

WORDS = Counter({"low": 5, "lower": 2, "newest": 6, "widest": 3, "new": 4, "aaaa": 3})
SPEC = """
labels Source from data(subwords: {size}{more})
labels Target from data(subwords: 12, end: '</s>')
dim S
dim T free <= 30
input source : Source[S]
output y : Target[T]
net encoder = blstm(hidden: 4)
net decoder = lstm_decoder(hidden: 4, attention: bahdanau)
sequence y {{ step: decoder, given: encoder(source), normalize: local, end: '</s>' }}
infer beam(width: 2)
train teacher_forcing {{ epochs: 1, batch: 2 }}
"""
PAIRS = {"a.de": "der hund\nder hof\nein hund\n", "a.en": "the dog\nthe yard\na dog\n"}
READER = "pairs('a.de', 'a.en', validation: 0)"


def slowly_learned(counts: Counter[str], merges: int) -> list[tuple[str, str]]:
    """Sennrich et al. 2016, figure 1: all pairs are counted again for every merge."""
    words = {word: [BEGIN, *word] for word in counts}
    found = []
    for _ in range(merges):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in words.items():
            for pair in pairwise(pieces):
                pairs[pair] += counts[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] < 2:
            break
        found.append(best)
        divider = Divider(found)
        words = {word: divider.pieces(word) for word in words}
    return found


@pytest.mark.parametrize("merges", [0, 1, 5, 9, 100])
def test_the_most_frequent_pair_is_merged_first(merges: int) -> None:
    alphabet = {BEGIN, *"".join(WORDS)}
    pieces, found = learned(WORDS, len(alphabet) + merges)
    assert list(found) == slowly_learned(WORDS, merges)
    assert alphabet <= set(pieces) and len(pieces) <= len(alphabet) + merges
    divider = Divider(found)
    again: Counter[str] = Counter()
    for word, count in WORDS.items():
        assert set(divider.pieces(word)) <= set(pieces)
        again.update({piece: count * number for piece, number in Counter(divider.pieces(word)).items()})
    assert +pieces == again  # training's own words are divided as they were when the merges were learnt


@pytest.mark.parametrize("size", [3, 14, 30, 1000])
def test_words_survive_being_divided(size: int) -> None:
    vocabulary = Vocabulary.from_counts("Word", WORDS, {"subwords": size, "end": "</s>", "unknown": "<unk>"})
    assert len(vocabulary) <= size + 2
    for words in (["low", "newer", "wow"], ["zebra"], ["a"], []):  # known, made of known pieces, and new characters
        pieces = vocabulary.divided(words)
        assert all(piece is not None for piece in pieces)
        assert vocabulary.joined([str(piece) for piece in pieces]) == words
    assert vocabulary.joined([*map(str, vocabulary.divided(["low"])), "</s>"]) == ["low", "</s>"]
    assert vocabulary.divided([f"a{BEGIN}b", None]) == [*vocabulary.divided(["a_b"]), None]


def test_pieces_that_begin_no_word_still_make_one() -> None:
    assert joined(["er", f"{BEGIN}lo", "w", BEGIN, "x"]) == ["er", "low", "x"]
    assert joined([BEGIN]) == []


def test_rare_characters_are_no_pieces() -> None:
    vocabulary = Vocabulary.from_counts("Word", {"aab": 5, "aac": 1}, {"subwords": 50, "min": 2, "unknown": "?"})
    assert "c" not in vocabulary and f"{BEGIN}aab" in vocabulary
    assert vocabulary.numbers(one for one in vocabulary.divided(["aac"]) if one)[-1] == -1


def test_sequences_are_as_long_as_their_pieces() -> None:
    data = load(SPEC.format(size=12, more=""), READER, PAIRS)
    source, target = data.vocabularies["Source"], data.vocabularies["Target"]
    assert data.train is not None and source.merges and len(source) <= 12 and len(target) <= 13
    batch = data.train.batch()
    for row, (german, english) in enumerate(zip(*(PAIRS[name].splitlines() for name in PAIRS), strict=True)):
        pieces = [one for one in source.divided(german.split()) if one]
        assert batch.tensors["source"][row, : len(pieces)].tolist() == list(source.numbers(pieces))
        assert int(batch.lengths["S"][row]) == len(pieces)
        assert target.joined(target.spell(batch.gold["y"][row].tolist())) == english.split()


def test_bleu_is_of_words() -> None:
    pytest.importorskip("sacrebleu")
    data = load(SPEC.format(size=12, more=""), READER, PAIRS)
    assert data.train is not None
    batch, target = data.train.batch(), data.vocabularies["Target"]
    metric = data.train.metric("bleu", "y")
    metric.update(batch.gold["y"], batch.gold["y"])
    assert metric.details()["precision_1"] == 1.0
    # the same words in other pieces are the same words
    spelt = list(target.numbers(one for word in ("the", "dog") for one in (BEGIN, *word)))
    other = torch.full_like(batch.gold["y"][:1], -1)
    other[0, : len(spelt) + 1] = torch.tensor([*spelt, target.number("</s>")])
    assert not torch.equal(other, batch.gold["y"][:1])
    metric.reset()
    metric.update(other, batch.gold["y"][:1])
    assert metric.details()["precision_1"] == 1.0 and metric.details()["length_ratio"] == 1.0


def test_they_survive_a_file_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    data = load(SPEC.format(size=12, more=""), READER, PAIRS)
    save_vocabularies(tmp_path / "v.json", data.vocabularies)
    again = load_vocabularies(tmp_path / "v.json")
    assert again == data.vocabularies
    frozen = load(SPEC.format(size=12, more=""), READER, PAIRS, vocabularies=again)
    assert frozen.train is not None and data.train is not None
    assert torch.equal(frozen.train.batch().gold["y"], data.train.batch().gold["y"])
    for wrong in ("ab", [["a"]], [["a", 1]]):
        with pytest.raises(EnergyError, match="no pairs of texts"):
            Vocabulary.from_json({"name": "W", "labels": ["a"], "merges": wrong})
    with pytest.raises(DataError, match="does not say how words are divided"):
        load(SPEC.format(size=12, more=""), READER, PAIRS, vocabularies={"Source": ["a", "b"]})


def test_where_pieces_cannot_be() -> None:
    with pytest.raises(em.SpecError, match="`most` takes nothing beside `subwords`"):
        load(SPEC.format(size=12, more=", most: 3"), READER, PAIRS)
    tagger = (
        "labels Word from data(subwords: 9)\nlabels Tag from data\ndim T\ninput word : Word[T]\noutput y : Tag[T]\n"
        "net f = embedding(out: Tag)\nfactor unary [t in T] (y[t]) = f(word)[t]\n"
    )
    with pytest.raises(DataError, match="subwords change how long `T` is, and `y` runs over it too"):
        load(tagger, "conll('t', columns: 'word y', validation: 0)", {"t": "a X\n\n"})
    single = tagger.replace("word : Word[T]", "word : Word").replace("f(word)[t]", "f(word)")
    with pytest.raises(DataError, match="subwords divide a sequence of words"):
        load(single, "jsonl('t', validation: 0)", {"t": '{"word": "a", "y": ["X"]}\n'})


def test_runs_keep_them_and_predict_words(tmp_path: Path) -> None:
    for name, text in PAIRS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    text = SPEC.format(size=12, more=", unknown: '?'") + f"data {READER}\n"
    (tmp_path / "s.energy").write_text(text, encoding="utf-8")
    run = tmp_path / "run"
    done = energyml("train", tmp_path / "s.energy", "--root", tmp_path, "--out", run, "--quiet")
    assert done.returncode == 0, done.stderr
    (tmp_path / "new.de").write_text("der hundehof\nein zwerg\n", encoding="utf-8")
    told = energyml("predict", run, tmp_path / "new.de")
    assert told.returncode == 0, told.stderr
    answers = [json.loads(line)["y"] for line in told.stdout.splitlines()]
    assert len(answers) == 2 and not any(BEGIN in word for answer in answers for word in answer)
