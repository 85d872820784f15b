"""One contract for every function network: shapes, padding, gradients, dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from energyml.nets.blstm import BLSTM, ForwardLSTM
from energyml.nets.bound import BoundType
from energyml.nets.chars_words import CharsWords
from energyml.nets.cnn1d import CNN1d
from energyml.nets.embedding import Embedding
from energyml.nets.lenet5 import LeNet5
from energyml.nets.linear import Linear
from energyml.nets.mlp import MLP
from energyml.nets.pooled import Pooled
from energyml.nets.unet import UNet

# The sizes of four examples. M is nested: one size for each t.
SIZES: list[dict[str, int]] = [
    {"T": 4, "E": 3, "H": 5, "W": 7},
    {"T": 2, "E": 0, "H": 8, "W": 3},
    {"T": 1, "E": 5, "H": 2, "W": 9},
    {"T": 0, "E": 2, "H": 1, "W": 1},
]
CHARACTERS = [[3, 0, 1, 4], [2, 5], [1], []]


def real(*axes: int | str) -> BoundType:
    shape = tuple(axis if isinstance(axis, int) else None for axis in axes)
    return BoundType(None, shape, tuple(axis if isinstance(axis, str) else None for axis in axes))


def label(classes: int, *dims: str) -> BoundType:
    return BoundType(classes, (None,) * len(dims), dims)


@dataclass(frozen=True)
class Case:
    make: Callable[..., nn.Module]
    inputs: tuple[BoundType, ...]
    output: BoundType

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make(self.inputs, self.output).double()


WORDS = label(7, "T")
CHARS = label(5, "T", "M")
POS = label(3, "T")
CASES = {
    "linear": Case(Linear, (real("T", 2, 3), WORDS), real("T", 4)),
    "linear-pairs": Case(Linear, (real("E", 6),), real("E", 4, 2)),
    "linear-nested": Case(partial(Linear, bias=False), (CHARS,), real("T", "M", 4)),
    "linear-scalar": Case(Linear, (real(3),), real()),
    "linear-column": Case(Linear, (real("T", 3),), real("T")),
    "mlp": Case(partial(MLP, hidden=6, layers=2), (real("T", 2, 3), WORDS), real("T", 4)),
    "mlp-gelu": Case(partial(MLP, hidden=6, activation="gelu"), (real("E", 6),), real("E", 2, 2)),
    "embedding": Case(Embedding, (WORDS,), real("T", 4)),
    "lenet5": Case(partial(LeNet5, activation="sigmoid"), (real("T", 1, 16, 8),), real("T", 4)),
    "lenet5-single": Case(partial(LeNet5, hidden=9), (real(3, 40, 33),), real(4)),
    "blstm": Case(partial(BLSTM, hidden=5), (real("T", 2, 3), WORDS), real("T", 4)),
    "blstm-deep": Case(partial(BLSTM, hidden=5, layers=2), (WORDS,), real("T", 2, 3)),
    "blstm-states": Case(partial(BLSTM, hidden=5, project=False), (WORDS,), real("T", 10)),
    "lstm": Case(partial(ForwardLSTM, hidden=5), (WORDS,), real("T", 4)),
    "cnn1d": Case(partial(CNN1d, hidden=5, layers=2, width=5), (real("T", 2), WORDS), real("T", 4)),
    "chars_words": Case(partial(CharsWords, hidden=6), (CHARS, WORDS, POS), real("T", 4)),
    "chars_words-linear": Case(partial(CharsWords, hidden=6, body="linear"), (CHARS, WORDS), real("T", 4)),
    "chars_words-cnn": Case(partial(CharsWords, hidden=6, layers=1, char_body="cnn"), (CHARS, WORDS), real("T", 4)),
    "chars_words-states": Case(partial(CharsWords, hidden=6, project=False), (CHARS, WORDS), real("T", 12)),
    "pooled": Case(partial(Pooled, activation="tanh"), (real("T", 2), WORDS), real()),
    "pooled-nested": Case(partial(Pooled, hidden=6), (CHARS,), real(4)),
    "unet": Case(partial(UNet, channels=3), (real(2, "H", "W"),), real(4, "H", "W")),
    "unet-instance": Case(
        partial(UNet, channels=3, depth=2, norm="instance"), (real(2, "H", "W"),), real(2, 2, "H", "W")
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def nested_mask(lengths: list[int], words: int, most: int) -> Tensor:
    padded = torch.tensor([*lengths, *[0] * (words - len(lengths))], dtype=torch.int64)
    return torch.arange(most) < padded.unsqueeze(1)


def one(case: Case, example: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The arguments of one example as a batch of one without padding, except of the nested dim."""
    generator = torch.Generator().manual_seed(example)
    lengths = CHARACTERS[example]
    most = max(lengths, default=0)
    sizes = {**SIZES[example], "M": most}
    args = []
    for given in case.inputs:
        shape = [
            1,
            *(extent if dim is None else sizes[dim] for extent, dim in zip(given.shape, given.dims, strict=True)),
        ]
        if given.classes is None:
            args.append(torch.randn(shape, generator=generator, dtype=torch.float64))
        else:
            args.append(torch.randint(given.classes, shape, generator=generator))
    return args, {"M": nested_mask(lengths, len(lengths), most).unsqueeze(0)}


def together(case: Case, extra: int, garbage: float) -> tuple[list[Tensor], dict[str, Tensor]]:
    """All examples as a batch with ``extra`` more padding than needed, which holds ``garbage`` (labels: -1)."""
    longest = {dim: max(sizes[dim] for sizes in SIZES) + extra for dim in SIZES[0]}
    longest["M"] = max(map(max, CHARACTERS[:-1])) + extra
    args = []
    for number, given in enumerate(case.inputs):
        shape = [extent if dim is None else longest[dim] for extent, dim in zip(given.shape, given.dims, strict=True)]
        fill, dtype = (garbage, torch.float64) if given.classes is None else (-1, torch.int64)
        batch = torch.full([len(SIZES), *shape], fill, dtype=dtype)
        for example in range(len(SIZES)):
            alone = one(case, example)[0][number][0]
            batch[example][tuple(map(slice, alone.shape))] = alone
        args.append(batch)
    masks = {dim: torch.arange(longest[dim]) < torch.tensor([s[dim] for s in SIZES]).unsqueeze(1) for dim in SIZES[0]}
    masks["M"] = torch.stack([nested_mask(lengths, longest["T"], longest["M"]) for lengths in CHARACTERS])
    return args, masks


@every_case
@pytest.mark.parametrize("garbage", [1e3, float("nan")])
def test_batch_equals_loop_of_singles(case: Case, garbage: float) -> None:
    net = case.build()
    for extra in (0, 3):
        args, masks = together(case, extra, garbage)
        batch = net(*args, masks=masks)
        assert batch.isfinite().all()
        for example in range(len(SIZES)):
            alone_args, alone_masks = one(case, example)
            alone = net(*alone_args, masks=alone_masks)[0]
            same = batch[example][tuple(map(slice, alone.shape))]
            if "M" in case.output.dims:
                exists = alone_masks["M"][0]
                alone, same = alone[exists], same[exists]
            torch.testing.assert_close(same, alone)


@every_case
def test_shape_and_dtype(case: Case) -> None:
    net = case.build().float()
    args, masks = together(case, 1, 0.0)
    args = [arg.float() if arg.is_floating_point() else arg for arg in args]
    result = net(*args, masks=masks)
    found = {dim: mask.shape[-1] for dim, mask in masks.items()}
    wanted = [
        extent if dim is None else found[dim] for extent, dim in zip(case.output.shape, case.output.dims, strict=True)
    ]
    assert list(result.shape) == [len(SIZES), *wanted]
    assert result.dtype == torch.float32


@every_case
def test_gradients_reach_every_parameter_and_stay_finite(case: Case) -> None:
    net = case.build()
    args, masks = together(case, 2, float("nan"))
    args = [arg.requires_grad_() if arg.is_floating_point() else arg for arg in args]
    (net(*args, masks=masks).square().sum()).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name
    for arg in args:
        if arg.is_floating_point():
            assert arg.grad is not None
            assert (arg.grad[arg.isnan()] == 0).all()
            assert arg.grad.abs().sum() > 0


@every_case
def test_no_masks_means_no_padding(case: Case) -> None:
    net = case.build()
    args, masks = together(case, 0, 0.5)
    full = {dim: torch.ones_like(mask) for dim, mask in masks.items()}
    torch.testing.assert_close(net(*args, masks={}), net(*args, masks=full))


@every_case
def test_nothing_waits_for_the_device(case: Case) -> None:
    """A meta tensor has no values that the host could ask for."""
    args, masks = together(case, 1, 0.0)
    wanted = case.build()(*args, masks=masks)
    found = case.build().to("meta")(
        *(arg.to("meta") for arg in args), masks={dim: mask.to("meta") for dim, mask in masks.items()}
    )
    assert found.shape == wanted.shape


@pytest.mark.parametrize("name", ["lenet5", "chars_words", "chars_words-cnn"])
def test_skipping_padding_on_the_cpu_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = CASES[name].build()
    args, masks = together(CASES[name], 1, float("nan"))
    skipping = net(*args, masks=masks)[masks["T"]]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    computing = net(*args, masks=masks)
    assert computing.isfinite().all()
    torch.testing.assert_close(computing[masks["T"]], skipping)


SEQUENCES = [name for name, case in CASES.items() if case.output.dims[:1] == ("T",)]


@pytest.mark.parametrize("name", SEQUENCES)
def test_empty_sequences(name: str) -> None:
    case = CASES[name]
    net = case.build()
    args, masks = together(case, 0, 0.0)
    nothing = {dim: torch.zeros_like(mask) for dim, mask in masks.items()}
    assert net(*args, masks=nothing).isfinite().all()
    cut = {dim: mask[:, :0] for dim, mask in masks.items()}
    assert net(*(arg[:, :0] for arg in args), masks=cut).shape[:2] == (len(SIZES), 0)


@pytest.mark.parametrize("name", SEQUENCES)
def test_gaps_in_the_mask_are_skipped(name: str) -> None:
    case = CASES[name]
    net = case.build()
    args, masks = one(case, 0)
    kept = torch.tensor([0, 2, 3])
    gap = {**masks, "T": torch.tensor([[True, False, True, True]])}
    short = net(*(arg[:, kept] for arg in args), masks={"M": masks["M"][:, kept]})
    exists = masks["M"][0, kept] if "M" in case.output.dims else slice(None)
    torch.testing.assert_close(net(*args, masks=gap)[0, kept][exists], short[0][exists])


@pytest.mark.parametrize("layers", [1, 2])
def test_blstm_equals_the_one_of_torch(layers: int) -> None:
    torch.manual_seed(1)
    net = BLSTM((real("T", 3),), real("T", 8), hidden=4, layers=layers, project=False)
    theirs = nn.LSTM(3, 4, layers, bidirectional=True, batch_first=True)
    for layer, (ahead, back) in enumerate(zip(net.stack.ahead, net.stack.back, strict=True)):
        for source, suffix in ((ahead, ""), (back, "_reverse")):
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(theirs, f"{kind}_l{layer}{suffix}").data.copy_(getattr(source, f"{kind}_l0"))
    x = torch.randn(3, 6, 3)
    lengths = torch.tensor([6, 2, 4])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    wanted, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    mask = torch.arange(6) < lengths.unsqueeze(1)
    torch.testing.assert_close(net(x, masks={"T": mask})[mask], wanted[mask])


def test_characters_end_with_the_last_and_the_first_one() -> None:
    torch.manual_seed(1)
    net = CharsWords((CHARS, WORDS), real("T", 2), char_layers=1, chars=4, hidden=3)
    assert net.char_lstm is not None
    word = torch.tensor([[1, 4, 2]])
    embedded = net.char_embedding(word)
    ahead = net.char_lstm.ahead[0](embedded)[1][0][0]
    back = net.char_lstm.back[0](embedded.flip(1))[1][0][0]
    found = net._read_words(torch.tensor([[1, 4, 2, -1, -1]]))
    torch.testing.assert_close(found, torch.cat([ahead, back], dim=1))
    assert (net._read_words(torch.tensor([[-1, -1]])) == 0).all()


@pytest.mark.parametrize("char_body", ["blstm", "cnn"])
def test_words_are_read_once_and_by_length_without_changing_them(char_body: str) -> None:
    torch.manual_seed(2)
    net = CharsWords((CHARS, WORDS), real("T", 2), chars=4, hidden=3, char_body=char_body).double()
    words = torch.randint(5, (12, 19))
    lengths = torch.tensor([0, 1, 3, 4, 5, 8, 9, 16, 17, 19, 2, 7])  # each group of lengths, and both of its ends
    words[torch.arange(19) >= lengths.unsqueeze(1)] = -1
    words[9, 3:5] = -1  # a gap
    batch = words[torch.randint(12, (40,))]
    found, wanted = net._read_distinct(batch), net._read_words(batch)
    torch.testing.assert_close(found, wanted)
    weights = torch.randn_like(wanted)
    read = [each for name, each in net.named_parameters() if name.startswith("char_")]
    for ours, theirs in zip(*(torch.autograd.grad((each * weights).sum(), read) for each in (found, wanted)),
                            strict=True):  # fmt: skip
        torch.testing.assert_close(ours, theirs)


def test_lenet5_has_the_sizes_of_the_paper() -> None:
    net = LeNet5((real("T", 1, 16, 8),), real("T", 26))
    shapes = {name: tuple(parameter.shape) for name, parameter in net.named_parameters() if "weight" in name}
    assert shapes == {
        "conv1.weight": (10, 1, 5, 5),
        "conv2.weight": (20, 10, 5, 5),
        "fc1.weight": (140, 500),
        "fc2.weight": (26, 140),
    }


@pytest.mark.parametrize("height", [1, 9, 16, 24, 25, 26, 27, 31, 32, 33, 40])
def test_lenet5_equals_convolutions_of_the_padded_image(height: int) -> None:
    for width in (8, 29, 30, 37):
        net = LeNet5((real(2, height, width),), real(26)).double()
        images = torch.randn(3, 2, height, width, dtype=torch.float64)
        missing_h, missing_w = max(0, 32 - height), max(0, 32 - width)
        around = (missing_w // 2, missing_w - missing_w // 2, missing_h // 2, missing_h - missing_h // 2)
        x = nn.functional.pad(images, around)
        for conv in (net.conv1, net.conv2):
            x = nn.functional.max_pool2d(conv(x).relu(), 2)
        torch.testing.assert_close(net(images, masks={}), net.fc2(net.fc1(x.flatten(1)).relu()))


def test_dropout_only_while_training() -> None:
    for make in (MLP, BLSTM, CNN1d):
        net = make((WORDS,), real("T", 4), dropout=0.5)
        words = torch.randint(7, (2, 5))
        assert not torch.equal(net(words, masks={}), net(words, masks={}))
        net.eval()
        assert torch.equal(net(words, masks={}), net(words, masks={}))


def test_shorter_axes_use_the_end_of_the_mask() -> None:
    """An axis of extent T-1 comes with the mask of T."""
    net = Linear((real("T", 3),), real("T", 2)).double()
    x = torch.randn(2, 3, 3, dtype=torch.float64)
    x[1, 1:] = float("nan")
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    result = net(x, masks={"T": mask})
    assert result.isfinite().all()
    torch.testing.assert_close(result[1, 0], net(x[1:, :1], masks={})[0, 0])


@pytest.mark.parametrize(
    ("make", "inputs", "output", "options", "message"),
    [
        (MLP, (WORDS,), real("T", 4), {"activation": "rely"}, "activation: 'rely' is not one of relu, tanh"),
        (MLP, (WORDS,), real("T", 4), {"layers": 0}, "layers: 0 is not at least 1"),
        (LeNet5, (real("T", 1, 16, 8),), real("T", 4), {"activation": "tanh"}, "not one of relu, sigmoid"),
        (LeNet5, (real("T", 1, "H", 8),), real("T", 4), {}, "only known at run time"),
        (LeNet5, (WORDS,), real("T", 4), {}, "exactly one input"),
        (CNN1d, (WORDS,), real("T", 4), {"width": 4}, "width: 4 is even"),
        (CNN1d, (WORDS,), real("E", 4), {}, "share their first axis"),
        (BLSTM, (WORDS,), real("T", 4), {"project": False}, "200 values a position, not 4"),
        (BLSTM, (real("T", "M"),), real("T", 4), {}, "input 1 has an axis whose size is only known at run time"),
        (Linear, (WORDS, label(3, "E")), real("T", 4), {}, "only known at run time"),
        (Linear, (), real(4), {}, "no input feature"),
        (CharsWords, (WORDS,), real("T", 4), {}, "characters"),
        (CharsWords, (CHARS, WORDS), real("T", 4), {"body": "gru"}, "body: 'gru' is not one of blstm, linear"),
        (CharsWords, (CHARS, WORDS), real("T", 4), {"project": False}, "600 values a position, not 4"),
        (Pooled, (WORDS, label(3, "E")), real(), {}, "share their leading dims"),
        (Embedding, (real("T", 3),), real("T", 4), {}, "one input, of labels"),
        (UNet, (real(3, "H", "W"),), real(4, "W", "H"), {}, "last two axes"),
    ],
)
def test_mistakes_are_named(
    make: Callable[..., nn.Module],
    inputs: tuple[BoundType, ...],
    output: BoundType,
    options: Mapping[str, object],
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        make(inputs, output, **options)


def test_unet_takes_any_size() -> None:
    net = UNet((real(1, "H", "W"),), real(2, "H", "W"), channels=2)
    for height, width in product((1, 8, 11), (3, 16)):
        assert net(torch.randn(2, 1, height, width), masks={}).shape == (2, 2, height, width)
