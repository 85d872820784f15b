"""Readers: what each format gives, by which name, and in which split."""

import gzip
import io
import json
from pathlib import Path

import pytest
import torch

from energyml.data import DataError, Dataset, load_data, stream_data
from energyml.data.files import Folder
from energyml.data.readers.tokens import tokens
from energyml.diagnostics import Source
from tests.data.specs import CHARACTERS, HORSES, OCR, SENTENCES, TAGGER, TRANSLATION, TREE, letter_line, load

NONE_HELD_OUT = "conll('t', columns: 'word y', validation: 0)"


def spelled(dataset: Dataset | None, output: str = "y") -> list[list[str]]:
    """The gold labels of all examples."""
    assert dataset is not None
    labels = dataset.spelling(output)
    rows = dataset.batch().gold[output].tolist()
    return [[labels[number] for number in row if number >= 0] for row in rows]


# ---------------------------------------------------------------------------------------------------------------- conll


def test_columns_have_the_names_of_declarations() -> None:
    data = load(TAGGER, NONE_HELD_OUT, {"t": SENTENCES})
    assert spelled(data.train) == [["D", "N", "V"], ["D", "N"], ["N", "V"]]
    assert data.validation is None and data.test is None
    assert data.labels == {"Word": ("the", "<unk>"), "Tag": ("N", "D", "V")}
    batch = data.train.batch()  # type: ignore[union-attr]
    assert batch.lengths["T"].tolist() == [3, 2, 2]
    assert batch.tensors["word"].tolist() == [[0, 1, 1], [0, 1, 0], [1, 1, 0]]  # padding is 0: any network can read it
    assert batch.tensors["y"].tolist() == [[1, 0, 2], [1, 0, -1], [0, 2, -1]]


def test_a_hash_is_no_comment_in_columns() -> None:
    data = load(TAGGER, NONE_HELD_OUT, {"t": "#haiti\t#\n!\t,\n\n#\t$\n"})
    assert spelled(data.train) == [["#", ","], ["$"]]


@pytest.mark.parametrize(
    "text", [SENTENCES, SENTENCES.rstrip("\n"), SENTENCES.replace("\n", "\r\n"), "\ufeff" + SENTENCES]
)
def test_line_ends_and_marks_do_not_matter(text: str) -> None:
    data = load(TAGGER, NONE_HELD_OUT, {"t": text})
    assert spelled(data.train) == [["D", "N", "V"], ["D", "N"], ["N", "V"]]
    assert data.vocabularies["Word"].number("the") == 0


def test_columns_can_be_skipped_and_document_starts_are() -> None:
    text = "-DOCSTART- -X- O\n\nthe DT D\ndog NN N\n"
    data = load(TAGGER, "conll('t', columns: 'word _ y', validation: 0)", {"t": text})
    assert spelled(data.train) == [["D", "N"]]


def test_the_first_column_is_spelled_out() -> None:
    data = load(CHARACTERS, NONE_HELD_OUT, {"t": "the D\ndog N\n\na D\n"})
    assert data.train is not None
    batch = data.train.batch()
    labels = data.vocabularies["Char"].labels
    characters = ["".join(labels[c] for c in word) for row in batch.tensors["char"].tolist() for word in row]
    counts = batch.lengths["M"].flatten().tolist()
    words = [word[:count] for word, count in zip(characters, counts, strict=True)]
    assert words == ["the", "dog", "a", ""]
    assert batch.lengths["M"].tolist() == [[3, 3], [1, 0]]


def test_gzip_is_told_by_content_and_found_by_its_ending() -> None:
    packed = gzip.compress(SENTENCES.encode())
    for name in ("t", "t.gz"):
        data = load(TAGGER, NONE_HELD_OUT, {name: packed})
        assert len(data.train or ()) == 3


# --------------------------------------------------------------------------------------------------------------- conllu


CONLLU = """\
# text = don't
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tdo\tdo\tAUX\tVB\tMood=Ind\t0\troot\t_\t_
2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_
2.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_

# another
1\t#\t#\tSYM\t#\t_\t0\troot\t_\t_
"""


def test_words_of_conllu_are_those_with_a_plain_number() -> None:
    data = load(TAGGER, "conllu('t', labels: upos_feats, validation: 0)", {"t": CONLLU})
    assert spelled(data.train) == [["AUX|Mood=Ind", "PART"], ["SYM"]]
    plain = load(TAGGER, "conllu('t', validation: 0)", {"t": CONLLU})
    assert spelled(plain.train) == [["AUX", "PART"], ["SYM"]]


def test_fields_of_conllu_go_by_name_first() -> None:
    spec = TAGGER.replace("input word : Word[T]", "input lemma : Word[T]").replace("f(word)", "f(lemma)")
    data = load(spec.replace("min: 2, ", ""), "conllu('t', validation: 0)", {"t": CONLLU})
    assert set(data.vocabularies["Word"].labels) == {"do", "not", "#", "<unk>"}


# -------------------------------------------------------------------------------------------------------------- letters


def letters_file(folds: range = range(10)) -> str:
    text = ""
    for word, fold in enumerate(folds):
        text += letter_line("a", 1, word, fold) + letter_line("b", -1, word, fold, "1")
    return text


def test_letters_come_in_words_and_folds() -> None:
    data = load(OCR, "letters('letter.data')", {"letter.data": letters_file()})
    assert [len(one or ()) for one in (data.train, data.validation, data.test)] == [8, 1, 1]
    assert data.train is not None and data.validation is not None
    batch = data.train.batch([0])
    assert batch.tensors["image"].shape == (1, 2, 1, 16, 8)
    assert batch.tensors["image"][0].flatten(1).mean(1).tolist() == [0, 1]
    assert spelled(data.train)[0] == ["a", "b"]
    assert data.validation.place(0) == "letter.data:1"
    assert data.notes == ["folds: 0 for validation, 1 for testing, the others for training"]


def test_any_two_folds_can_be_held_out() -> None:
    files = {"letter.data": letters_file()}
    data = load(OCR, "letters('letter.data', fold: 1)", files)
    assert data.validation is not None and data.test is not None
    assert (data.validation.place(0), data.test.place(0)) == ("letter.data:3", "letter.data:1")
    data = load(OCR, "letters('letter.data', fold: 3, test: 7)", files)
    assert data.validation is not None and data.test is not None
    assert (data.validation.place(0), data.test.place(0)) == ("letter.data:7", "letter.data:15")


def test_a_word_ends_where_its_number_changes() -> None:
    lines = [letter_line("a", 5, word, word) for word in range(3)]
    data = load(OCR, "letters('l')", {"l": "".join(lines)})
    assert spelled(data.train) == [["a"]]


@pytest.mark.parametrize("axes", ["T, 16, 8", "T, 128", "T, 2, 8, 8"])
def test_pixels_take_the_declared_shape(axes: str) -> None:
    spec = OCR.replace("T, 1, 16, 8", axes)
    data = load(spec, "letters('l')", {"l": letters_file()})
    assert data.train is not None
    wanted = [int(one) for one in axes.split(", ")[1:]]
    assert list(data.train.batch().tensors["image"].shape[2:]) == wanted


def test_grey_pixels_are_read_number_by_number() -> None:
    data = load(OCR, "letters('l')", {"l": "".join(letter_line("a", -1, f, f, "17") for f in range(3))})
    assert data.train is not None
    assert data.train.batch().tensors["image"].unique().tolist() == [17]


# --------------------------------------------------------------------------------------------------------------- images


def picture(size: tuple[int, int], brightness: int, mode: str = "RGB", ending: str = "png") -> bytes:
    image = pytest.importorskip("PIL.Image")
    made = io.BytesIO()
    colour = brightness if mode in ("L", "I;16") else (brightness, 0, 0)
    image.new(mode, size, colour).save(made, ending)
    return made.getvalue()


def test_masks_are_brought_to_the_size_of_their_images() -> None:
    files = {
        "rgb/a.png": picture((6, 4), 255),
        "rgb/b.png": picture((5, 8), 51),
        "masks/a.jpg": picture((12, 9), 250, "L", "jpeg"),
        "masks/b.jpg": picture((3, 3), 5, "L", "jpeg"),
        "rgb/readme.txt": b"",
    }
    data = load(HORSES, "images('rgb', 'masks', validation: 0)", files)
    assert data.train is not None
    batch = data.train.batch()
    assert batch.tensors["rgb"].shape == (2, 3, 8, 6) and batch.tensors["y"].shape == (2, 8, 6)
    assert batch.lengths["H"].tolist() == [4, 8] and batch.lengths["W"].tolist() == [6, 5]
    assert batch.tensors["rgb"][0, 0, :4].unique().tolist() == [1.0]
    assert batch.tensors["rgb"][1, 0, :, :5].unique().tolist() == pytest.approx([0.2])
    assert batch.tensors["y"][0, :4].unique().tolist() == [1]
    assert batch.tensors["y"][1, :, :5].unique().tolist() == [0]
    assert batch.tensors["y"][0, 4:].unique().tolist() == [-1]


def test_images_of_one_size_need_no_lengths() -> None:
    files = {
        f"{folder}/{n}.png": picture((6, 4), 200, mode) for n in range(3) for folder, mode in (("i", "RGB"), ("m", "L"))
    }
    data = load(HORSES, "images('i', 'm', size: 8, validation: 1)", files)
    assert data.train is not None
    batch = data.train.batch()
    assert batch.tensors["rgb"].shape == (2, 3, 8, 8) and not batch.lengths


def test_greys_can_be_numbers_of_labels() -> None:
    spec = HORSES.replace("{background, horse}", "{background, horse, rider}").replace("real[3, H", "real[1, H")
    files = {"i/a.png": picture((4, 4), 9), "m/a.png": picture((2, 2), 2, "L")}
    data = load(spec, "images('i', 'm', color: grey, threshold: none, validation: 0)", files)
    assert spelled(data.train and Flat(data.train)) == [["rider"] * 16]  # type: ignore[arg-type]


def test_numbers_of_more_than_8_bits_are_not_cut_off() -> None:
    """As numbers of labels they are read as they are; as brightness they are refused, and so are colours as labels."""
    labels = ", ".join(f"l{number}" for number in range(400))
    spec = HORSES.replace("background, horse", labels).replace("real[3, H", "real[1, H")
    reader = "images('i', 'm', color: grey, threshold: {}, validation: 0)"
    image, wide = picture((2, 2), 9), picture((2, 2), 300, "I;16")
    data = load(spec, reader.format("none"), {"i/a.png": image, "m/a.png": wide})
    assert spelled(data.train and Flat(data.train)) == [["l300"] * 4]  # type: ignore[arg-type]
    wrong = {
        "none": ({"i/a.png": image, "m/a.png": image}, "are colours or reals"),
        "128": ({"i/a.png": image, "m/a.png": wide}, "have more than 8 bits"),
        "5": ({"i/a.png": wide, "m/a.png": picture((2, 2), 9, "L")}, "have more than 8 bits"),
    }
    for threshold, (files, said) in wrong.items():
        with pytest.raises(DataError, match=f"E0809.*{said}"):
            load(spec, reader.format(threshold), files)


class Flat:
    """A data set of images whose labels are spelled in a row."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def spelling(self, output: str) -> tuple[str, ...]:
        return self.dataset.spelling(output)

    def batch(self) -> "Flat":
        self.gold = {name: one.flatten(1) for name, one in self.dataset.batch().gold.items()}
        return self


# ------------------------------------------------------------------------------------------------ JSON, pairs and lines


def test_json_gives_whatever_is_declared() -> None:
    objects = [
        {"vector": [[0, 1], [2, 3], [4, 5]], "link": [[0, 1], [1, 2]], "y": ["negative", None, "positive"], "id": 7},
        {"vector": [[0.5, 1]], "link": [], "y": ["neutral"]},
    ]
    data = load(TREE, "jsonl('t', validation: 0)", {"t": "".join(json.dumps(one) + "\n" for one in objects)})
    assert data.train is not None
    batch = data.train.batch()
    assert batch.tensors["vector"].tolist() == [[[0, 1], [2, 3], [4, 5]], [[0.5, 1], [0, 0], [0, 0]]]
    assert batch.tensors["link"].tolist() == [[[0, 1], [1, 2]], [[-1, -1], [-1, -1]]]
    assert batch.tensors["y"].tolist() == [[0, -1, 2], [1, -1, -1]]
    assert batch.lengths["N"].tolist() == [3, 1] and batch.lengths["E"].tolist() == [2, 0]


def test_json_holds_single_labels_grids_and_numbers_as_labels() -> None:
    spec = """\
labels Digit = {'0', '1'}
labels Kind from data
dim H, W
input grid : Digit[H, W]
output y : Kind
net f = python("torch.nn:Identity")
param u : real[Kind]
factor kind (y) = u
"""
    spec = spec.replace('net f = python("torch.nn:Identity")\n', "")
    lines = '{"grid": [[0, 1]], "y": "flat"}\n{"grid": [["1"], ["0"]], "y": "tall"}\n'
    data = load(spec, "jsonl('t', validation: 0)", {"t": lines})
    assert data.train is not None
    batch = data.train.batch()
    assert data.labels == {"Kind": ("flat", "tall")}
    assert batch.tensors["grid"].tolist() == [[[0, 1], [0, 0]], [[1, 0], [0, 0]]]
    assert batch.tensors["y"].tolist() == [0, 1]


def test_nested_lists_of_numbers() -> None:
    spec = """\
labels Tag = {O, B}
dim T
dim M[T]
input part : real[T, M, 2]
output y : Tag[T]
param u : real[Tag]
factor one [t in T] (y[t]) = u
"""
    lines = '{"part": [[[1, 2]], []], "y": ["O", "B"]}\n{"part": [[[3, 4], [5, 6]]], "y": ["O"]}\n'
    data = load(spec, "jsonl('t', validation: 0)", {"t": lines})
    assert data.train is not None
    batch = data.train.batch()
    assert batch.tensors["part"].shape == (2, 2, 2, 2)
    assert batch.tensors["part"][1, 0].tolist() == [[3, 4], [5, 6]]
    assert batch.lengths["M"].tolist() == [[1, 0], [2, 0]]


def test_pairs_end_and_are_padded_to_the_bound() -> None:
    files = {"train.de": "ein Hund\nja\n", "train.en": "a dog\nyes\n", "val.de.gz": b"nein\n", "val.en": "no\n"}
    data = load(TRANSLATION, "pairs('train.de', 'train.en', validation: 'val')", files)
    assert data.train is not None and data.validation is not None
    batch = data.train.batch()
    assert batch.tensors["y"].shape == (2, 6) and set(batch.lengths) == {"S"}
    assert spelled(data.train) == [["a", "dog", "</s>"], ["yes", "</s>"]]
    assert data.vocabularies["Target"].labels[-1] == "</s>"
    assert spelled(data.validation) == [["no", "</s>"]]  # a reference keeps words that the vocabulary lacks
    unknown = data.vocabularies["Target"].number("<unk>")
    assert data.validation.batch().tensors["y"][0, 0] == unknown


def test_long_pairs_are_left_out_of_training_alone() -> None:
    files = {"t.de": "a\nb b b\n", "t.en": "a\nb\n", "v.de": "c c c\n", "v.en": "c\n"}
    data = load(TRANSLATION, "pairs('t.de', 't.en', longest: 2, validation: 'v')", files)
    assert len(data.train or ()) == 1 and len(data.validation or ()) == 1
    assert data.notes == ["train: 1 pairs longer than 2 tokens are left out"]


def test_lines_fill_the_only_output() -> None:
    spec = "labels P from data\ndim N\noutput y : P[N]\nparam u : real[P]\nfactor one [n in N] (y[n]) = u\n"
    data = load(spec, "lines('t', validation: 0)", {"t": "K AE T\n\nD AO G\n"})
    assert spelled(data.train) == [["K", "AE", "T"], ["D", "AO", "G"]]
    assert data.train is not None
    assert data.train.batch().lengths["N"].tolist() == [3, 3]  # no input shows the size, so it is always said
    data = load(spec, "lines('t', split: characters, lower: true, validation: 0)", {"t": "AB a\n"})
    assert spelled(data.train) == [["a", "b", "a"]]


def test_words_are_split_at_punctuation() -> None:
    assert tokens("Don't, they said: well-known!", "words") == ["Don't", ",", "they", "said", ":", "well-known", "!"]


# ----------------------------------------------------------------------------------------------------- splits and roots


def many(count: int) -> str:
    return "".join(f"w{number} T{number % 2}\n\n" for number in range(count))


def test_a_share_a_number_and_folds_are_held_out_for_ever_alike() -> None:
    reader = "conll('t', columns: 'word y', {})"
    spec = TAGGER.replace("min: 2, ", "")

    def places(options: str) -> dict[str, list[str]]:
        data = load(spec, reader.format(options), {"t": many(40)})
        parts = {"train": data.train, "validation": data.validation, "test": data.test}
        return {name: [one.place(row) for row in range(len(one))] for name, one in parts.items() if one is not None}

    found = places("validation: 0.25, test: 5")
    assert [len(one) for one in found.values()] == [25, 10, 5]
    assert len({place for part in found.values() for place in part}) == 40
    assert found == places("validation: 0.25, test: 5") != places("validation: 0.25, test: 5, seed: 1")
    tested: list[str] = []
    for fold in range(5):
        parts = places(f"validation: 10, folds: 5, fold: {fold}")
        assert [len(one) for one in parts.values()] == [24, 10, 6] and parts["validation"] == found["validation"]
        tested += parts["test"]
    assert len(set(tested)) == 30 and not set(tested) & set(found["validation"])


def test_by_default_a_tenth_is_held_out_and_that_is_said() -> None:
    data = load(TAGGER.replace("min: 2, ", ""), "conll('t', columns: 'word y')", {"t": many(40)})
    assert len(data.validation or ()) == 4
    assert data.notes == ["validation: 4 of the 40 examples of t, drawn with seed 0 (0.1 of them)"]


def test_files_that_no_split_needs_are_not_read() -> None:
    reader = "conll('none', columns: 'word y', validation: 0, test: 't')"
    known = {"Word": ["the", "<unk>"], "Tag": ["D", "N", "V"]}
    data = load(TAGGER, reader, {"t": SENTENCES}, vocabularies=known, splits=["test"])
    assert data.train is None and len(data.test or ()) == 3


def test_paths_start_at_the_spec_or_at_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "specs" / "tagger.energy"
    spec.parent.mkdir()
    spec.write_text(TAGGER + "data conll('t.txt', columns: 'word y', validation: 0)\n", encoding="utf-8")
    (spec.parent / "t.txt").write_text(SENTENCES, encoding="utf-8")
    other = tmp_path / "other"
    other.mkdir()
    (other / "t.txt.gz").write_bytes(gzip.compress(b"a N\n"))
    monkeypatch.delenv("ENERGYML_DATA", raising=False)
    assert len(load_data(spec).train or ()) == 3
    assert len(load_data(spec, root=other).train or ()) == 1
    monkeypatch.setenv("ENERGYML_DATA", str(other))
    assert len(load_data(spec).train or ()) == 1
    assert Folder(other).shown("t.txt") == str(other / "t.txt")


def test_another_reader_can_be_chosen() -> None:
    lines = '{"word": ["a"], "y": ["N"]}\n'
    data = load_data(Source("s", TAGGER), root={"j": lines}, using="jsonl('j', validation: 0)")
    assert spelled(data.train) == [["N"]]


def test_inputs_that_hold_for_every_example_need_not_be_in_the_data() -> None:
    lines = '{"vector": [[0, 1]], "y": ["neutral"]}\n'
    data = load(TREE, "jsonl('t', validation: 0)", {"t": lines}, fixed=["link"])
    assert data.train is not None and set(data.train.columns) == {"vector", "y"}


# ------------------------------------------------------------------------------------------------------------ streaming


def test_files_to_predict_come_some_at_a_time_without_gold() -> None:
    source = Source("spec.energy", TAGGER + NONE_HELD_OUT.join(("data ", "\n")))
    known = {"Word": ["the", "<unk>"], "Tag": ["D", "N", "V"]}
    parts = list(stream_data(source, "new", known, root={"new": "the\ndog\n\nthe\n\nit\n"}, size=2))
    assert [len(part) for part in parts] == [2, 1]
    batch = parts[0].batch()
    assert set(batch.tensors) == {"word"} and batch.tensors["word"].tolist() == [[0, 1], [0, 0]]
    assert parts[1].examples is not None and parts[1].examples[0].values["word"] == ["it"]
    assert parts[1].place(0) == "new:6"
    gold = next(stream_data(source, "t", known, root={"t": SENTENCES}, gold=True))
    assert spelled(gold)[0] == ["D", "N", "V"]


def test_only_the_folder_of_images_is_needed_to_predict() -> None:
    source = Source("s", HORSES + "data images('i', 'm')\n")
    part = next(stream_data(source, "new", {}, root={"new/a.png": picture((6, 4), 255)}))
    assert part.batch().tensors["rgb"].shape == (1, 3, 4, 6) and part.place(0) == "new/a.png"


def test_single_images_are_enough_to_predict(tmp_path: Path) -> None:
    source = Source("s", HORSES + "data images('i', 'm')\n")
    for name, size in (("a.png", (6, 4)), ("b.png", (5, 8))):
        (tmp_path / name).write_bytes(picture(size, 255))
    part = next(stream_data(source, ["b.png", "a.png"], {}, root=tmp_path))
    assert part.batch().lengths["H"].tolist() == [8, 4]
    assert [part.place(row) for row in range(2)] == [str(tmp_path / "b.png"), str(tmp_path / "a.png")]
    with pytest.raises(DataError, match=r"c.png` cannot be read: no such file"):
        next(stream_data(source, ["b.png", "c.png"], {}, root=tmp_path))


def test_only_the_source_of_pairs_is_needed_to_predict() -> None:
    source = Source("s", TRANSLATION + "data pairs('a', 'b')\n")
    known = {"Source": ["ja", "<unk>"], "Target": ["yes", "<unk>", "</s>"]}
    part = next(stream_data(source, "new", known, root={"new": "ja\nnein\n"}))
    assert torch.equal(part.batch().tensors["source"], torch.tensor([[0], [1]]))


def test_predictions_for_pairs_line_up_with_the_lines_of_the_source() -> None:
    reader = "pairs('a.de', 'a.en', validation: 0)"
    known = load(TRANSLATION, reader, {"a.de": "ja ja\nja\n", "a.en": "yes\nyes yes\n"}).vocabularies
    source = Source("spec.energy", f"{TRANSLATION}data {reader}\n")
    parts = list(stream_data(source, "new", known, root={"new": "ja\n\nja ja\n"}))
    assert [len(example.values["source"]) for part in parts for example in part.examples or ()] == [1, 0, 2]
