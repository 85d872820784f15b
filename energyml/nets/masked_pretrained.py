"""Pretrained masked language models of Hugging Face as masked networks: `net mlm = transformers('folder')`.

The package `transformers` is an optional extra, imported when such a network is built.  Files are local unless the spec
says `online: true`; weights are read as data (safetensors, or `torch.load` with `weights_only`), and no code that comes
with a model is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from energyml.diagnostics import EnergyError
from energyml.nets.bound import BoundType
from energyml.nets.features import Masks, existing
from energyml.nets.order import Order

# Numbers that the widest activations of a pass may hold: those of a layer, or the scores of all tokens.
ACTIVATIONS = 1 << 25
# How tokens that begin a word are written by byte-level and by sentence-piece tokenizers.
WORD_STARTS = ("", "Ġ", "▁")
# Tokens without a meaning, which some vocabularies keep in reserve.
_RESERVED = re.compile(r"[\[<]unused_?\d+[\]>]")
# Models that count positions from behind the padding symbol's number.
_SHIFTED = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "esm", "longformer", "ibert", "mpnet")


class Vocabulary(NamedTuple):
    """What a tokenizer says about sequences.

    Attributes:
        tokens: the real tokens in the order of their numbers: no mask, no padding, nothing else that is special.
        numbers: by token: its number in the model.
        before: the special tokens before a sequence.
        behind: those behind it.
        mask: the mask symbol.
        pad: what stands behind the end of shorter sequences.
    """

    tokens: tuple[str, ...]
    numbers: dict[str, int]
    before: tuple[int, ...]
    behind: tuple[int, ...]
    mask: int
    pad: int


def real_labels(path: str, online: bool = False) -> tuple[str, ...]:
    """The labels of `labels X from mlm`: the real tokens of a pretrained model, in its own order.

    A token is a label, also where it is a part of a word (`##ing`).

    Args:
        path: a local folder, or a name.
        online: whether files may be fetched.
    """
    return read_vocabulary(path, online).tokens


@lru_cache(maxsize=8)
def read_vocabulary(path: str, online: bool = False) -> Vocabulary:
    """The tokens of a pretrained model and the special tokens around its sequences; arguments as in `real_labels`."""
    tokenizer = _opened("AutoTokenizer", path, online)
    size = int(_opened("AutoConfig", path, online).vocab_size)
    if tokenizer.mask_token_id is None:
        raise EnergyError(f"`transformers('{path}')` has no mask symbol, so it is no masked language model")
    special = set(tokenizer.all_special_ids)
    every = tokenizer.convert_ids_to_tokens(list(range(min(size, len(tokenizer)))))
    numbers: dict[str, int] = {
        token: number
        for number, token in enumerate(every)
        if number not in special and token is not None and not _RESERVED.fullmatch(token)
    }
    before, behind = _around(tokenizer, numbers)
    pad = tokenizer.pad_token_id
    return Vocabulary(tuple(numbers), numbers, before, behind, int(tokenizer.mask_token_id), 0 if pad is None else pad)


def _around(tokenizer: Any, numbers: dict[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that the tokenizer puts before and behind a text."""
    for token in numbers:
        found = tokenizer(token, add_special_tokens=True, return_special_tokens_mask=True)
        own = [place for place, special in enumerate(found["special_tokens_mask"]) if not special]
        if own:
            ids = found["input_ids"]
            return tuple(ids[: own[0]]), tuple(ids[own[-1] + 1 :])
    return (), ()


def _opened(kind: str, path: str, online: bool, **more: Any) -> Any:
    try:
        package: Any = import_module("transformers")
    except ImportError as problem:
        raise EnergyError(
            f"`transformers('{path}')` needs Hugging Face's package: `pip install 'energyml[transformers]'`"
        ) from problem
    try:
        with _quiet(package):
            return getattr(package, kind).from_pretrained(
                path, local_files_only=not online, trust_remote_code=False, **more
            )
    except (OSError, ValueError, KeyError) as problem:
        hint = "" if online else "; give a local folder, or fetch it by name with `online: true`"
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise EnergyError(f"`transformers('{path}')` cannot be read: {reason}{hint}") from problem


@contextmanager
def _quiet(package: Any) -> Iterator[None]:
    """No bars and no reports of loaders: what matters about missing weights is said here, as an error."""
    logging = package.utils.logging
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


class PretrainedMasked(nn.Module):
    """A pretrained masked language model: one masked position in each copy of a sequence, as it was trained.

    Special tokens stand around every sequence, shorter ones are padded behind them, and scores are those of the labels'
    tokens alone, so that a softmax over them never sees a special token.  Cost: T passes over T positions and the
    special ones, in batches of copies of all rows.

    Args:
        labels: the labels, each a token of the model; a word may stand for the token that begins one (`Ġword`).
        given: nothing: the model reads its tokens alone.
        path: a local folder, or a name.
        online: whether files may be fetched.
        dim: the dim that the sequence runs over, whose mask says which positions exist.
    """

    tokens: Tensor

    def __init__(
        self, labels: Sequence[str], given: tuple[BoundType, ...] = (), *, path: str, online: bool = False, dim: str
    ) -> None:
        super().__init__()
        if given:
            raise EnergyError(f"`transformers('{path}')` reads nothing beside its tokens; leave `given` out")
        self.vocabulary, self.dim = read_vocabulary(path, online), dim
        numbers = [_number(label, self.vocabulary, path) for label in labels]
        self.register_buffer("tokens", torch.tensor(numbers, dtype=torch.long), persistent=False)
        self.model, missing = _opened("AutoModelForMaskedLM", path, online, output_loading_info=True, weights_only=True)
        lacking = sorted(missing["missing_keys"])
        if lacking:
            raise EnergyError(
                f"`transformers('{path}')` has no weights for `{lacking[0]}`, so it would score at random; it needs a "
                "masked language model with its head"
            )
        config = self.model.config
        shift = (config.pad_token_id or 0) + 1 if config.model_type in _SHIFTED else 0
        most = getattr(config, "max_position_embeddings", None)
        special = len(self.vocabulary.before) + len(self.vocabulary.behind)
        self.longest: int | None = None if not most else int(most) - shift - special
        self.width = max(int(config.vocab_size), 4 * int(getattr(config, "hidden_size", 256)))

    def masked_scores(self, y: Tensor, given: tuple[Tensor, ...], masks: Masks) -> Tensor:
        """Labels ``[B, T]`` to scores ``[B, T, labels]``: the model's own, before any softmax."""
        batch, length = y.shape
        self._check_length(length)
        order = Order(existing([self.dim], masks, y.shape))
        ids = order.compact(self.tokens[y.clamp(min=0)].unsqueeze(-1)).squeeze(-1)
        rows, attention = self._framed(ids, order)
        start = len(self.vocabulary.before)
        if not batch or not length:
            return self._nothing(batch, length)
        pairs = torch.arange(batch * length, device=y.device)
        parts = []
        for some in pairs.split(self._at_once(rows)):
            row, at = some // length, some % length + start
            masked = rows[row].scatter(1, at.unsqueeze(1), self.vocabulary.mask)
            logits = self.model(input_ids=masked, attention_mask=attention[row]).logits
            parts.append(logits[torch.arange(len(some), device=y.device), at][:, self.tokens])
        scores: Tensor = torch.cat(parts).reshape(batch, length, -1)
        return order.restore(scores)

    def hidden_scores(self, y: Tensor, given: tuple[Tensor, ...], masks: Masks) -> Tensor:
        """Scores ``[B, T, labels]`` where labels ``[B, T]`` hold the number of labels: one pass for all of these."""
        batch, length = y.shape
        self._check_length(length)
        order = Order(existing([self.dim], masks, y.shape))
        ids = torch.where(y == len(self.tokens), self.vocabulary.mask, self.tokens[y.clamp(0, len(self.tokens) - 1)])
        rows, attention = self._framed(order.compact(ids.unsqueeze(-1)).squeeze(-1), order)
        start = len(self.vocabulary.before)
        if not batch or not length:
            return self._nothing(batch, length)
        parts = [
            self.model(input_ids=some, attention_mask=read).logits[:, start : start + length, self.tokens]
            for some, read in zip(*(one.split(self._at_once(rows)) for one in (rows, attention)), strict=True)
        ]
        return order.restore(torch.cat(parts))

    def _check_length(self, length: int) -> None:
        if self.longest is not None and length > self.longest:
            raise EnergyError(f"the pretrained network reads at most {self.longest} labels, and here are {length}")

    def _at_once(self, rows: Tensor) -> int:
        """How many rows ``[B, L]`` go through the network together."""
        return max(1, ACTIVATIONS // (rows.shape[1] * self.width))

    def _nothing(self, batch: int, length: int) -> Tensor:
        empty: Tensor = self.model.get_input_embeddings().weight.new_zeros(batch, length, len(self.tokens))
        return empty

    def _framed(self, ids: Tensor, order: Order) -> tuple[Tensor, Tensor]:
        """Compact tokens [B, T] with the special tokens around them [B, L], and which of these are read [B, L]."""
        words, (batch, length) = self.vocabulary, ids.shape
        before, behind = (ids.new_tensor(one) for one in (words.before, words.behind))
        count = ids.new_full((batch,), length) if order.count is None else order.count
        if order.present is not None:
            ids = ids.masked_fill(~order.present, words.pad)
        room = ids.new_full((batch, len(behind)), words.pad)
        rows = torch.cat([before.expand(batch, -1), ids, room], 1)
        ends = len(before) + count.unsqueeze(1) + torch.arange(len(behind), device=ids.device)
        rows = rows.scatter(1, ends, behind.expand(batch, -1))
        read = torch.arange(rows.shape[1], device=ids.device) < (len(before) + len(behind) + count).unsqueeze(1)
        return rows, read.long()


def _number(label: str, vocabulary: Vocabulary, path: str) -> int:
    for start in WORD_STARTS:
        if start + label in vocabulary.numbers:
            return vocabulary.numbers[start + label]
    raise EnergyError(
        f"`transformers('{path}')` has no token `{label}`: a label is one token, and longer words are several; take "
        "the network's own labels: `labels X from mlm`"
    )


__all__ = ["PretrainedMasked", "read_vocabulary", "real_labels"]
