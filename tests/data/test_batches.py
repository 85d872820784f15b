"""Batches: every example once, an order that only seed and epoch decide, resumable anywhere, shared by processes."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import energyml as em
from energyml.data import Batches, Dataset
from energyml.data.order import shuffled
from energyml.diagnostics import EnergyError
from tests.data.specs import CHARACTERS, TAGGER, TRANSLATION, TREE, load


def dataset(count: int) -> Dataset:
    """Sentences of 1 to 9 words, in an order without system."""
    lengths = [(number * 7) % 9 + 1 for number in range(count)]
    text = "\n\n".join("\n".join(f"w{place % 4} T{place % 3}" for place in range(length)) for length in lengths)
    data = load(TAGGER, "conll('t', columns: 'word y', validation: 0)", {"t": text})
    assert data.train is not None
    return data.train


EXAMPLES = dataset(103)


def rows(batches: Batches) -> list[list[int]]:
    return [batch.rows.tolist() for batch in batches]


def test_a_single_example_is_a_batch() -> None:
    """Sorted by length, longest first, one row is an array of a negative stride."""
    assert rows(Batches(dataset(1), 4, shuffle=False)) == [[0]]
    assert EXAMPLES.batch(np.arange(3)[::-1][:1]).rows.tolist() == [2]


# ---------------------------------------------------------------------------------------------------------------- order


@given(st.integers(0, 40), st.integers(-5, 2**64), st.integers(0, 100))
def test_orders_are_permutations_by_splitmix(count: int, seed: int, epoch: int) -> None:
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mixed(key: int) -> int:
        key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & mask
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & mask
        return key ^ (key >> 31)

    state = 0
    for one in (seed, epoch):
        state = mixed((state + one * golden + golden) & mask)
    keys = [mixed((state + place * golden) & mask) for place in range(1, count + 1)]
    assert shuffled(count, seed, epoch).tolist() == sorted(range(count), key=keys.__getitem__)


def test_orders_of_neighbouring_seeds_have_nothing_in_common() -> None:
    first, second = shuffled(1000, 0, 0), shuffled(1000, 0, 1)
    assert (first == second).mean() < 0.01
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


def test_an_epoch_has_every_example_once_and_epochs_differ() -> None:
    batches = Batches(EXAMPLES, 8, seed=3)
    first, second = rows(batches), rows(batches)
    assert len(first) == len(second) == len(batches) == 13
    for epoch in (first, second):
        assert sorted(itertools.chain.from_iterable(epoch)) == list(range(103))
    assert first != second
    assert first == rows(Batches(EXAMPLES, 8, seed=3)) != rows(Batches(EXAMPLES, 8, seed=4))


def test_examples_of_a_batch_have_similar_lengths() -> None:
    spread = [int(batch.lengths["T"].max() - batch.lengths["T"].min()) for batch in Batches(EXAMPLES, 8)]
    assert sum(spread) / len(spread) <= 1.5  # 9 lengths over 13 sorted batches


def test_evaluation_goes_from_long_to_short() -> None:
    batches = Batches(EXAMPLES, 8, shuffle=False)
    lengths = [int(batch.lengths["T"].max()) for batch in batches]
    assert lengths == sorted(lengths, reverse=True)
    assert rows(batches) == rows(Batches(EXAMPLES, 8, shuffle=False, seed=9))


@given(st.integers(0, 40), st.integers(0, 3))
def test_a_run_resumes_anywhere(steps: int, seed: int) -> None:
    whole = Batches(EXAMPLES, 8, seed=seed)
    expected = [batch.rows.tolist() for _ in range(4) for batch in whole]
    running, seen = Batches(EXAMPLES, 8, seed=seed), []
    stream = (batch for _ in range(4) for batch in running)
    seen += [batch.rows.tolist() for batch in itertools.islice(stream, steps)]
    state = running.state_dict()
    assert set(state) == {"epoch", "position", "seed"}
    resumed = Batches(EXAMPLES, 8, seed=77)
    resumed.load_state_dict(state)
    while resumed.epoch < 4:
        seen += [batch.rows.tolist() for batch in resumed]
    assert seen == expected


def test_a_position_that_does_not_exist() -> None:
    with pytest.raises(EnergyError, match="an epoch has 13 batches"):
        Batches(EXAMPLES, 8).load_state_dict({"epoch": 0, "position": 14, "seed": 0})


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("count", [16, 17, 103])
def test_processes_share_every_batch(world: int, count: int) -> None:
    examples = EXAMPLES.subset(range(count))
    single = rows(Batches(examples, 8))
    shared = [list(Batches(examples, 8, rank=rank, world=world)) for rank in range(world)]
    if count % 8 >= world or count % 8 == 0:
        parts = [sorted(itertools.chain(*(one.rows.tolist() for one in step))) for step in zip(*shared, strict=True)]
        assert parts == [sorted(one) for one in single]
    everything = sorted(row for process in shared for one in process for row in one.rows.tolist())
    assert everything == list(range(count))
    for step in zip(*shared, strict=True):
        assert all(len(one) > 0 and one.total == sum(map(len, step)) for one in step)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"size": 0}, "at least one example"),
        ({"rank": 2, "world": 2}, "ranks are counted from 0"),
        ({"size": 1, "world": 2}, "cannot be shared by 2"),
    ],
)
def test_impossible_batches(options: dict[str, int], part: str) -> None:
    with pytest.raises(EnergyError, match=part):
        Batches(EXAMPLES, **{"size": 8, **options})  # type: ignore[arg-type]


def test_fewer_examples_than_processes() -> None:
    with pytest.raises(EnergyError, match="1 examples cannot be shared by 2 processes"):
        Batches(EXAMPLES.subset([0]), 8, world=2)


# --------------------------------------------------------------------------------------------------------------- values


@given(st.lists(st.integers(0, 102), min_size=1, max_size=20))
def test_padding_changes_no_value(chosen: list[int]) -> None:
    batch = EXAMPLES.batch(chosen)
    for place, row in enumerate(chosen):
        single = EXAMPLES[row]
        length = int(batch.lengths["T"][place])
        assert single["word"].shape == (length,)
        for name, alone in single.items():
            assert torch.equal(batch.tensors[name][place, :length], alone)
        assert (batch.tensors["y"][place, length:] == -1).all()


def test_subsets_share_values_and_keep_places() -> None:
    part = EXAMPLES.subset([5, 2]).subset([1])
    assert len(part) == 1 and part.place(0) == EXAMPLES.place(2) and part.columns["y"] is EXAMPLES.columns["y"]
    sample = EXAMPLES.sample(10, seed=1)
    assert len(sample) == 10 and sample.rows.tolist() == EXAMPLES.sample(10, seed=1).rows.tolist()
    assert len(EXAMPLES.sample(1000)) == 103
    assert "103 examples of word, y" in repr(EXAMPLES)


def test_values_are_kept_small() -> None:
    for column in EXAMPLES.columns.values():
        assert column.values.dtype == np.uint8  # type: ignore[attr-defined]


# --------------------------------------------------------------------------------------------------------------- models


MODELS = {
    "words": (TAGGER, "conll('t', columns: 'word y', validation: 0)", "a N\nb V\n\nc N\n\nd N\ne V\nf N\n"),
    "characters": (CHARACTERS, "conll('t', columns: 'word y', validation: 0)", "ab N\nc V\n\ndef N\n"),
    "trees": (
        TREE,
        "jsonl('t', validation: 0)",
        '{"vector": [[0, 1], [2, 3]], "link": [[0, 1]], "y": ["neutral", "positive"]}\n'
        '{"vector": [[4, 5]], "link": [], "y": ["negative"]}\n',
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_batches_are_what_models_take(name: str) -> None:
    spec, reader, text = MODELS[name]
    data = load(spec, reader, {"t": text})
    assert data.train is not None
    model = em.compile(spec, labels=data.labels, seed=0).double()
    (batch,) = Batches(data.train, 8, shuffle=False)
    together = model.loss(**batch.tensors, lengths=batch.lengths, objective="nll", reduction="none")
    alone = []
    for row in batch.rows.tolist():
        one = data.train.batch([row])
        alone.append(model.loss(**one.tensors, lengths=one.lengths, objective="nll", reduction="sum"))
    torch.testing.assert_close(together, torch.stack(alone))
    best = model.infer(**batch.inputs, lengths=batch.lengths).map()["y"]
    assert best.shape == batch.gold["y"].shape


def test_translations_are_what_models_take() -> None:
    data = load(TRANSLATION, "pairs('a.de', 'a.en', validation: 0)", {"a.de": "ja ja\nja\n", "a.en": "yes\nyes yes\n"})
    assert data.train is not None
    model = em.compile(TRANSLATION, labels=data.labels, seed=0)
    batch = data.train.batch()
    scores = model.score(**batch.tensors, lengths=batch.lengths)
    for row in range(2):
        one = data.train.batch([row])
        torch.testing.assert_close(model.score(**one.tensors, lengths=one.lengths), scores[row : row + 1])


def test_batches_move() -> None:
    batch = EXAMPLES.batch([0, 1]).to("meta")
    kinds = {one.device.type for group in (batch.tensors, batch.lengths, batch.gold) for one in group.values()}
    assert kinds == {"meta"} and len(batch) == 2
