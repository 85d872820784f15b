"""The tagger that reads a word by its characters, its identity and its part of speech."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from energyml.execution import is_host_readable
from energyml.nets.bound import BoundType
from energyml.nets.cnn1d import convolve
from energyml.nets.features import (
    LabelEmbedding,
    Masks,
    as_output,
    check_choice,
    check_positive,
    existing,
    fixed_size,
    label_embedding,
)
from energyml.nets.order import Order
from energyml.nets.recurrent import LSTMStack

WIDTH = 3
SHORT = 4  # characters: shorter words are read with words of this length


class CharsWords(nn.Module):
    """Characters of a word, the word and its part of speech, then a network over the words.

    A word's characters are read by a BiLSTM, whose final states (forward after the last existing character, backward
    after the first) stand beside the embeddings of the word and of its part of speech. A word without characters has
    zeros there. Source: Yang et al. 2016, with the sizes of Shevchenko and Osokin, section 6.1 (word BiLSTM, or two
    linear layers with a ReLU in between: the variant where scaling matters). ``char_body: cnn`` is the max-pooled
    convolution of width 3 of Ma and Hovy 2016. On the CPU the characters of a word that occurs several times in the
    batch are read once, and words are read together with words of about their length.

    Args:
        inputs: ``Char[T, M]``, ``Word[T]`` and optionally ``POS[T]``, all labels.
        output: ``[T, *fixed]``.
        chars: units of a direction of the character BiLSTM, or filters of the character convolution.
        char_layers: layers of the character BiLSTM.
        words: the size of a word's embedding.
        vectors: a file of pretrained vectors for the words.
        pos: the size of the embedding of a part of speech.
        char_embed: the size of a character's embedding.
        char_body: ``blstm`` or ``cnn``.
        body: ``blstm`` or ``linear``.
        hidden: units of a direction of the word BiLSTM, or of the first linear layer.
        layers: layers of the word BiLSTM.
        dropout: the probability of dropping a unit of a word's features, between layers and of the last states.
        project: whether a linear layer follows; without it the output is the ``2 * hidden`` states of the word BiLSTM,
            or the ``hidden`` units of the first linear layer.
    """

    def __init__(
        self,
        inputs: tuple[BoundType, ...],
        output: BoundType,
        *,
        chars: int = 50,
        char_layers: int = 2,
        words: int = 50,
        vectors: str | None = None,
        pos: int = 10,
        char_embed: int = 10,
        char_body: str = "blstm",
        body: str = "blstm",
        hidden: int = 300,
        layers: int = 2,
        dropout: float = 0.0,
        project: bool = True,
    ) -> None:
        super().__init__()
        classes = [given.classes for given in inputs if given.classes is not None]
        if len(classes) != len(inputs) or [len(given.shape) for given in inputs] not in ([2, 1], [2, 1, 1]):
            raise ValueError("chars_words reads labels: characters [T, M], words [T] and optionally tags [T]")
        check_positive(chars=chars, words=words, pos=pos, char_embed=char_embed, hidden=hidden)
        self.dims = inputs[0].dims
        self.output = output
        self.char_embedding = LabelEmbedding(classes[0], char_embed)
        self.embeddings = nn.ModuleList([label_embedding(classes[1], words, vectors, argument=1, option="words")])
        self.embeddings.extend(LabelEmbedding(count, pos) for count in classes[2:])
        self.char_lstm: LSTMStack | None = None
        self.char_conv: nn.Conv1d | None = None
        if check_choice("char_body", char_body, ("blstm", "cnn")) == "blstm":
            self.char_lstm = LSTMStack(char_embed, chars, layers=char_layers, bidirectional=True)
            size = self.char_lstm.width
        else:
            self.char_conv = nn.Conv1d(char_embed, chars, WIDTH, padding=WIDTH // 2)
            size = chars
        size += words + (pos if len(inputs) == 3 else 0)
        self.dropout = nn.Dropout(dropout)
        self.word_lstm: LSTMStack | None = None
        self.word_linear: nn.Linear | None = None
        if check_choice("body", body, ("blstm", "linear")) == "blstm":
            self.word_lstm = LSTMStack(size, hidden, layers=layers, bidirectional=True, dropout=dropout)
            size = self.word_lstm.width
        else:
            self.word_linear = nn.Linear(size, hidden)
            size = hidden
        wanted = fixed_size(output.shape[1:], "the output")
        if not project and wanted != size:
            raise ValueError(f"without a projection the output has {size} values a position, not {wanted}")
        self.last = nn.Linear(size, wanted) if project else nn.Identity()

    def forward(self, *args: Tensor, masks: Masks) -> Tensor:
        """Characters ``[B, T, M]``, words ``[B, T]`` and tags ``[B, T]`` to ``[B, T, *fixed]``."""
        characters, *labels = args
        word_mask = existing(self.dims[:1], masks, characters.shape[:2])
        parts = [self._read_characters(characters, masks)]
        parts += [embedding(each) for embedding, each in zip(self.embeddings, labels, strict=True)]
        x = self.dropout(torch.cat(parts, dim=-1))
        if self.word_lstm is not None:
            x = self.word_lstm(x, Order(word_mask))
        elif self.word_linear is not None:
            x = self.word_linear(x).relu()
        return as_output(self.last(self.dropout(x)), self.output, 1)

    def _read_characters(self, characters: Tensor, masks: Masks) -> Tensor:
        """``[B, T, M]`` to one vector a word, ``[B, T, chars]``."""
        batch, length, most = characters.shape
        mask = existing(self.dims, masks, characters.shape)
        if mask is None:
            mask = torch.ones_like(characters, dtype=torch.bool)
        # A label and whether it exists travel as one integer, so that rows are selected once.
        marked = torch.where(mask, characters.clamp(min=0), -1).reshape(batch * length, most)
        read = self._read_distinct if is_host_readable(marked) and marked.numel() else self._read_words
        vectors = read(marked)
        return vectors.reshape(batch, length, vectors.shape[-1])

    def _read_distinct(self, characters: Tensor) -> Tensor:
        """``_read_words`` of each distinct word once, those of similar length together; asks the device for lengths."""
        words, which = torch.unique(characters, dim=0, return_inverse=True)
        extents = ((words >= 0) * torch.arange(1, words.shape[1] + 1)).amax(1)
        groups = extents.clamp(min=SHORT).log2().ceil()  # up to 4 characters, 8, 16 ..
        members = [(groups == group).nonzero().squeeze(1) for group in groups.unique()]
        vectors = [self._read_words(words[rows, : int(extents[rows].amax())]) for rows in members]
        places = torch.empty_like(extents).scatter(0, torch.cat(members), torch.arange(len(extents)))
        return torch.cat(vectors).index_select(0, places[which])

    def _read_words(self, characters: Tensor) -> Tensor:
        """Words ``[N, M]``, -1 where there is no character, to ``[N, chars]``."""
        order = Order(characters >= 0)
        x = self.char_embedding(characters)
        if self.char_lstm is not None:
            return self.char_lstm.final(x, order)
        assert self.char_conv is not None
        x = order.clear(convolve(self.char_conv, order.clear(order.compact(x))))
        if x.shape[1] == 0:
            return x.new_zeros(x.shape[0], x.shape[2])
        return x.amax(1)  # a ReLU is never below the zeros of the padding
