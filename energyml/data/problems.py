"""What can be wrong with data, before it is known which declaration it breaks."""

from __future__ import annotations

from collections.abc import Sequence

from energyml import errors
from energyml.bind.inputs import DataError
from energyml.diagnostics import Note, Source, Span


class BadData(Exception):
    """Something wrong in a data file, told in terms of the file.

    Args:
        code: the entry of the catalogue of errors.
        field: the reader's field that is concerned, where there is one: its declaration is shown.
        help: a better remedy than the catalogue's.
        **facts: what the message needs.
    """

    def __init__(self, code: str, *, field: str = "", help: str | None = None, **facts: object) -> None:
        self.code, self.field, self.help, self.facts = code, field, help, facts
        super().__init__(errors.CATALOGUE[code].message.format(**facts))


def data_error(source: Source, problem: BadData, span: Span | None, notes: Sequence[Note] = ()) -> DataError:
    """The error that shows the declaration at `span` beside what is wrong with the data."""
    found = errors.diagnostic(problem.code, span, notes=notes, help=problem.help, **problem.facts)  # type: ignore[arg-type]
    return DataError(source, [found])


__all__ = ["BadData", "DataError", "data_error"]
