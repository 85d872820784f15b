"""Pretrained vectors from text files: a word and its numbers a line, as word2vec and GloVe write them.

A first line with two whole numbers (how many words, how many numbers each) may stand before.  Files are found where
data files are, plain or gzip; `package:NAME/PATH` is a file inside an installed package, whose code is not run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from energyml.bind.binder import NetBuilder
from energyml.data.files import Folder, Line, Root, RootLike, lines
from energyml.data.problems import BadData, data_error
from energyml.nets.features import VectorEmbedding

if TYPE_CHECKING:
    from energyml.energy_model import EnergyModel

LARGEST = torch.finfo(torch.float32).max  # of what a weight holds
PACKAGE = "package:"


def give_vectors(model: EnergyModel, root: RootLike | None = None) -> list[str]:
    """Read the files that a model's networks name, and start their embeddings from them.

    Args:
        model: a bound model.
        root: where paths start; as for the spec's data when left out.

    Returns what was found, a line for each network.  Cost: one pass over each file; only the vectors of labels that the
    model has are kept.
    """
    from energyml.data.load import root_of

    notes = []
    source = model.compiled.source
    uses = NetBuilder(model.graph, source).uses.functions
    for name, built in model.named_children():
        for module in built.modules():
            if not isinstance(module, VectorEmbedding) or name not in uses:
                continue
            element = uses[name].arguments[module.argument].type.element
            labels = model.graph.label_sets[element].labels or ()
            try:
                place, path = _located(module.path, root_of(source, root))
                known, vectors = read_vectors(place, path, labels, module.embedding_dim, module.option)
            except BadData as problem:
                raise data_error(source, problem, model.graph.nets[name].span) from problem
            module.start_from(known, vectors)
            notes.append(f"{name}: {len(known):,} of the {len(labels):,} labels of `{element}` have a vector in {path}")
    return notes


def _located(path: str, root: Root) -> tuple[Root, str]:
    """The root and the name of a file; a package is found without importing it."""
    if not path.startswith(PACKAGE):
        return root, path
    package, _, inner = path.removeprefix(PACKAGE).partition("/")
    found = find_spec(package) if package.isidentifier() else None  # of a whole package, this imports nothing
    places = list(found.submodule_search_locations or ()) if found is not None else []
    if not places:
        raise BadData("E0801", path=path, problem=f"there is no package `{package}`", help=f"pip install {package}")
    inside = PurePosixPath(inner)
    if inside.is_absolute() or ".." in inside.parts:
        raise BadData("E0801", path=path, problem="the path leaves its package", help="write `package:NAME/PATH`")
    return Folder(Path(places[0])), inner


def read_vectors(
    root: Root, path: str, labels: Sequence[str], size: int, option: str = "embed"
) -> tuple[Tensor, Tensor]:
    """The labels [n] that a file has a vector for, and their vectors [n, size].

    A label is looked for as it is; one that is not there, in lower case.  The first vector of a word counts.

    Args:
        root: where the path starts.
        path: the file.
        labels: all labels, in order.
        size: how many numbers a vector has to have.
        option: the option that says so, for messages.
    """
    wanted = set(labels) | {label.lower() for label in labels}
    found: dict[str, list[float]] = {}
    for line, word, numbers in _entries(root, path):
        if len(numbers) != size:
            raise BadData(
                "E0805", place=line.place, expected=f"a word and {size} numbers", found=f"{len(numbers)} numbers",
                help=f"`{option}` says how many; write `{option}: {len(numbers)}` if the file is right",
            )  # fmt: skip
        if word in wanted and word not in found:
            found[word] = [_number(line, one) for one in numbers]
    rows = [found.get(label, found.get(label.lower())) for label in labels]
    known = [place for place, row in enumerate(rows) if row is not None]
    vectors = torch.tensor([row for row in rows if row is not None], dtype=torch.float64).reshape(-1, size)
    return torch.tensor(known, dtype=torch.long), vectors


def _entries(root: Root, path: str) -> Iterator[tuple[Line, str, list[str]]]:
    """Each line with its word and the texts of its numbers; blanks inside a word belong to it."""
    size = None
    empty = True
    for line in lines(root, path):
        parts = line.text.rstrip(" \t").replace("\t", " ").split(" ")
        if line.number == 1 and len(parts) == 2 and all(part.isdecimal() for part in parts):
            continue
        if not line.text.strip():
            continue
        empty = False
        # the first entry tells how many numbers there are: what stands before the last so many is the word
        size = len(parts) - 1 if size is None else size
        if len(parts) - 1 < size or size < 1:
            raise BadData(
                "E0805", place=line.place, expected=f"a word and {max(1, size)} numbers",
                found=f"{len(parts) - 1} numbers", help="every line has a word and as many numbers as the first",
            )  # fmt: skip
        yield line, " ".join(parts[:-size]), parts[-size:]
    if empty:
        raise BadData("E0804", path=root.shown(path))


def _number(line: Line, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= LARGEST:
        expected = "a number of 32 bits" if math.isfinite(value) else "a number"
        raise BadData("E0806", place=line.place, expected=expected, found=text)
    return value


__all__ = ["give_vectors", "read_vectors"]
