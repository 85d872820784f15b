"""Words as pieces: byte-pair merges learnt from word counts (Sennrich et al. 2016).

A word is its characters with `▁` before them, and pairs of neighbouring pieces become one where a merge says so, the
first merge first.  Pieces are text, merges are pairs of pieces: a vocabulary is frozen as plain data.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from energyml.metrics.words import BEGIN

Merge = tuple[str, str]


def characters(word: str) -> list[str]:
    """The smallest pieces of a word; a `▁` inside it becomes `_`, as it begins words here."""
    return [BEGIN, *word.replace(BEGIN, "_")]


def learned(counts: Mapping[str, int], size: int, least: int = 1) -> tuple[Counter[str], tuple[Merge, ...]]:
    """The pieces of words, with how often the words have each, and the merges that make them.

    The most frequent pair is merged, equals by spelling, until there are `size` pieces or no pair occurs twice.
    Characters that are rarer than `least`, or for which there is no room, are no pieces.

    Args:
        counts: how often each word occurs.
        size: how many pieces there may be, characters included.
        least: how often a character or a pair must occur.

    Cost: the characters of all different words, and for each merge those of the words that have it.
    """
    alphabet: Counter[str] = Counter()
    for word, count in counts.items():
        for one in characters(word):
            alphabet[one] += count
    kept = sorted((one for one in alphabet if alphabet[one] >= least), key=lambda one: (-alphabet[one], one))[:size]
    merging = _Merging(counts, set(kept))
    merges = merging.run(size - len(kept), max(2, least))
    pieces: Counter[str] = Counter(dict.fromkeys(kept, 0))
    pieces.update(dict.fromkeys((first + second for first, second in merges), 0))
    for divided, count in zip(merging.words, merging.counts, strict=True):
        for one in divided:
            if one in pieces:
                pieces[one] += count
    return pieces, merges


class _Merging:
    """The words as they are divided so far, and the pairs in them.

    Args:
        counts: how often each word occurs.
        alphabet: the characters that may be merged.
    """

    def __init__(self, counts: Mapping[str, int], alphabet: Collection[str]) -> None:
        self.words = [characters(word) for word in counts]
        self.counts = list(counts.values())
        self.alphabet = alphabet
        self.pairs: Counter[Merge] = Counter()
        self.where: defaultdict[Merge, set[int]] = defaultdict(set)
        for number in range(len(self.words)):
            self._count(number, 1)
        self.queue = [(-count, pair) for pair, count in self.pairs.items()]
        heapq.heapify(self.queue)

    def run(self, most: int, least: int) -> tuple[Merge, ...]:
        """Merges of pairs that occur at least so often, until there are so many pieces more."""
        merges: list[Merge] = []
        made: set[str] = set()  # two pairs may make the same piece
        while len(made) < most and self.queue:
            negative, pair = heapq.heappop(self.queue)
            if self.pairs[pair] != -negative:
                continue  # counted again since then, and in the queue with its new count
            if -negative < least:
                break
            changed: set[Merge] = set()
            for number in sorted(self.where[pair]):
                changed.update(self._count(number, -1))
                self.words[number] = merged(self.words[number], pair)
                changed.update(self._count(number, 1))
            for one in changed:
                if self.pairs[one] > 0:
                    heapq.heappush(self.queue, (-self.pairs[one], one))
            made.add(pair[0] + pair[1])
            merges.append(pair)
        return tuple(merges)

    def _count(self, number: int, sign: int) -> list[Merge]:
        """Count the pairs of a word in, or out; which they are."""
        word = self.words[number]
        found = [pair for pair in pairwise(word) if self._may_merge(pair[0]) and self._may_merge(pair[1])]
        for pair in found:
            self.pairs[pair] += sign * self.counts[number]
            (self.where[pair].add if sign > 0 else self.where[pair].discard)(number)
        return found

    def _may_merge(self, piece: str) -> bool:
        return len(piece) > 1 or piece in self.alphabet


def merged(pieces: Sequence[str], pair: Merge) -> list[str]:
    """Pieces with every occurrence of a pair made one, from left to right."""
    found: list[str] = []
    at = 0
    while at < len(pieces):
        if at + 1 < len(pieces) and pieces[at] == pair[0] and pieces[at + 1] == pair[1]:
            found.append(pair[0] + pair[1])
            at += 2
        else:
            found.append(pieces[at])
            at += 1
    return found


class Divider:
    """Divides words by merges; a word is divided once and remembered.

    Args:
        merges: in the order in which they were learnt.
    """

    def __init__(self, merges: Iterable[Merge]) -> None:
        self.order = {pair: number for number, pair in enumerate(merges)}
        self.known: dict[str, list[str]] = {}

    def pieces(self, word: str) -> list[str]:
        """The pieces of a word; characters that training never had are pieces of their own."""
        found = self.known.get(word)
        if found is None:
            found = self.known[word] = self._divided(word)
        return found

    def _divided(self, word: str) -> list[str]:
        pieces, last = characters(word), len(self.order)
        while len(pieces) > 1:
            best = min(pairwise(pieces), key=lambda pair: self.order.get(pair, last))
            if best not in self.order:
                break
            pieces = merged(pieces, best)
        return pieces


__all__ = ["Divider", "Merge", "learned"]
