"""A grounded factor graph as arrays, and the spec that lifts it.

Variables with the same number of values become the cells of one output; factors over the same numbers of values become
the edges of one input, with one table for each edge. All factors of one variable are added into one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from energyml.diagnostics import Source
from energyml.driver import compile_source
from energyml.interop.imported import ImportedModel
from energyml.interop.numbers import Floats, Integers


@dataclass
class FactorGraph:
    """The variables and factors of a file.

    Attributes:
        name: the file.
        numbers: [n] what the file calls its variables.
        cards: [n] how many values each has.
        scopes: [total] the variables of all factors, as places in `numbers`, one factor after another.
        arities: [factors] how many variables each factor has.
        logs: log values of tables; the last variable of a scope runs fastest.
        tables: [factors] where the table of each factor starts in `logs`.
    """

    name: str
    numbers: Integers
    cards: Integers
    scopes: Integers
    arities: Integers
    logs: Floats
    tables: Integers

    def model(self) -> ImportedModel:
        """The model of these factors, its tables as parameters and its scopes as fixed inputs.

        Cost: linear in the tables; the spec has a few lines for each distinct tuple of cardinalities.
        """
        unary, joint = self._grouped()
        source = Source(f"<spec of {self.name}>", "\n".join(_spec(self.cards, joint)) + "\n")
        model = ImportedModel(compile_source(source), tuple(self.numbers.tolist()), tuple(self.cards.tolist()))
        for card, table in unary.items():
            model._parameters[f"u{card}"] = nn.Parameter(torch.from_numpy(table))
        for cards, (scopes, tables) in joint.items():
            model._parameters[f"t{_tag(cards)}"] = nn.Parameter(torch.from_numpy(tables))
            model.fix(**{f"scope{_tag(cards)}": torch.from_numpy(scopes).unsqueeze(0)})
        return model

    def _grouped(self) -> tuple[dict[int, Floats], dict[tuple[int, ...], tuple[Integers, Floats]]]:
        """Tables [variables, values] by cardinality; scopes [factors, arity] and tables by tuple of cardinalities."""
        ranks = np.zeros(len(self.cards), np.int64)
        unary: dict[int, Floats] = {}
        for card in np.unique(self.cards).tolist():
            here = np.flatnonzero(self.cards == card)
            ranks[here] = np.arange(len(here))
            unary[card] = np.zeros((len(here), card))
        found: dict[tuple[int, ...], list[tuple[Integers, Integers, Floats]]] = {}
        for cards, factors, scopes in self._by_cards():
            size = int(np.prod(cards, dtype=np.int64))
            logs = self.logs[self.tables[factors][:, None] + np.arange(size)]
            if not cards:
                unary[int(self.cards[0])][0] += logs.sum()
            elif len(cards) == 1:
                np.add.at(unary[cards[0]], ranks[scopes[:, 0]], logs)
            else:
                order = sorted(
                    range(len(cards)), key=lambda axis: cards[axis]
                )  # fewer groups: (2, 3) and (3, 2) are one
                tables = logs.reshape(-1, *cards).transpose(0, *(1 + axis for axis in order))
                group = found.setdefault(tuple(cards[axis] for axis in order), [])
                group.append((factors, ranks[scopes][:, order], tables))
        return unary, {cards: _joined(parts) for cards, parts in sorted(found.items())}

    def _by_cards(self) -> Iterator[tuple[tuple[int, ...], Integers, Integers]]:
        """Factors by the cardinalities of their variables: [m] which, and [m, arity] their variables.

        A variable with one value says nothing, and is left out of every scope.
        """
        matters = self.cards[self.scopes] > 1
        owners = np.repeat(np.arange(len(self.arities)), self.arities)[matters]
        scopes = self.scopes[matters]
        arities = np.bincount(owners, minlength=len(self.arities))
        starts = np.cumsum(arities) - arities
        cards = self.cards[scopes].tolist()
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, (start, arity) in enumerate(zip(starts.tolist(), arities.tolist(), strict=True)):
            groups.setdefault(tuple(cards[start : start + arity]), []).append(number)
        for key, members in groups.items():
            factors = np.asarray(members, np.int64)
            yield key, factors, scopes[starts[factors][:, None] + np.arange(len(key))]


def _joined(parts: list[tuple[Integers, Integers, Floats]]) -> tuple[Integers, Floats]:
    """The factors of one group in the order of the file."""
    order = np.argsort(np.concatenate([factors for factors, _, _ in parts]), kind="stable")
    scopes = np.concatenate([scopes for _, scopes, _ in parts])[order]
    return scopes, np.ascontiguousarray(np.concatenate([tables for _, _, tables in parts])[order])


def _tag(cards: tuple[int, ...]) -> str:
    return "_".join(map(str, cards))


def _spec(cards: Integers, joint: dict[tuple[int, ...], tuple[Integers, Floats]]) -> Iterator[str]:
    """The statements of the spec."""
    for card, count in zip(*(part.tolist() for part in np.unique(cards, return_counts=True)), strict=True):
        names = ", ".join(f"'{value}'" for value in range(card))
        yield f"labels V{card} = {{{names}}}"
        yield f"dim N{card} = {count}"
        yield f"output x{card} : V{card}[N{card}]"
        yield f"param u{card} : real[N{card}, V{card}] = zeros"
        yield f"factor unary{card} [i in N{card}] (x{card}[i]) = u{card}[i]"
    for key, (scopes, _) in joint.items():
        tag, ends = _tag(key), range(len(key))
        roles = ", ".join(f"v{end}: V{card}" for end, card in enumerate(key))
        cells = ", ".join(f"v{end}: x{card}[i{end}]" for end, card in enumerate(key))
        yield f"dim F{tag} = {len(scopes)}"
        yield f"input scope{tag} : edge({', '.join(f'N{card}' for card in key)})[F{tag}]"
        yield f"param t{tag} : real[F{tag}, {roles}] = zeros"
        yield f"factor joint{tag} [f = ({', '.join(f'i{end}' for end in ends)}) in scope{tag}] ({cells}) = t{tag}[f]"
