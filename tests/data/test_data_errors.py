"""Bad data: every message names the file, the line and the declaration that is broken."""

import gzip
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from energyml.data import DataError, load_data, stream_data
from energyml.data.readers.jsonl import JsonLines
from energyml.data.readers.reader import Example
from energyml.diagnostics import PackageMissing, Source
from tests.data.specs import CHARACTERS, HORSES, OCR, SENTENCES, TAGGER, TRANSLATION, TREE, letter_line, load

CONLL = "conll('t', columns: 'word y', validation: 0)"
LISTED = TAGGER.replace("labels Tag from data", "labels Tag = {D, N, V}")


def refusal(spec: str, reader: str, files: dict[str, str | bytes], **options: object) -> str:
    """What is said about data that cannot be used."""
    with pytest.raises(DataError) as caught:
        load(spec, reader, files, **options)
    return str(caught.value)


def check(said: str, code: str, *parts: str) -> None:
    assert f"error[{code}]" in said, said
    for part in parts:
        assert part in said, said


# --------------------------------------------------------------------------------------------------------------- labels


def test_a_label_unknown_to_training_is_an_error_when_asked() -> None:
    reader = "conll('t', columns: 'word y', validation: 0, test: 'e', unknown: error)"
    said = refusal(TAGGER, reader, {"t": SENTENCES, "e": "the D\ndog X\n"})
    check(said, "E0807", "e:2: `X` is no label of `Tag`", "output y : Tag[T]", "unknown: count_wrong")


def test_a_label_unknown_to_training_counts_as_wrong_and_that_is_said() -> None:
    reader = "conll('t', columns: 'word y', validation: 0, test: 'e')"
    data = load(TAGGER, reader, {"t": SENTENCES, "e": "the D\ndog X\n\ndog X\ncat Z\n"})
    assert data.test is not None
    assert data.notes == ["test: 3 cells have labels of `y` that training never saw (`X`, `Z`): counted as wrong"]
    batch = data.test.batch()
    assert batch.tensors["y"].tolist() == [[1, -1], [-1, -1]]  # no label that a model could be told to give
    assert batch.gold["y"].tolist() == [[1, 3], [3, 4]]
    assert data.test.spelling("y") == ("N", "D", "V", "X", "Z")
    accuracy = data.test.metric("accuracy", "y")
    for best in ([[1, 0], [0, 0]], [[1, 2], [2, 2]]):
        accuracy.update(batch.gold["y"].new_tensor(best), batch.gold["y"])
        assert accuracy.value() == 0.25


@pytest.mark.parametrize("policy", ["error", "count_wrong"])
def test_a_label_of_training_that_the_spec_does_not_list_is_always_an_error(policy: str) -> None:
    reader = f"conll('t', columns: 'word y', validation: 0, unknown: {policy})"
    said = refusal(LISTED, reader, {"t": SENTENCES.replace("cat N", "cat n")})
    check(said, "E0807", "t:6: `n` is no label of `Tag`", "output y : Tag[T]", "did you mean `N`?")
    said = refusal(LISTED, reader, {"t": SENTENCES.replace("cat N", "cat ADJ")})
    check(said, "E0807", "add it to `labels Tag = ...`")


@pytest.mark.parametrize("policy", ["error", "count_wrong"])
def test_training_data_of_a_trained_model_are_judged_as_any_other(policy: str) -> None:
    """Evaluation on the training split alone: nothing is learned, so that an unknown label is not too rare to be."""
    known = load(TAGGER, CONLL, {"t": SENTENCES}).vocabularies
    reader = f"conll('e', columns: 'word y', validation: 0, unknown: {policy})"
    files: dict[str, str | bytes] = {"e": "the D\ndog X\n"}
    if policy == "error":
        said = refusal(TAGGER, reader, files, vocabularies=known, splits=["train"], judged=True)
        check(said, "E0807", "e:2: `X` is no label of `Tag`", "with `unknown: count_wrong` in the `data` line")
    else:
        data = load(TAGGER, reader, files, vocabularies=known, splits=["train"], judged=True)
        assert data.train is not None and data.train.batch().gold["y"].tolist() == [[1, 3]]
        assert data.notes == ["train: 1 cell has a label of `y` that training never saw (`X`): counted as wrong"]
    check(refusal(TAGGER, reader, files, vocabularies=known), "E0807", "e:2: `X`")  # a run that goes on learns from it


def test_tokens_that_training_never_saw_need_a_label() -> None:
    spec = CHARACTERS.replace("Char from data(unknown: '<unk>')", "Char from data")
    reader = "conll('t', columns: 'word y', validation: 0, test: 'e')"
    said = refusal(spec, reader, {"t": "ab N\n", "e": "ab N\naz N\n"})
    check(said, "E0807", "e:2: `z` is no label of `Char`", "input char : Char[T, M]", "from data(unknown: '<unk>')")


@pytest.mark.parametrize("labels", ["Tag", "Word"])
def test_labels_of_training_that_are_too_rare_need_a_label(labels: str) -> None:
    spec = TAGGER.replace("(min: 2, unknown: '<unk>')", "").replace(
        f"{labels} from data", f"{labels} from data(min: 2)"
    )
    check(refusal(spec, CONLL, {"t": "a N\na N\nb V\n"}), "E0807", "t:3: ", "too rare to be kept", "unknown: '<unk>'")


def test_labels_that_are_too_rare_leave_a_set_empty() -> None:
    said = refusal(TAGGER.replace("Tag from data", "Tag from data(min: 9)"), CONLL, {"t": SENTENCES})
    check(said, "E0819", "labels Tag from data", "`N`, has 3")


def test_labels_of_a_network_have_to_be_given() -> None:
    spec = "net mlm = transformers('m')\nlabels R from mlm\ndim T\noutput y : R[T]\nmasked y { conditionals: mlm }\n"
    reader = "lines('t', split: characters, validation: 0)"
    check(refusal(spec, reader, {"t": "AB\n"}), "E0819", "the network `mlm`")
    data = load(spec, reader, {"t": "AB\n"}, vocabularies={"R": ["B", "A"]})
    assert data.train is not None and data.train.batch().tensors["y"].tolist() == [[1, 0]]
    check(refusal(spec, reader, {"t": "AX\n"}, vocabularies={"R": ["B", "A"]}), "E0807", "t:1: `X`")


# ---------------------------------------------------------------------------------------------------------------- files


def test_a_missing_file() -> None:
    check(refusal(TAGGER, CONLL, {}), "E0801", "`t` cannot be read", "data conll('t'", "--root")
    with pytest.raises(DataError, match=r"no_such_folder.t` cannot be read"):
        load_data(Source("s", f"{TAGGER}data {CONLL}\n"), root="no_such_folder")


def test_a_folder_where_a_file_is_expected(tmp_path: Path) -> None:
    check(refusal(TAGGER, CONLL, {"t/one": SENTENCES}), "E0801", "`t` cannot be read: it is a folder, not a file")
    with pytest.raises(DataError, match="it is a folder, not a file") as caught:
        load_data(Source("s", f"{TAGGER}data conll('.', columns: 'word y')\n"), root=tmp_path)
    check(str(caught.value), "E0801", "name one of the files in it")


def test_a_missing_input_file_is_no_matter_of_the_data_line(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        next(stream_data(Source("s", TAGGER), "none", {"Tag": ["N"], "Word": ["a"]}, root=tmp_path, using=CONLL))
    check(str(caught.value), "E0801", "none` cannot be read: there is no such file", "`-` reads standard input")
    assert "--root" not in str(caught.value)


def test_a_missing_folder_of_images() -> None:
    check(refusal(HORSES, "images('i', 'm')", {"x/a.png": b""}), "E0801", "`i` cannot be read: no such folder")


@pytest.mark.parametrize("cut", [4, 30, 40])
def test_a_truncated_gzip_file(cut: int) -> None:
    packed = gzip.compress(SENTENCES.encode() * 10)
    check(refusal(TAGGER, CONLL, {"t.gz": packed[:-cut]}), "E0802", "t.gz:", "ends too early")


def test_a_damaged_gzip_file() -> None:
    packed = bytearray(gzip.compress(SENTENCES.encode() * 10))
    packed[-6] ^= 1  # of the checksum
    check(refusal(TAGGER, CONLL, {"t": bytes(packed)}), "E0802", "is damaged")


@pytest.mark.parametrize("text", ["", "\n\n", "  \n"])
def test_a_file_without_examples(text: str) -> None:
    check(refusal(TAGGER, CONLL, {"t": text}), "E0804", "`t` holds no examples")


def test_text_that_is_not_utf8() -> None:
    check(refusal(TAGGER, CONLL, {"t": "a N\nZürich N\n".encode("latin1")}), "E0803", "t:2: byte 2 of the line, 0xfc")


def test_a_spec_without_data() -> None:
    with pytest.raises(DataError, match="E0820"):
        load_data(Source("s", TAGGER), root={})


# -------------------------------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize("line", ["dog", "dog N x", "dog\t"])
def test_ragged_columns(line: str) -> None:
    check(refusal(TAGGER, CONLL, {"t": f"the D\n{line}\n"}), "E0805", "t:2: expected 2 columns", "data conll(")


def test_columns_that_are_skipped_must_be_there_all_the_same() -> None:
    reader = "conll('t', columns: 'word y _', validation: 0)"
    check(refusal(TAGGER, reader, {"t": "the D\n"}), "E0805", "t:1: expected 3 columns, found 2")


def test_ragged_conllu() -> None:
    check(refusal(TAGGER, "conllu('t')", {"t": "1\tthe\n"}), "E0805", "t:1: expected 10 columns, found 2", "tabs")
    row = "\t".join(["x", *["a"] * 9])
    check(refusal(TAGGER, "conllu('t')", {"t": row}), "E0806", "t:1: expected the number of a word, found `x`")


def test_ragged_letters() -> None:
    line = letter_line("a", -1, 1, 0)
    check(refusal(OCR, "letters('l')", {"l": line.replace("0\t0\t0", "0\t0", 1)}), "E0805", "expected 134 columns")
    check(refusal(OCR, "letters('l')", {"l": "\n" + line.replace("\t0\t\n", "\tz\t\n")}), "E0806", "l:2", "input image")
    check(refusal(OCR, "letters('l')", {"l": line.replace("\t0\t\n", "\t256\t\n")}), "E0806", "from 0 to 255")
    wrong_fold = letter_line("a", -1, 1, 0).replace("\t1\t0\t", "\t1\tx\t", 1)
    check(refusal(OCR, "letters('l')", {"l": wrong_fold}), "E0806", "expected the number of a fold, found `x`")


def test_a_column_that_nothing_declares() -> None:
    said = refusal(TAGGER, "conll('t', columns: 'word tag')", {"t": SENTENCES})
    check(said, "E0815", "`columns` names `tag`")


def test_a_declaration_that_the_reader_does_not_give() -> None:
    spec = TAGGER.replace("input word", "input pos : Word[T]\ninput word")
    check(refusal(spec, CONLL, {"t": SENTENCES}), "E0808", "gives nothing for `pos`", "input pos : Word[T]")
    said = refusal(spec, "letters('l')", {})
    check(said, "E0808", "`letters` gives nothing for `pos`; it gives `image` and `letter`")


# -------------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("line", "code", "part"),
    [
        ('{"vector": [[0, "x"]], "link": [], "y": ["neutral"]}', "E0806", "t:1: expected a number, found `x`"),
        ('{"vector": [[0, NaN]], "link": [], "y": ["neutral"]}', "E0806", "expected a finite number"),
        ('{"vector": [[0, -1e300]], "link": [], "y": ["neutral"]}', "E0806", "number of 32 bits, found `-1e+300`"),
        (
            '{"vector": [[0, 1]], "link": [[0, 18446744073709551615]], "y": ["neutral"]}',
            "E0806",
            "18446744073709551615",
        ),
        ('{"vector": [[0, 1]], "link": [[0, 1e99]], "y": ["neutral"]}', "E0806", "a whole number, found `1e+99`"),
        ('{"vector": [[0, 1]], "link": [[-7, 99999999999999999999]], "y": ["neutral"]}', "E0806", "expected a whole"),
        ('{"vector": [[0, true]], "link": [], "y": ["neutral"]}', "E0806", "found `a truth value`"),
        ('{"vector": [[0, 1]], "link": [], "y": [true]}', "E0806", "found `a truth value`"),
        ('{"vector": [[0, 1]], "link": [[0.5, 0]], "y": ["neutral"]}', "E0806", "expected a whole number, found `0.5`"),
        ('{"vector": [[0, 1]], "link": [[0, 1]], "y": ["neutral"]}', "E0806", "a position of `N`, from 0 to 0"),
        ('{"vector": [[0, 1, 2]], "link": [], "y": ["neutral"]}', "E0816", "input vector : real[N, 2]"),
        ('{"vector": [[0, 1], [2]], "link": [], "y": ["neutral"]}', "E0816", "lists of different lengths"),
        ('{"vector": [[0, 1]], "link": [], "y": ["neutral", "neutral"]}', "E0817", "`y` has 2 along `N`"),
        ('{"vector": [[0, 1]], "link": [], "y": "neutral"}', "E0816", "output y : Sentiment[N]"),
        ('{"vector": [[0, 1]], "link": [], "y": [["neutral"]]}', "E0816", "a list too many"),
        ('{"vector": [[0, 1]], "link": [], "y": [{}]}', "E0816", "where a label should stand"),
        ('{"vector": [[0, 1]], "link": [], "y": ["happy"]}', "E0807", "t:1: `happy` is no label of `Sentiment`"),
        ('{"vector": [[0, 1]], "y": ["neutral"]}', "E0814", "input link : edge(N, N)[E]"),
        ('{"vector": [[0, 1]', "E0812", "t:1: not a JSON object"),
        ("[1]", "E0812", "found a list"),
    ],
)
def test_json_that_does_not_fit(line: str, code: str, part: str) -> None:
    check(refusal(TREE, "jsonl('t', validation: 0)", {"t": line}), code, part)


PIXELS = OCR.replace("real[T, 1, 16, 8]", "real[T, 3, 4, 2]")


def rows(*shape: int) -> str:
    """Two positions with the numbers from 0, in this shape, as JSON."""
    numbers = np.arange(2 * int(np.prod(shape))).reshape(2, *shape)
    return json.dumps({"image": numbers.tolist(), "y": ["a", "b"]})


@pytest.mark.parametrize(
    "shape", [(4, 2, 3), (2, 4, 3), (3, 2, 4), (4, 6), (8, 3), (6, 4), (2, 12), (3, 9), (4, 3, 2, 1)]
)
def test_numbers_in_other_axes_than_declared_are_refused(shape: tuple[int, ...]) -> None:
    """The count is the same, but an axis would be cut across another."""
    said = refusal(PIXELS, "jsonl('t', validation: 0)", {"t": rows(*shape)})
    check(said, "E0816", "t:1: `image` is declared `real[T, 3, 4, 2]`", str([2, *shape]))
    if np.prod(shape) == 24:
        assert "numbers keep their order" in said


@pytest.mark.parametrize("shape", [(24,), (3, 8), (12, 2), (3, 2, 2, 2), (1, 3, 4, 2), (3, 1, 4, 2), (3, 4, 2, 1)])
def test_numbers_in_axes_that_are_split_or_merged_keep_their_order(shape: tuple[int, ...]) -> None:
    data = load(PIXELS, "jsonl('t', validation: 0)", {"t": rows(*shape)})
    assert data.train is not None
    expected = np.arange(48).reshape(1, 2, 3, 4, 2)
    assert data.train.batch().tensors["image"].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("values", "code", "part"),
    [
        ({"y": np.array([0.7])}, "E0806", "expected the number of a label, found `0.7`"),
        ({"y": np.array([np.nan])}, "E0806", "expected the number of a label, found `nan`"),
        ({"y": np.array([True])}, "E0806", "expected the number of a label, found `True`"),
        ({"y": np.array([3])}, "E0807", "`3` is no label"),
        ({"y": np.array([-2])}, "E0807", "`-2` is no label"),
        ({"y": np.array([2**64 - 1], dtype=np.uint64)}, "E0807", "`18446744073709551615` is no label"),
        ({"vector": np.array([[0, 1e300]])}, "E0806", "found `1e+300`"),
        ({"vector": np.array([[0, -1e300]])}, "E0806", "found `-1e+300`"),
        ({"vector": np.array([[0, np.inf]])}, "E0806", "found `inf`"),
        ({"vector": np.array([[True, False]])}, "E0806", "expected a number, found `True`"),
        ({"vector": np.array([[1j, 0]])}, "E0806", "expected a number, found `1j`"),
        ({"link": np.array([[0, 2**64 - 1]], dtype=np.uint64)}, "E0806", "of 64 bits, found `18446744073709551615`"),
        ({"link": np.array([[0.0, 0.0]])}, "E0806", "expected a whole number, found `0.0`"),
    ],
)
def test_arrays_of_readers_are_looked_at_too(
    values: dict[str, np.ndarray], code: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {"vector": np.zeros((1, 2)), "link": np.zeros((1, 2), dtype=np.int64), "y": np.zeros(1, dtype=np.int64)}
    for given in (whole, {**whole, **values}):
        made = [Example(dict(given), "t", 1)]
        monkeypatch.setattr(JsonLines, "read", lambda self, files, wanted=None, made=made: iter(made))
        if given is whole:
            assert load(TREE, "jsonl('t', validation: 0)", {"t": ""}).train is not None
        else:
            check(refusal(TREE, "jsonl('t', validation: 0)", {"t": ""}), code, part)


def test_inputs_cannot_be_left_open() -> None:
    lines = '{"word": ["a", null], "y": ["N", "N"]}\n'
    check(refusal(TAGGER, "jsonl('t', validation: 0)", {"t": lines}), "E0816", "input word", "`null`")


def test_pairs_of_different_lengths() -> None:
    said = refusal(TRANSLATION, "pairs('a.de', 'a.en')", {"a.de": "ja\nnein\n", "a.en": "yes\n"})
    check(said, "E0813", "`a.en` ends with line 1, but `a.de` goes on")


def test_a_translation_longer_than_its_bound() -> None:
    files = {"a.de": "ja\n", "a.en": "y e s y e s\n"}
    said = refusal(TRANSLATION, "pairs('a.de', 'a.en', validation: 0)", files)
    check(said, "E0818", "`y` has 6 labels and an end label, but `T` is at most 6", "output y : Target[T]")


# --------------------------------------------------------------------------------------------------------------- images


def png() -> bytes:
    image = pytest.importorskip("PIL.Image")
    made = io.BytesIO()
    image.new("RGB", (4, 4)).save(made, "png")
    return made.getvalue()


def test_an_image_without_a_mask() -> None:
    files = {"i/a.png": png(), "i/b.png": png(), "m/a.png": png()}
    said = refusal(HORSES, "images('i', 'm')", files)
    check(said, "E0810", "`i/b.png` has no mask: no image in `m` is called `b`", "output y : Seg[H, W]")


def test_a_damaged_image() -> None:
    for bad in (b"none", png()[:40]):
        check(
            refusal(HORSES, "images('i', 'm', validation: 0)", {"i/a.png": bad, "m/a.png": png()}), "E0809", "`i/a.png`"
        )


def test_a_mask_with_numbers_beyond_the_labels() -> None:
    pillow = pytest.importorskip("PIL.Image")
    made = io.BytesIO()
    pillow.new("L", (4, 4), 7).save(made, "png")
    said = refusal(
        HORSES, "images('i', 'm', threshold: none, validation: 0)", {"i/a.png": png(), "m/a.png": made.getvalue()}
    )
    check(said, "E0807", "i/a.png: `7` is no label of `Seg`", "`Seg` has 2 labels")


def test_images_need_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(PackageMissing, match=r"pip install 'energyml\[images\]'"):
        load(HORSES, "images('i', 'm', validation: 0)", {"i/a.png": b"", "m/a.png": b""})


# --------------------------------------------------------------------------------------------------------------- splits


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ("validation: 3", "takes 3 of 3 examples"),
        ("validation: 0.1", "takes 0 of 3 examples"),
        ("validation: 1, test: 2", "`test: 2` takes 2 of 2"),
        ("validation: 0, folds: 2, fold: 2", "folds are counted from 0"),
        ("validation: 0, folds: 4", "3 examples cannot be divided into 4 folds"),
        ("validation: 0, folds: 2, test: 1", "`test` and `folds` both"),
    ],
)
def test_impossible_splits(options: str, part: str) -> None:
    check(refusal(TAGGER, f"conll('t', columns: 'word y', {options})", {"t": SENTENCES}), "E0811", part)


def test_impossible_folds_of_letters() -> None:
    line = letter_line("a", -1, 1, 0)
    check(refusal(OCR, "letters('l', fold: 1, test: 1)", {"l": line}), "E0811", "fold 1 cannot be")
    check(refusal(OCR, "letters('l')", {"l": line}), "E0811", "no word is in a fold for train")


def test_nothing_short_enough_to_train_on() -> None:
    said = refusal(TRANSLATION, "pairs('a.de', 'a.en', longest: 1, validation: 0)", {"a.de": "a b\n", "a.en": "a\n"})
    check(said, "E0811", "every pair for training is longer than 1")


def test_errors_while_streaming_show_the_declaration() -> None:
    source = Source("spec.energy", f"{TAGGER}data {CONLL}\n")
    known = {"Word": ["the", "<unk>"], "Tag": ["D"]}
    parts = stream_data(source, "new", known, root={"new": "the\n\na b c\n"}, size=1)
    assert len(next(parts)) == 1
    with pytest.raises(DataError, match="new:3: expected 2 columns, found 3"):
        next(parts)


def test_another_reader_than_the_spec_names_is_not_pointed_at_in_the_spec() -> None:
    with pytest.raises(DataError) as caught:
        load_data(Source("s", f"{TAGGER}data {CONLL}\n"), root={}, using="conll('x', columns: 'word y')")
    assert "data conll" not in str(caught.value) and "`x` cannot be read" in str(caught.value)
