"""Pretrained vectors: read where data is, kept in checkpoints, never read by `check`; errors name file and line."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
import torch

import energyml as em
from energyml.data.files import InMemory
from energyml.data.problems import BadData
from energyml.data.vectors import read_vectors
from energyml.driver import check_text, compile_source, read_source
from energyml.loading import bind
from energyml.nets.features import VectorEmbedding
from energyml.train.folder import load_run
from energyml.train.run import Request, train

SPEC = """\
labels Word from data(unknown: '<unk>')
labels Tag = {O, B}
dim T
input word : Word[T]
output y : Tag[T]
net f = NET
param W : real[from: Tag, to: Tag] = normal(0.1)
chain y { unary: f(word), pair: W }
infer exact
train nll { epochs: 1, batch: 4 }
data jsonl('train.jsonl')
"""
BLSTM = "blstm(out: Tag, hidden: 3, embed: 2, vectors: 'small.txt')"
GLOVE = "in 0.5 -1\nlondon 1e-1 2\nnew york 7 8\n"
LABELS = {"Word": ["<unk>", "in", "London", "zebra"]}


def task(folder: Path, net: str = BLSTM, vectors: str | bytes | None = GLOVE) -> Path:
    lines = [{"word": ["in", "London"], "y": ["O", "B"]}, {"word": ["zebra", "in"], "y": ["O", "O"]}]
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines * 4))
    if vectors is not None:
        content = vectors.encode() if isinstance(vectors, str) else vectors
        (folder / "small.txt").write_bytes(content)
    spec = folder / "task.energy"
    spec.write_text(SPEC.replace("NET", net))
    return spec


def embedding(model: em.EnergyModel) -> VectorEmbedding:
    (found,) = (one for one in model.modules() if isinstance(one, VectorEmbedding))
    return found


def test_labels_start_from_their_vectors_and_others_share_one(tmp_path: Path) -> None:
    model = em.load(task(tmp_path), labels=LABELS, seed=0)
    table = embedding(model)
    assert table.known.tolist() == [False, True, True, False]
    assert torch.allclose(table(torch.tensor([1, 2])), torch.tensor([[0.5, -1.0], [0.1, 2.0]]))  # `london` serves
    with torch.no_grad():
        table.missing.copy_(torch.tensor([3.0, 4.0]))
    assert table(torch.tensor([[0, 3, -1]])).tolist() == [[[3.0, 4.0]] * 3]
    model.loss(word=torch.tensor([[1, 0]]), y=torch.tensor([[0, 1]])).backward()
    assert table.missing.grad.abs().sum() > 0 and table.weight.grad[1].abs().sum() > 0


@pytest.mark.parametrize("net", ["embedding(out: Tag, vectors: 'small.txt')", BLSTM])
def test_a_file_may_be_packed_and_have_a_head(tmp_path: Path, net: str) -> None:
    spec = task(tmp_path, net, vectors=None)
    (tmp_path / "small.txt.gz").write_bytes(gzip.compress(f"3 2\n{GLOVE}".encode()))
    assert int(embedding(em.load(spec, labels=LABELS)).known.sum()) == 2


def test_words_of_chars_words() -> None:
    text = """\
labels Char = {a, b}
labels Word = {in, at}
labels Tag = {O, B}
dim T
dim M[T]
input chars : Char[T, M]
input word : Word[T]
output y : Tag[T]
net f = chars_words(out: Tag, chars: 2, words: 2, hidden: 2, vectors: 'package:fake_vectors/small.txt')
factor unary [t in T] (y[t]) = f(chars, word)[t]
"""
    assert not check_text(text).errors  # nothing is read: there is no such package
    with pytest.raises(em.EnergyError, match="there is no package `fake_vectors`"):
        em.compile(text)


def test_a_file_of_an_installed_package_is_found_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "fake_vectors"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('this package was run')\n")
    (package / "data" / "small.txt").write_text(GLOVE)
    monkeypatch.syspath_prepend(tmp_path / "site")
    spec = task(tmp_path, BLSTM.replace("small.txt", "package:fake_vectors/data/small.txt"), vectors=None)
    assert int(embedding(em.load(spec, labels=LABELS)).known.sum()) == 2
    assert "fake_vectors" not in sys.modules
    spec = task(tmp_path, BLSTM.replace("small.txt", "package:fake_vectors/../train.jsonl"), vectors=None)
    with pytest.raises(em.EnergyError, match="the path leaves its package"):
        em.load(spec, labels=LABELS)


def test_a_run_needs_the_file_only_to_begin(tmp_path: Path) -> None:
    spec = task(tmp_path)
    done = train(compile_source(read_source(spec)), Request(out=tmp_path / "run"))
    assert "f: 2 of the 4 labels of `Word` have a vector in small.txt" in done.data.notes
    (tmp_path / "small.txt").unlink()
    model, _ = load_run(tmp_path / "run")
    assert embedding(model).known.tolist() == embedding(done.model).known.tolist()
    given = {"word": torch.tensor([[1, 2, 3]])}
    assert torch.equal(model.infer(**given).log_partition, done.model.eval().infer(**given).log_partition)
    again = train(compile_source(read_source(spec)), Request(out=tmp_path / "run", resume=True))
    assert not [note for note in again.data.notes if "vector" in note]


def test_paths_start_at_the_root_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    spec = task(tmp_path / "data").rename(tmp_path / "task.energy")
    done = train(compile_source(read_source(spec)), Request(root=tmp_path / "data"))
    assert int(embedding(done.model).known.sum()) == 2
    with pytest.raises(em.EnergyError, match=r"small\.txt` cannot be read"):
        bind(compile_source(read_source(spec)), labels=LABELS)


def test_check_never_reads_the_file(tmp_path: Path) -> None:
    assert not check_text(task(tmp_path, vectors=None).read_text()).errors


@pytest.mark.parametrize(
    ("content", "place", "part"),
    [
        ("in 0.5 -1\nlondon 1\n", "small.txt:2", "expected a word and 2 numbers, found 1 numbers"),
        ("in 0.5 -1\nlondon 1 x\n", "small.txt:2", "expected a number, found `x`"),
        ("in 0.5 nan\n", "small.txt:1", "expected a number, found `nan`"),
        ("in 1 2 3\n", "small.txt:1", "write `embed: 3`"),
        ("in\n", "small.txt:1", "expected a word and 1 numbers"),
        (gzip.compress(GLOVE.encode())[:-9], "small.txt:", "ends too early"),
        (b"in 1 2\n\xff 1 2\n", "small.txt:2", ""),
        ("", "small.txt", "holds no examples"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, content: str | bytes, place: str, part: str) -> None:
    with pytest.raises(em.EnergyError) as caught:
        em.load(task(tmp_path, vectors=content), labels=LABELS)
    said = str(caught.value)
    assert place in said and part in said and "net f = blstm" in said


def test_the_first_vector_of_a_word_counts_and_exact_spelling_goes_first() -> None:
    root = InMemory({"v": "a 1\na 2\nA 3\nb 4\n"})
    known, vectors = read_vectors(root, "v", ["A", "a", "B", "c"], 1)
    assert known.tolist() == [0, 1, 2] and vectors.flatten().tolist() == [3.0, 1.0, 4.0]
    with pytest.raises(BadData):
        read_vectors(root, "w", ["a"], 1)


def test_numbers_need_no_vectors() -> None:
    text = SPEC.replace("NET", BLSTM).replace("input word : Word[T]", "input word : real[T, 3]")
    with pytest.raises(Exception, match="no input of labels"):
        em.compile(text.replace("labels Word from data(unknown: '<unk>')\n", ""))
