"""Drawings: well-formed, deterministic, nothing on top of anything else, everything in its plate."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import pytest

from energyml.diagnostics import EnergyError
from energyml.ir.draw import grounded_dot, grounded_svg, lifted_dot, lifted_svg
from energyml.ir.figure import Figure, Item, PlacedNode, on_curve, spread, through
from energyml.ir.ground import GroundGraph, Instance, ground
from energyml.ir.ground_layout import MOST_CELLS, grounded_layout
from energyml.ir.layout import lifted_layout
from energyml.ir.sketch import PAPER, Sketch, grounded, lifted
from energyml.ir.text import print_term
from tests.ir.models import SPECS, compiled, graph

SVG = "{http://www.w3.org/2000/svg}"

JOINT = """
labels Pos = {N, V, D}
labels Ner = {O, 'B-PER', 'I-PER'}
labels Topic = {sport, news}
dim T, E
input word : real[T, 50]
input prior : real[T, Ner]
input link : edge(T, T)[E]
input feats : real[E, 7]
output pos : Pos[T]
output ner : Ner[T]
latent topic : Topic
net enc = blstm(hidden: 10)
let h = enc(word)
net a = mlp(out: Pos)
net c = mlp(out: Ner)
net v = mlp(out: [from: Ner, to: Ner])
param A : real[from: Pos, to: Pos]
param C : real[from: Ner, to: Ner]
param D : real[Pos, Ner, Topic]
chain pos { unary: a(h), pair: A }
chain ner { unary: c(h) + prior, pair: C }
factor joint [t in T] (pos[t], ner[t], topic) = D
factor link_ner [e = (i, j) in link] (from: ner[i], to: ner[j]) = v(feats)[e]
scheme ner bio
"""

MODELS = {name: graph(name) for name in SPECS} | {"joint": compiled(JOINT)}

RING = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 0), (0, 4), (1, 5), (2, 6)]
BRANCHES = [(0, 1), (0, 2), (0, 5), (1, 3), (1, 4), (5, 6), (5, 7), (7, 8)]
EXAMPLES = {
    "chain": ("ocr", Instance({"T": 6})),
    "gap": ("ocr", Instance({"T": 6}, absent={"y": frozenset({(2,)})})),
    "skip": ("skip", Instance({"T": 6})),
    "scheme": ("bioes", Instance({"T": 4})),
    "grid": ("ising", Instance({"H": 4, "W": 5})),
    "tree": ("tree", Instance({"T": 9, "E": 8}, edges={"link": BRANCHES})),
    "ring": ("tree", Instance({"T": 8, "E": 11}, edges={"link": RING})),
    "mixture": ("mixture", Instance({"T": 5}, nested={"M": [1, 2, 1, 3, 1]})),
}


def example(name: str) -> GroundGraph:
    spec, instance = EXAMPLES[name]
    return ground(graph(spec), instance)


def figure(name: str) -> Figure:
    return grounded_layout(example(name), grounded(example(name), graph(EXAMPLES[name][0])))


def titles(svg: str) -> list[str]:
    """All tooltips; parsing raises where the text is not well-formed."""
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}title")]


# --------------------------------------------------------------------------------------------------------------- lifted


@pytest.mark.parametrize("name", MODELS)
def test_lifted_svg_says_everything(name: str) -> None:
    found = titles(lifted_svg(MODELS[name], "my model"))
    assert found[0] == "my model"
    assert {print_term(term) for term in MODELS[name].terms} <= set(found)
    assert all(any(f" {variable} : " in title for title in found) for variable in MODELS[name].variables)


def assert_apart(drawn: Figure) -> None:
    """No label meets another label or a foreign node, and no node another node."""
    for (one, first), (other, second) in itertools.combinations(drawn.labels(), 2):
        assert not first.overlaps(second), f"the labels {one!r} and {other!r} overlap"
    for left, right in itertools.combinations(drawn.nodes, 2):
        assert not left.box.overlaps(right.box), f"{left.node.title} and {right.node.title} overlap"
        for inner, outer in ((left, right), (right, left)):
            assert not inner.node.label or not inner.label_box.overlaps(outer.box)


@pytest.mark.parametrize("name", MODELS)
def test_lifted_drawings_do_not_overlap(name: str) -> None:
    assert_apart(lifted_layout(lifted(MODELS[name])))


def inside(sketch: Sketch, placed: PlacedNode) -> set[object]:
    """The plates around a node."""
    plates = {(plate.band, plate.key): plate for plate in sketch.plates}
    found: set[object] = set()
    key = placed.node.plate
    while key != PAPER:
        found.add((placed.node.band, key))
        key = plates[placed.node.band, key].inside
    return found


@pytest.mark.parametrize("name", MODELS)
def test_plates_hold_what_they_repeat_and_nothing_else(name: str) -> None:
    sketch = lifted(MODELS[name])
    drawn = lifted_layout(sketch)
    for frame in drawn.plates:
        for placed in drawn.nodes:
            if (frame.plate.band, frame.plate.key) in inside(sketch, placed):
                assert frame.box.left < placed.box.left
                assert placed.box.right < frame.box.right
                assert frame.box.top < placed.box.top
                assert placed.box.bottom < frame.box.bottom
            else:
                assert not placed.box.overlaps(frame.box), f"{placed.node.title} stands in {frame.plate.label}"


def test_plates_are_named_after_their_index_sets() -> None:
    def labels(name: str) -> dict[str, str]:
        plates = lifted(MODELS[name]).plates
        keys = {(plate.band, plate.key): plate.label for plate in plates}
        return {plate.label: keys.get((plate.band, plate.inside), "") for plate in plates if plate.band == "scored"}

    assert labels("skip") == {"t in T": "", "t in T-1": "t in T", "t in T-2": "t in T-1"}
    assert labels("tree") == {"t in T": "", "e = (i, j) in link": ""}
    everywhere = "i in H, j in W"
    assert labels("ising") == {everywhere: "", "i in H-1, j in W": everywhere, "i in H, j in W-1": everywhere}
    assert labels("masked") == {"T": ""}


def test_the_flow_of_a_lifted_drawing() -> None:
    edges = {(edge.source, edge.target) for edge in lifted(graph("sequence")).edges}
    assert edges == {
        ("input word", "net enc"),
        ("net enc", "net decoder"),
        ("net decoder", "term out.sequence"),
        ("term out.sequence", "variable out"),
    }
    kinds = {(edge.source, edge.target, edge.kind) for edge in lifted(graph("field")).edges}
    assert ("variable s", "variable y", "readout") in kinds


def test_the_cells_of_a_term_are_told_apart() -> None:
    labels = [edge.label for edge in lifted(graph("skip")).edges if edge.source == "term skip"]
    assert labels == ["from [t+2]", "to [t]"]


@pytest.mark.parametrize("name", MODELS)
def test_drawings_are_deterministic(name: str) -> None:
    assert lifted_svg(MODELS[name]) == lifted_svg(MODELS[name])
    assert lifted_dot(MODELS[name]) == lifted_dot(MODELS[name])


def test_marks_and_control_characters_are_escaped() -> None:
    made = compiled(
        "labels A = {'<&>', \"it's\", '\x01'}\ndim T\noutput y : A[T]\nforbid y[0] = '<&>' and y[1] = '\x01'"
    )
    assert "term forbid.1 : forbid y[0] = '<&>' and y[1] = '\ufffd'" in titles(lifted_svg(made, '<"title">'))
    assert '\\"' in lifted_dot(compiled("labels A = {'\"', b}\ndim T\noutput y : A[T]\nforbid y[0] = '\"'"))


def test_names_in_definitions_differ_between_drawings() -> None:
    def names(name: str) -> set[str]:
        root = ElementTree.fromstring(lifted_svg(MODELS[name]))
        return {element.attrib["id"] for element in root.iter() if "id" in element.attrib}

    assert len(names("ocr")) == 2
    assert not names("ocr") & names("skip")


def test_lifted_dot() -> None:
    text = lifted_dot(graph("skip"))
    assert text.startswith("digraph energyml {")
    assert text.count("{") == text.count("}") + text.count("{O")
    assert text.count("subgraph") == len(lifted(graph("skip")).plates)
    assert '"input word" -> "net lstm"' in text
    assert '"term pair" -> "variable y" [dir=none, label="from [t]", fontsize=9];' in text
    assert 'label="t in T-2"' in text


# ------------------------------------------------------------------------------------------------------------- grounded


@pytest.mark.parametrize("name", EXAMPLES)
def test_grounded_drawings_do_not_overlap(name: str) -> None:
    assert_apart(figure(name))


@pytest.mark.parametrize("name", EXAMPLES)
def test_grounded_svg_says_everything(name: str) -> None:
    made = example(name)
    found = titles(grounded_svg(made, graph(EXAMPLES[name][0])))
    assert len(found) == 1 + len(made.cells) + len(made.factors)
    assert len(titles(grounded_svg(made))) == len(found)


def spots(name: str) -> list[tuple[float, float]]:
    return [(placed.x, placed.y) for placed in figure(name).nodes[: len(example(name).cells)]]


def test_a_chain_is_a_row_and_a_grid_a_grid() -> None:
    row = spots("chain")
    assert len({y for _, y in row}) == 1
    assert row == sorted(row)
    grid = spots("grid")
    assert len({x for x, _ in grid}) == 5
    assert len({y for _, y in grid}) == 4
    assert [x for x, _ in spots("gap")] == [x for place, (x, _) in enumerate(row) if place != 2]


def test_a_tree_grows_downwards() -> None:
    at = spots("tree")
    assert all(at[parent][1] < at[child][1] for parent, child in BRANCHES)


def test_variables_of_a_sequence_stand_under_each_other() -> None:
    at = dict(
        zip([(cell.variable, *cell.position) for cell in example("mixture").cells], spots("mixture"), strict=True)
    )
    assert all(at["y", t][0] == at["z", t][0] for t in range(5))
    assert at[("mood",)][0] < at["y", 0][0]


def test_the_legend_names_each_term_once() -> None:
    assert [node.term for node in figure("skip").legend] == [
        "unary",
        "pair",
        "skip",
        "forbid.1",
        "forbid.2",
        "forbid.3",
    ]
    assert [node.kind for node in figure("skip").legend] == ["term"] * 3 + ["hard"] * 3


def test_grounded_dot_keeps_the_places() -> None:
    text = grounded_dot(example("chain"))
    assert text.count(" -> ") == sum(len(factor.cells) for factor in example("chain").factors)
    assert text.count('pos="') == len(example("chain").cells) + len(example("chain").factors)
    assert '"cell 0" [label="y[0]"' in text


def test_large_examples_are_refused_with_a_remedy() -> None:
    with pytest.raises(EnergyError, match="smaller sizes"):
        grounded_svg(ground(graph("ocr"), Instance({"T": MOST_CELLS + 1})))


def test_large_loopy_graphs_are_drawn_quickly() -> None:
    size = 400
    edges = [(i, (i + step) % size) for i in range(size) for step in (1, 7)]
    made = ground(graph("tree"), Instance({"T": size, "E": len(edges)}, edges={"link": edges}))
    assert len(titles(grounded_svg(made))) == 1 + size + len(made.factors)


def test_an_empty_example() -> None:
    assert titles(grounded_svg(ground(graph("ising"), Instance({"H": 0, "W": 0}))))


# ------------------------------------------------------------------------------------------------------------- geometry


def test_spread_keeps_wishes_where_there_is_room() -> None:
    items = [Item("a", 0.0, 5, 5), Item("b", 100.0, 5, 5), Item("c", 101.0, 5, 5), Item("d", 102.0, 5, 5)]
    at = spread(items, 10)
    assert at["a"] == 0
    assert [at["b"], at["c"], at["d"]] == [81.0, 101.0, 121.0]
    assert spread([], 10) == {}


def test_curves_pass_their_points() -> None:
    curve = through([(0, 0), (10, 20), (5, 40)])
    assert on_curve(curve, 0) == (0, 0)
    assert on_curve(curve, 0.5) == (10, 20)
    assert on_curve(curve, 1) == (5, 40)
