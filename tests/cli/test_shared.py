"""Forty named tensors, each read twice by the next: every command looks at each of them once."""

import json

import pytest
import torch

from energyml import cli
from energyml.diagnostics import Source
from energyml.driver import compile_source
from energyml.ir import sketch
from energyml.ir.ground import Instance, extent_of
from energyml.model.expression import Expression
from energyml.train.stages import parameters_of

HEAD = "labels L = {a, b}\ndim T\n\ninput u : real[T, L]\noutput y : L[T]\n\nparam W : real[L] = zeros\nlet h0 = u\n"


def row(count: int) -> str:
    lets = "".join(f"let h{i + 1} = 0.5 * h{i} + 0.5 * h{i}\n" for i in range(count))
    factors = f"factor f [t in T] (y[t]) = h{count}[t]\nfactor g [t in T] (y[t]) = W\n"
    return f"{HEAD}{lets}\n{factors}\ninfer exact\ntrain nll\n"


@pytest.fixture
def energyml(monkeypatch, capsys):
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["energyml", *map(str, arguments)])
        code = cli._guarded(cli.app)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize("count", [40, 1000])
@pytest.mark.parametrize(
    "command",
    [
        "check SPEC", "fmt --check SPEC", "explain SPEC", "explain --stage ir SPEC", "info SPEC",
        "graph SPEC -o SVG", "graph SPEC -o DOT", "graph SPEC -o SVG --size T=3", "infer SPEC --query marginals",
    ],
)  # fmt: skip
def test_commands_end(energyml, tmp_path, command, count):
    spec = tmp_path / "lets.energy"
    spec.write_text(row(count))
    places = {"SPEC": spec, "SVG": tmp_path / "out.svg", "DOT": tmp_path / "out.dot"}
    code, _, err = energyml(*(places.get(word, word) for word in command.split()))
    assert (code, err) == (0, "")


def test_each_tensor_is_computed_once(monkeypatch):
    import energyml as em

    computed: list[int] = []
    combined = torch.Tensor.__mul__
    monkeypatch.setattr(torch.Tensor, "__mul__", lambda *given: computed.append(1) or combined(*given))
    model = em.compile(row(40), seed=0)
    u = torch.randn(1, 3, 2)
    assert torch.allclose(model.infer(u=u).marginals["y"], u.softmax(-1), atol=1e-5)
    assert len(computed) <= 40 * 4 + 100
    assert parameters_of(["f", "g"], model.graph) == ("W",)


def test_a_drawing_sees_through_each_tensor_once_for_each_reader(monkeypatch):
    graph = compile_source(Source("lets", row(40))).graph
    seen: list[str] = []
    lets = graph.lets

    class Counted(dict):
        def __getitem__(self, name: str) -> object:
            seen.append(name)
            return super().__getitem__(name)

    monkeypatch.setattr(type(graph), "lets", Counted(lets), raising=False)
    object.__setattr__(graph, "lets", Counted(lets))
    drawn = sketch.lifted(graph)
    assert sorted(seen) == sorted(lets)
    assert [(edge.source, edge.target) for edge in drawn.edges if edge.kind == "flow"] == [
        ("input u", "term f"), ("param W", "term g"),
    ]  # fmt: skip
    assert isinstance(next(iter(lets.values())).value, Expression)


def outputs(count: int) -> str:
    lines = ["labels L = {a, b}", "dim T", "param w : real[x: L, z: L]"]
    lines += [f"output y{i} : L[T]" for i in range(count)]
    lines += [f"factor f{i} [t in T] (x: y{i}[t], z: y{i + 1}[t]) = w" for i in range(count - 1)]
    return "\n".join(lines) + "\n"


def test_large_models_are_drawn_in_part_and_the_picture_says_so(energyml, tmp_path):
    spec = tmp_path / "many.energy"
    spec.write_text(outputs(3000))
    graph = compile_source(Source("many", spec.read_text())).graph
    drawn = sketch.lifted(graph)
    assert len(drawn.nodes) <= sketch.MOST_NODES and drawn.remark.startswith("not drawn, for lack of room: ")
    shown = {node.id for node in drawn.nodes}
    assert all(edge.source in shown and edge.target in shown for edge in drawn.edges)
    for term in (node.id for node in drawn.nodes if node.kind == "term"):
        assert sum(edge.source == term for edge in drawn.edges) == 2
    for name in ("out.svg", "out.dot"):
        assert energyml("graph", spec, "-o", tmp_path / name)[0] == 0
        assert drawn.remark in (tmp_path / name).read_text()
    assert sketch.lifted(compile_source(Source("few", outputs(20))).graph).remark == ""


def test_a_network_that_reads_its_own_output_is_drawn(energyml, tmp_path):
    spec = tmp_path / "nets.energy"
    spec.write_text(
        "labels L = {a, b}\ndim T\ninput u : real[T, 8]\noutput y : L[T]\n"
        'net f : (real[T, 8]) -> real[T, 8] = python("torch.nn:Linear", in_features: 8, out_features: 8)\n'
        'net g : (real[T, 8]) -> real[T, L] = python("torch.nn:Linear", in_features: 8, out_features: 2)\n'
        "factor a [t in T] (y[t]) = g(f(f(u)))[t]\n"
    )
    assert energyml("graph", spec, "-o", tmp_path / "out.svg")[0] == 0


def test_networks_that_all_read_each_other_are_ranked_once(energyml, tmp_path):
    net = "net {0} : (real[T, L]) -> real[T, L] = python('torch.nn:Identity')\n"
    spec = tmp_path / "layers.energy"
    nets = "".join(net.format(f"{kind}{i}") for i in range(40) for kind in "fg")
    lets = "".join(f"let h{i + 1} = f{i}(h{i}) + g{i}(h{i})\n" for i in range(40))
    spec.write_text(HEAD + nets + lets + "factor f [t in T] (y[t]) = h40[t]\n")
    code, _, err = energyml("graph", spec, "-o", tmp_path / "out.svg")
    assert (code, err) == (0, "") and "f39" in (tmp_path / "out.svg").read_text()


GRID = """\
labels S = {a, b}
dim H, W
output y : S[H, W]
param w : real
factor r [i in H, j in W, k in H] (y[i, j], y[k, j]) = potts(w)
"""


@pytest.mark.parametrize(("size", "word"), [("H=999999999 W=999999999", "cells"), ("H=700 W=2", "factors")])
def test_examples_are_counted_before_they_are_grounded(energyml, tmp_path, size, word):
    spec = tmp_path / "grid.energy"
    spec.write_text(GRID)
    sizes = [part for one in size.split() for part in ("--size", one)]
    code, _, err = energyml("graph", spec, "-o", tmp_path / "out.svg", *sizes)
    assert code == 1 and f"{word} would show nothing" in err
    assert energyml("explain", spec, *sizes)[0] == 0
    assert not json.loads(energyml("info", spec, *sizes)[1])["structure"]["width"]


def test_the_extent_of_an_example():
    graph = compile_source(Source("grid", GRID)).graph
    assert extent_of(graph, Instance({"H": 3, "W": 2})) == (6, 18)
    assert extent_of(graph, Instance({"H": 3}))[0] == float("inf")
