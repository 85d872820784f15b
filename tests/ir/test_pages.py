"""The pages of the errors about graph texts show what they say."""

import pytest

from energyml.diagnostics import SpecError
from energyml.errors import graphs
from energyml.ir.text import parse_graph


@pytest.mark.parametrize("kind", graphs.KINDS, ids=lambda kind: kind.code)
def test_page(kind):
    parse_graph(kind.good)
    with pytest.raises(SpecError) as problem:
        parse_graph(kind.bad)
    assert kind.code in {found.code for found in problem.value.diagnostics}
