"""The catalogue of networks: names, options and typing rules, without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from energyml.cards.card import Card, Selection
from energyml.cards.options import Axes, Flag, Option, Real, Text, Whole, Word
from energyml.model.types import REAL, Axis, TensorType, number_axis

Arguments = tuple[TensorType, ...]
NetRole = Literal["function", "step", "masked"]


class BadArguments(Exception):
    """Arguments that a network does not take; `position` is the one at fault, or None for their number."""

    def __init__(self, message: str, position: int | None = None) -> None:
        self.position = position
        super().__init__(message)


def _fits(selection: Selection) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class NetCard(Card):
    """A network's card.

    Attributes:
        role: an ordinary function of tensors, a step network for `sequence`, or masked conditionals for `masked`.
        result: the type of a call, for functions.
        any_options: whether options beyond the declared ones are passed on (only `python`).
        misfits: options that do not fit the others, each with what would.
    """

    role: NetRole = "function"
    result: Callable[[Arguments, Selection], TensorType] | None = None
    any_options: bool = False
    misfits: Callable[[Selection], Mapping[str, str]] = _fits


# --------------------------------------------------------------------------------------------------------- typing rules


def leading_dims(argument: TensorType) -> tuple[Axis, ...]:
    """The axes over dims before the first feature axis."""
    lead: list[Axis] = []
    for axis in argument.axes:
        if axis.extent.kind != "dim":
            break
        lead.append(axis)
    return tuple(lead)


def _shared_index(arguments: Arguments) -> tuple[Axis, ...]:
    if not arguments:
        raise BadArguments("needs at least one argument")
    first = leading_dims(arguments[0])
    for position, argument in enumerate(arguments):
        lead = leading_dims(argument)
        if any(axis.extent.kind == "dim" for axis in argument.axes[len(lead) :]):
            raise BadArguments(f"takes tensors whose dims come before their features, found `{argument}`", position)
        if [axis.extent for axis in lead] != [axis.extent for axis in first]:
            found = f"`{arguments[0]}` and `{argument}`"
            raise BadArguments(f"takes arguments that share their leading dims, found {found}", position)
    return first


def _one(arguments: Arguments) -> TensorType:
    if len(arguments) != 1:
        raise BadArguments(f"takes one argument, found {len(arguments) or 'none'}")
    return arguments[0]


def _pointwise(arguments: Arguments, selection: Selection) -> TensorType:
    return TensorType(REAL, (*_shared_index(arguments), *selection["out"]))


def _over_sequence(arguments: Arguments, selection: Selection, directions: int = 2) -> TensorType:
    index = _shared_index(arguments)
    if len(index) != 1:
        raise BadArguments(f"takes sequences, whose one leading axis is a dim; found `{arguments[0]}`", 0)
    out = selection["out"] or (number_axis(directions * selection["hidden"]),)
    return TensorType(REAL, (*index, *out))


def _from_left(arguments: Arguments, selection: Selection) -> TensorType:
    return _over_sequence(arguments, selection, directions=1)


def _images(arguments: Arguments, selection: Selection) -> TensorType:
    image = _one(arguments)
    index = leading_dims(image)
    rest = image.axes[len(index) :]
    if image.element != REAL or len(rest) != 3 or any(axis.extent.kind != "number" for axis in rest):
        raise BadArguments(f"takes images of a fixed size, `real[..., channels, height, width]`; found `{image}`", 0)
    return TensorType(REAL, (*index, *selection["out"]))


def _dense_image(arguments: Arguments, selection: Selection) -> TensorType:
    image = _one(arguments)
    sizes = image.axes[1:]
    flat = len(sizes) == 2 and all(axis.extent.kind == "dim" for axis in sizes)
    if image.element != REAL or not flat or image.axes[0].extent.kind == "dim":
        raise BadArguments(f"takes one image over two dims, `real[channels, H, W]`; found `{image}`", 0)
    return TensorType(REAL, (*selection["out"], *sizes))


def _embedded(arguments: Arguments, selection: Selection) -> TensorType:
    labels = _one(arguments)
    if labels.element == REAL:
        raise BadArguments(f"takes labels, found `{labels}`", 0)
    return TensorType(REAL, (*labels.axes, *selection["out"]))


def _words_with_characters(arguments: Arguments, selection: Selection) -> TensorType:
    if len(arguments) not in (2, 3):
        found = f"{len(arguments) or 'no'} argument{'s' if len(arguments) != 1 else ''}"
        raise BadArguments(f"takes characters, words and optionally part-of-speech labels, found {found}")
    for position, argument in enumerate(arguments):
        if argument.element == REAL:
            raise BadArguments(f"takes labels, found `{argument}`", position)
    characters, *words = arguments
    if len(characters.axes) != 2 or any(axis.extent.kind != "dim" for axis in characters.axes):
        raise BadArguments(f"takes the characters of each word first, `Char[T, M]`; found `{characters}`", 0)
    for position, argument in enumerate(words, start=1):
        if [axis.extent for axis in argument.axes] != [characters.axes[0].extent]:
            over = characters.axes[0].extent
            raise BadArguments(f"takes one label for each word, over `{over}`; found `{argument}`", position)
    states = selection["hidden"] if selection["body"] == "linear" else 2 * selection["hidden"]
    return TensorType(REAL, (characters.axes[0], *(selection["out"] or (number_axis(states),))))


def _pooled(arguments: Arguments, selection: Selection) -> TensorType:
    _shared_index(arguments)
    return TensorType(REAL, selection["out"] or ())


def _heads(selection: Selection) -> Mapping[str, str]:
    hidden, heads = selection["hidden"], selection["heads"]
    return {} if hidden % heads == 0 else {"heads": f"a divisor of {hidden}, the size of `hidden`"}


def _odd_width(selection: Selection) -> Mapping[str, str]:
    return {} if selection["width"] % 2 else {"width": "an odd number"}


# -------------------------------------------------------------------------------------------------------------- options

_OUT = Option("out", Axes(), summary="the fixed axes of the result: a label set, a size, or a list of axes")
_OUT_OPTIONAL = Option("out", Axes(), None, "the fixed axes of the result; the hidden states when left out")
_EMBED = Option("embed", Whole(), 50, "size of the vectors that stand for label-valued inputs")
_VECTORS = Option("vectors", Text(), None, "a file of pretrained vectors for the first label-valued input")
_DROPOUT = Option("dropout", Real(0, 1), 0.0, "share of units dropped in training")
_ACTIVATION = Option("activation", Word(("relu", "tanh", "sigmoid", "gelu")), "relu", "the non-linearity")
_HEADS = Option("heads", Whole(), 4, "attention heads; they divide `hidden`")


def _hidden(default: int) -> Option:
    return Option("hidden", Whole(), default, "units of a hidden layer")


def _layers(default: int) -> Option:
    return Option("layers", Whole(), default, "how many layers")


_WORD_OPTIONS = (
    _OUT_OPTIONAL,
    Option("chars", Whole(), 50, "units of the character network"),
    Option("char_layers", Whole(), 2, "layers of the character LSTM"),
    Option("char_embed", Whole(), 10, "size of a character vector"),
    Option("char_body", Word(("blstm", "cnn")), "blstm", "what reads the characters"),
    Option("words", Whole(), 50, "size of a word vector"),
    Option("vectors", Text(), None, "a file of pretrained word vectors"),
    Option("pos", Whole(), 10, "size of a part-of-speech vector"),
    Option("body", Word(("blstm", "linear")), "blstm", "what reads the concatenation"),
    _hidden(300),
    _layers(2),
    _DROPOUT,
)
_DECODER_OPTIONS = (
    _hidden(100),
    _EMBED,
    _layers(1),
    Option("attention", Word(("none", "aligned", "dot", "bahdanau")), "none", "how it looks at what is given"),
    Option("cell", Word(("lstm", "gru")), "lstm", "the recurrent cell"),
)

# ---------------------------------------------------------------------------------------------------------------- cards


def _function(
    name: str,
    summary: str,
    result: Callable[[Arguments, Selection], TensorType],
    options: tuple[Option, ...],
    implementation: str,
    source: str = "",
    misfits: Callable[[Selection], Mapping[str, str]] = _fits,
) -> NetCard:
    target = f"energyml.nets.{implementation}"
    return NetCard("net", name, summary, options, 0, target, source, result=result, misfits=misfits)


def _role(
    role: NetRole,
    name: str,
    summary: str,
    options: tuple[Option, ...],
    implementation: str,
    source: str = "",
    misfits: Callable[[Selection], Mapping[str, str]] = _fits,
) -> NetCard:
    return NetCard(
        "net", name, summary, options, 0, f"energyml.nets.{implementation}", source, role=role, misfits=misfits
    )


CARDS: tuple[NetCard, ...] = (
    _function(
        "linear",
        "one affine layer at each position",
        _pointwise,
        (_OUT, _EMBED, Option("bias", Flag(), True, "whether to add a bias")),
        "linear:Linear",
    ),
    _function(
        "mlp",
        "a multi-layer perceptron at each position",
        _pointwise,
        (_OUT, _hidden(100), _layers(1), _ACTIVATION, _DROPOUT, _EMBED),
        "mlp:MLP",
    ),
    _function("embedding", "a vector for each label", _embedded, (_OUT, _VECTORS), "embedding:Embedding"),
    _function(
        "lenet5",
        "the convolutional network for small images",
        _images,
        (_OUT, Option("activation", Word(("relu", "sigmoid")), "relu", "after the last hidden layer"), _hidden(140)),
        "lenet5:LeNet5",
        "Shevchenko & Osokin 2019, section 2 and appendix B",
    ),
    _function(
        "blstm",
        "a bidirectional LSTM over a sequence",
        _over_sequence,
        (_OUT_OPTIONAL, _hidden(100), _layers(1), _EMBED, _VECTORS, _DROPOUT),
        "blstm:BLSTM",
        "Tu & Gimpel 2019, section 3",
    ),
    _function(
        "lstm",
        "an LSTM over a sequence from left to right",
        _from_left,
        (_OUT_OPTIONAL, _hidden(100), _layers(1), _EMBED, _VECTORS, _DROPOUT),
        "blstm:ForwardLSTM",
        "Goyal et al. 2019, section 4",
    ),
    _function(
        "cnn1d",
        "convolutions over a sequence, without pooling",
        _over_sequence,
        (
            _OUT,
            _hidden(100),
            Option("width", Whole(), 3, "positions that a filter sees (odd)"),
            _layers(1),
            _EMBED,
            _DROPOUT,
        ),
        "cnn1d:CNN1d",
        "Tu & Gimpel 2019, section 4.1",
        _odd_width,
    ),
    _function(
        "chars_words",
        "characters, word vectors and part-of-speech vectors, then a body",
        _words_with_characters,
        _WORD_OPTIONS,
        "chars_words:CharsWords",
        "Shevchenko & Osokin 2019, appendix B",
    ),
    _function(
        "unet",
        "an image-to-image convolutional network",
        _dense_image,
        (
            _OUT,
            Option("channels", Whole(), 16, "channels of the first level"),
            Option("depth", Whole(1, 6), 3, "levels"),
            Option("norm", Word(("none", "instance")), "none", "normalisation after each convolution"),
        ),
        "unet:UNet",
    ),
    _function(
        "pooled",
        "a perceptron over the mean of a sequence: one score for the whole",
        _pooled,
        (
            Option("out", Axes(), None, "the fixed axes of the result; a single number when left out"),
            _hidden(100),
            _EMBED,
            _ACTIVATION,
        ),
        "pooled:Pooled",
    ),
    _role(
        "step",
        "lstm_decoder",
        "a recurrent decoder, one label at a time",
        _DECODER_OPTIONS,
        "step:LSTMDecoder",
        "Goyal et al. 2018, section 2",
    ),
    _role(
        "step",
        "transformer_decoder",
        "a causal Transformer with a key/value cache, one label at a time",
        (_hidden(128), _HEADS, _layers(2)),
        "step:TransformerDecoder",
        misfits=_heads,
    ),
    _role(
        "masked",
        "masked_blstm",
        "left and right LSTM states around each position: all conditionals in one pass",
        (_hidden(100), _EMBED, _layers(1)),
        "masked:MaskedBLSTM",
        "Goyal 2021, chapter 6",
    ),
    _role(
        "masked",
        "masked_transformer",
        "a bidirectional Transformer, one masked pass for each position",
        (_hidden(64), _HEADS, _layers(2)),
        "masked:MaskedTransformer",
        "Goyal 2021, chapter 6",
        _heads,
    ),
    NetCard(
        "net",
        "transformers",
        "a pretrained masked language model, read from local files",
        (
            Option("path", Text(), summary="a local folder, or a name when `online` is true"),
            Option("online", Flag(), False, "whether files may be fetched"),
        ),
        1,
        "energyml.nets.masked_pretrained:PretrainedMasked",
        role="masked",
    ),
    NetCard(
        "net",
        "python",
        "any importable torch.nn.Module, with its declared type",
        (Option("target", Text(), summary="package.module:Class"),),
        1,
        any_options=True,
    ),
)
