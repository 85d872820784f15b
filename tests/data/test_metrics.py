"""Metrics: by hand, against independent implementations, and added up over batches."""

import sys
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from energyml.cards import every
from energyml.diagnostics import EnergyError, PackageMissing
from energyml.metrics import Confusion, Judged, MetricError, make_metric
from energyml.metrics.f1 import SpanF1

IOB = ("O", "B-NP", "I-NP", "B-VP", "I-VP")
IOBES = ("O", "B-X", "I-X", "E-X", "S-X", "B-Y", "I-Y", "E-Y", "S-Y")


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[-1] * (longest - len(row))] for row in rows], dtype=torch.long)


def numbers(labels: Sequence[str], rows: Sequence[str]) -> Tensor:
    return padded([[labels.index(label) for label in row.split()] for row in rows])


# ------------------------------------------------------------------------------------------------------------- accuracy


GOLD = padded([[0, 1], [2, 2, 2, 2], []])
PREDICTED = torch.tensor([[0, 0, 0, 0], [2, 2, 2, 1], [1, 1, 1, 1]])


@pytest.mark.parametrize(
    ("name", "value"), [("accuracy", 4 / 6), ("averaged_accuracy", (1 / 2 + 3 / 4) / 2), ("word_accuracy", 0.0)]
)
def test_accuracies(name: str, value: float) -> None:
    metric = make_metric(name, "abc")
    metric.update(PREDICTED, GOLD)
    assert metric.value() == pytest.approx(value)
    assert metric.higher_is_better and metric.name == name


def test_word_accuracy_counts_whole_words() -> None:
    metric = make_metric("word_accuracy", "abc")
    metric.update(GOLD.clamp(min=0), GOLD)
    metric.update(PREDICTED[:1], GOLD[:1])
    assert metric.value() == pytest.approx(2 / 3)


def test_single_cells_and_grids_are_judged_too() -> None:
    metric = make_metric("accuracy", "ab")
    metric.update(torch.tensor([0, 1]), torch.tensor([0, 0]))
    metric.update(torch.zeros(1, 2, 2, dtype=torch.long), torch.tensor([[[0, 1], [-1, 0]]]))
    assert metric.value() == pytest.approx(3 / 5)


@pytest.mark.parametrize("card", every("metric"), ids=lambda card: card.name)
def test_batches_and_processes_add_up(card: object) -> None:
    name = card.name  # type: ignore[attr-defined]
    if name == "bleu":
        pytest.importorskip("sacrebleu")
    generator = torch.Generator().manual_seed(0)
    gold = torch.randint(-1, 5, (12, 9), generator=generator)
    predicted = torch.where(torch.rand(12, 9, generator=generator) < 0.7, gold.clamp(min=0), 1)
    whole, first, second = (make_metric(name, IOB) for _ in range(3))
    whole.update(predicted, gold)
    first.update(predicted[:5], gold[:5])
    for row in range(5, 12):
        second.update(predicted[row : row + 1], gold[row : row + 1])
    first.merge(second)
    assert first.value() == pytest.approx(whole.value()) and 0 < whole.value() <= 1
    fresh = make_metric(name, IOB)
    fresh.merge(first)
    assert fresh.value() == pytest.approx(whole.value())
    fresh.reset()
    assert not fresh.sums.any()


def test_shapes_must_agree() -> None:
    with pytest.raises(EnergyError, match=r"\[1, 2\] and gold labels \[1, 3\]"):
        make_metric("accuracy", "ab").update(torch.zeros(1, 2), torch.zeros(1, 3))


# ------------------------------------------------------------------------------------------------------------------- F1


def spans(labels: Sequence[str]) -> set[tuple[int, int, str]]:
    """The spans of a sentence, by conlleval's own loop over `startOfChunk` and `endOfChunk`."""
    found: set[tuple[int, int, str]] = set()
    before, kind_before, start = "O", "", 0
    for place, label in enumerate([*labels, "O"]):
        tag, _, kind = label.partition("-")
        ends = before in "ES" or (before in "BI" and tag in "BSO") or (before != "O" and kind != kind_before)
        starts = tag in "BS" or (before in "ESO" and tag in "EI") or (tag != "O" and kind != kind_before)
        if before != "O" and ends:
            found.add((start, place - 1, kind_before))
        if starts:
            start = place
        before, kind_before = tag, kind
    return found


@pytest.mark.parametrize(
    ("labels", "gold", "predicted", "right", "guessed", "wanted"),
    [
        (IOB, "B-NP I-NP O B-VP", "B-NP I-NP O B-VP", 2, 2, 2),
        (IOB, "B-NP I-NP O B-VP", "B-NP O O B-VP", 1, 2, 2),  # a span cut short is wrong
        (IOB, "B-NP I-NP O", "B-VP I-VP O", 0, 1, 1),  # so is one of another type
        (IOB, "O O", "O O", 0, 0, 0),
        (IOB, "I-NP I-NP B-NP", "B-NP I-NP B-NP", 2, 2, 2),  # IOB1 and IOB2 mean the same
        (IOB, "B-NP I-NP", "I-NP I-VP", 0, 2, 1),  # a change of type starts a span
        (IOB, "B-NP B-NP", "B-NP I-NP", 0, 1, 2),
        (IOB, "O B-NP", "I-NP B-NP", 1, 2, 1),
        (IOBES, "S-X B-X E-X", "S-X B-X E-X", 2, 2, 2),
        (IOBES, "B-X I-X E-X S-Y", "B-X E-X E-X S-Y", 1, 3, 2),
        (IOBES, "B-X E-X B-X E-X", "B-X E-X S-X S-X", 1, 3, 2),
    ],
)
def test_spans_by_hand(labels: Sequence[str], gold: str, predicted: str, right: int, guessed: int, wanted: int) -> None:
    metric = make_metric("f1", labels)
    metric.update(numbers(labels, [predicted]), numbers(labels, [gold]))
    assert metric.sums.sum(0).tolist() == [right, guessed, wanted]
    expected = 2 * right / (guessed + wanted) if right else 0
    assert metric.value() == pytest.approx(expected)


def sentences(labels: Sequence[str]) -> st.SearchStrategy[list[list[tuple[int, int]]]]:
    label = st.integers(0, len(labels) - 1)
    return st.lists(st.lists(st.tuples(label, label), max_size=8), min_size=1, max_size=6)


@pytest.mark.parametrize("labels", [IOB, IOBES, ("O", "B", "I")], ids=["iob", "iobes", "untyped"])
def test_spans_are_those_of_conlleval(labels: tuple[str, ...]) -> None:
    @given(sentences(labels))
    def agree(pairs: list[list[tuple[int, int]]]) -> None:
        metric = make_metric("f1", labels)
        metric.update(padded([[p for p, _ in row] for row in pairs]), padded([[g for _, g in row] for row in pairs]))
        found = [spans([labels[p] for p, _ in row]) for row in pairs]
        wanted = [spans([labels[g] for _, g in row]) for row in pairs]
        right = sum(len(one & other) for one, other in zip(found, wanted, strict=True))
        assert metric.sums.sum(0).tolist() == [right, sum(map(len, found)), sum(map(len, wanted))]

    agree()


@pytest.mark.parametrize("labels", [IOB, IOBES], ids=["iob", "iobes"])
def test_f1_is_that_of_seqeval(labels: tuple[str, ...]) -> None:
    seqeval = pytest.importorskip("seqeval.metrics")

    @given(sentences(labels))
    def agree(pairs: list[list[tuple[int, int]]]) -> None:
        predicted = [[labels[p] for p, _ in row] for row in pairs]
        gold = [[labels[g] for _, g in row] for row in pairs]
        metric = make_metric("f1", labels)
        metric.update(padded([[p for p, _ in row] for row in pairs]), padded([[g for _, g in row] for row in pairs]))
        assert metric.value() == pytest.approx(seqeval.f1_score(gold, predicted, zero_division=0))

    agree()


def test_spans_run_over_cells_without_labels() -> None:
    metric = make_metric("f1", IOB)
    gold = torch.tensor([[1, -1, 2, -1, 0]])
    metric.update(torch.tensor([[1, 3, 2, 3, 0]]), gold)
    assert metric.value() == 1


def test_scores_of_each_type() -> None:
    metric = make_metric("f1", IOB)
    assert isinstance(metric, SpanF1)
    metric.update(numbers(IOB, ["B-NP O B-VP B-VP"]), numbers(IOB, ["B-NP B-NP O B-VP"]))
    assert metric.by_type()["NP"] == (1.0, 0.5, pytest.approx(2 / 3), 2)
    assert metric.by_type()["VP"] == (0.5, 1.0, pytest.approx(2 / 3), 1)
    assert (metric.precision, metric.recall) == (pytest.approx(2 / 3), pytest.approx(2 / 3))


def test_a_gold_span_that_training_never_saw_is_missed() -> None:
    metric = make_metric("f1", (*IOB, "B-LST", "I-LST"), known=5)
    metric.update(torch.tensor([[1, 2, 0]]), torch.tensor([[1, 2, 5]]))
    assert metric.recall == 0.5 and metric.precision == 1


@pytest.mark.parametrize("labels", [("NOUN", "VERB"), ("O",), ("O", "O-NP"), ("O", "X-NP")])
def test_labels_that_mark_no_spans(labels: tuple[str, ...]) -> None:
    with pytest.raises(MetricError, match="E0821"):
        make_metric("f1", labels)


def test_spans_are_sequences() -> None:
    with pytest.raises(EnergyError, match="sequences"):
        make_metric("f1", IOB).update(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2))


# -------------------------------------------------------------------------------------------------------------- Jaccard


def test_jaccard_of_the_foreground_by_image() -> None:
    gold = torch.tensor([[[0, 1], [1, 1]], [[0, 0], [0, -1]]])
    predicted = torch.tensor([[[0, 0], [1, 1]], [[0, 0], [0, 1]]])
    metric = make_metric("jaccard", ["background", "horse"])
    metric.update(predicted, gold)
    assert metric.value() == pytest.approx((2 / 3 + 1) / 2)  # no horse, and none seen: right
    metric = make_metric("jaccard(over: cells)", ["background", "horse"])
    metric.update(predicted, gold)
    assert metric.value() == pytest.approx(2 / 3)
    metric = make_metric("jaccard(label: background)", ["background", "horse"])
    metric.update(predicted, gold)
    assert metric.value() == pytest.approx((1 / 2 + 1) / 2)


def test_jaccard_of_many_labels_is_their_mean() -> None:
    gold, predicted = torch.tensor([[0, 0, 1, 1]]), torch.tensor([[0, 1, 1, 1]])
    for over in ("examples", "cells"):
        metric = make_metric(f"jaccard(over: {over})", "abc")
        metric.update(predicted, gold)
        assert metric.value() == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_jaccard_needs_its_label() -> None:
    with pytest.raises(MetricError, match="there is no label `cow`"):
        make_metric("jaccard(label: cow)", ["background", "horse"])


# ----------------------------------------------------------------------------------------------------------------- BLEU


def test_bleu_is_that_of_sacrebleu() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    labels = ("the", "cat", "sat", "on", "mat", "</s>", "zebra")
    gold = padded([[0, 1, 2, 3, 0, 4, 5], [0, 6, 2, 3, 0, 4, 5]])
    predicted = torch.tensor([[0, 1, 2, 3, 0, 4, 5], [0, 1, 2, 3, 4, 5, 0]])
    metric = make_metric("bleu", labels, known=6, end="</s>")
    metric.update(predicted, gold)
    expected = sacrebleu.corpus_bleu(
        ["the cat sat on the mat", "the cat sat on mat"],
        [["the cat sat on the mat", "the zebra sat on the mat"]],
        tokenize="none",
        force=True,
    )
    assert metric.value() == pytest.approx(expected.score / 100)


def test_bleu_says_what_it_is_made_of() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    labels = (*"abcdefgh", "</s>")
    gold = padded([[0, 1, 2, 3, 8], [0, 1, 2, 3, 4, 5, 6, 8], [7, 6, 5, 4, 3, 2, 8]])
    predicted = padded([[0, 1, 3, 8], [0, 1, 2, 3, 4, 6, 5, 8], [7, 6, 5, 4, 8]])
    predicted = torch.nn.functional.pad(predicted, (0, gold.shape[1] - predicted.shape[1]), value=-1)
    metric = make_metric("bleu", labels, end="</s>")
    for row in range(3):
        metric.update(predicted[row : row + 1], gold[row : row + 1])

    def expected(rows: list[int]):
        texts = [[" ".join(labels[n] for n in one.tolist() if 0 <= n < 8) for one in side[rows]]
                 for side in (predicted, gold)]  # fmt: skip
        return sacrebleu.corpus_bleu(texts[0], [texts[1]], tokenize="none", force=True)

    found, whole = metric.details(), expected([0, 1, 2])
    assert [found[f"precision_{n}"] for n in (1, 2, 3, 4)] == pytest.approx([one / 100 for one in whole.precisions])
    assert found["brevity_penalty"] == pytest.approx(whole.bp) and found["length_ratio"] == pytest.approx(14 / 17)
    assert found["length_1_to_5"] == pytest.approx(expected([0]).score / 100)
    assert found["length_6_to_10"] == pytest.approx(expected([1, 2]).score / 100)
    assert metric.value() == pytest.approx(whole.score / 100) and "length_11_to_15" not in found


def test_bleu_needs_sacrebleu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(PackageMissing, match=r"pip install 'energyml\[translation\]'"):
        make_metric("bleu", "ab")


# ------------------------------------------------------------------------------------------------------------ confusion


def test_confusion_counts_and_names_mistakes() -> None:
    table = Confusion(Judged(("a", "b", "c", "new"), 3))
    table.update(torch.tensor([[0, 1, 1, 1, 0]]), torch.tensor([[0, 0, 0, 3, -1]]))
    table.update(torch.tensor([[1]]), torch.tensor([[1]]))
    assert table.counts().tolist() == [[1, 2, 0], [0, 1, 0], [0, 0, 0], [0, 1, 0]]
    assert table.worst() == [("a", "b", 2), ("(not in training)", "b", 1)]
    assert table.table() == "\n".join(
        [
            "gold \\ predicted   a  b  other",
            "a                  1  2      .",
            "b                  .  1      .",
            "(not in training)  .  1      .",
        ]
    )


def test_confusion_leaves_out_what_was_not_predicted() -> None:
    table = Confusion(Judged(("a", "b"), 2))
    table.update(torch.tensor([[0, 1, -1]]), torch.tensor([[0, 0, 1]]))
    assert table.counts().tolist() == [[1, 1], [0, 0], [0, 0]]


def test_confusion_of_too_many_labels() -> None:
    with pytest.raises(MetricError, match="too many for a table"):
        Confusion(Judged(tuple(map(str, range(6000))), 6000))


def test_the_table_shows_the_most_frequent_labels() -> None:
    table = Confusion(Judged(tuple("abc"), 3))
    table.update(torch.tensor([[0, 0, 2, 1]]), torch.tensor([[0, 0, 0, 2]]))
    assert table.table(most=1).splitlines() == ["gold \\ predicted  a  other", "a                 2      1"]
