"""Each command on every example, and misuse: a message, the right exit code, never a traceback."""

import io
import json
import os
import re
import stat
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from energyml import cli, doctor

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.energy"))
FIVE_MISTAKES = """\
labels Tag = {A, B}
dim T
input u : real[T, Tga]
output y : Tag[T]
param W : real[Tag, Tag]
factor unary [t in T] (y[t]) = v[t]
factor pair [t in T] (from: y[t], to: y[t+1]) = 0.5
infer exakt
"""


@pytest.fixture
def energyml(monkeypatch, capsys):
    """Run the command in this process: exit code, standard output, standard error."""

    def run(*arguments: object, stdin: str | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["energyml", *map(str, arguments)])
        if stdin is not None:
            monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code = cli._guarded(cli.app)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err + captured.out
        return code, captured.out, captured.err

    return run


def test_check_is_clean_on_all_examples(energyml):
    code, out, err = energyml("check", *EXAMPLES)
    assert (code, err) == (0, "")
    assert out.count("no errors") == len(EXAMPLES) >= 11


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
class TestEveryExample:
    def test_fmt_check(self, energyml, example):
        assert energyml("fmt", "--check", example) == (0, "", "")

    @pytest.mark.parametrize("stage", ["tree", "model", "ir", "plan", None])
    def test_explain(self, energyml, example, stage):
        code, out, err = energyml("explain", example, *(["--stage", stage] if stage else []))
        assert (code, err) == (0, "")
        assert out.strip()

    def test_info(self, energyml, example):
        code, out, _ = energyml("info", example)
        found = json.loads(out)
        assert code == 0
        assert found["variables"] and found["terms"] and found["backends"]["enumerate"]

    @pytest.mark.parametrize("ending", ["svg", "dot"])
    def test_graph(self, energyml, example, ending, tmp_path):
        target = tmp_path / f"graph.{ending}"
        code, out, _ = energyml("graph", example, "-o", target)
        assert code == 0 and str(target) in out
        text = target.read_text(encoding="utf-8")
        if ending == "svg":
            ElementTree.fromstring(text)
        else:
            assert text.startswith(("graph", "digraph"))


def test_graph_of_cells(energyml, tmp_path):
    target = tmp_path / "cells.svg"
    code, _, _ = energyml("graph", ROOT / "examples" / "skip_chain.energy", "-o", target, "--size", "T=5")
    assert code == 0
    ElementTree.parse(target)


def test_five_mistakes_give_five_diagnostics(energyml, tmp_path):
    spec = tmp_path / "five.energy"
    spec.write_text(FIVE_MISTAKES)
    code, _, err = energyml("check", spec)
    assert code == 1
    assert err.count("error[") == 5
    assert "did you mean `Tag`?" in err and "did you mean `exact`?" in err


def test_json_diagnostics(energyml, tmp_path):
    spec = tmp_path / "five.energy"
    spec.write_text(FIVE_MISTAKES)
    code, out, _ = energyml("check", "--json", spec)
    assert code == 1
    (report,) = json.loads(out)
    first = report["diagnostics"][0]
    assert len(report["diagnostics"]) == 5
    assert first["range"]["start"] == {"line": 3, "column": 19}


def test_swapping_backends_gives_equal_answers(energyml):
    code, out, err = energyml(
        "infer", ROOT / "examples" / "tagger.energy", "--infer", "exact, enumerate", "--size", "T=4", "--json",
        "--query", "log_partition,map,marginals,entropy",
    )  # fmt: skip
    assert code == 0, err
    exact, oracle = json.loads(out).values()
    assert exact["log_partition"]["value"] == pytest.approx(oracle["log_partition"]["value"], rel=1e-4)
    assert exact["map"]["value"]["labels"] == oracle["map"]["value"]["labels"]


@pytest.mark.parametrize("family", ["chain", "grid", "tree", "field", "sequence", "masked", "global"])
def test_new_specs_are_clean_and_formatted(energyml, tmp_path, family):
    target = tmp_path / f"{family}.energy"
    assert energyml("new", family, "-o", target)[0] == 0
    code, out, err = energyml("check", target)
    assert code == 0 and err == "" and "no errors" in out
    assert energyml("fmt", "--check", target)[0] == 0
    assert energyml("explain", target)[0] == 0


def test_new_does_not_overwrite(energyml, tmp_path):
    target = tmp_path / "mine.energy"
    target.write_text("# mine\n")
    code, _, err = energyml("new", "chain", "-o", target)
    assert code == 2 and "exists already" in err and target.read_text() == "# mine\n"
    assert energyml("new", "chain", "-o", target, "--force")[0] == 0


def test_explain_error(energyml):
    code, out, _ = energyml("explain-error", "E0209")
    assert code == 0 and out.startswith("E0209")
    code, out, _ = energyml("explain-error")
    assert code == 0 and "E0001" in out
    assert energyml("explain-error", "E9999")[0] == 2


def test_doctor(energyml):
    code, out, _ = energyml("doctor")
    assert code == 0 and "torch" in out and "exact" in out


def test_doctor_knows_every_package_that_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(asked):
        return {re.split("[<>=]", one)[0] for one in asked}

    assert set(doctor.REQUIRED) == names(project["dependencies"])
    for extra, asked in project["optional-dependencies"].items():
        if extra != "dev":
            assert {name for name, (brings, _) in doctor.OPTIONAL.items() if brings == extra} == names(asked)


def test_fmt_rewrites_once(energyml, tmp_path):
    spec = tmp_path / "a.energy"
    spec.write_text("dim   T\r\nlabels A={a,b}  # kept\r\n")
    assert energyml("fmt", "--check", spec)[0] == 1
    assert spec.read_bytes().startswith(b"dim   T")
    assert energyml("fmt", spec)[0] == 0
    assert "# kept" in spec.read_text() and "\r" not in spec.read_text()
    assert energyml("fmt", spec) == (0, "", "")


def test_standard_input(energyml):
    code, _, err = energyml("check", "-", stdin="dim T\nlabels A = {a}\noutput y : B[T]\n")
    assert code == 1 and "<stdin>:3:12" in err
    code, out, _ = energyml("fmt", "-", stdin="dim   T")
    assert (code, out) == (0, "dim T\n")


@pytest.mark.parametrize("command", [["check"], ["fmt"], ["explain"], ["info"], ["graph", "-o", "x.svg"], ["infer"]])
def test_missing_file_is_one_line_and_exit_2(energyml, command, tmp_path):
    code, out, err = energyml(*command, tmp_path / "none.energy")
    assert code == 2 and out == ""
    assert err.count("\n") == 1 and "no such file" in err


def test_directory_and_permissions(energyml, tmp_path):
    code, _, err = energyml("check", tmp_path)
    assert code == 2 and "directory" in err
    secret = tmp_path / "secret.energy"
    secret.write_text("dim T")
    secret.chmod(0)
    if os.geteuid() != 0:
        assert energyml("check", secret)[0] == 2
    secret.chmod(stat.S_IRWXU)


def test_binary_file(energyml, tmp_path):
    spec = tmp_path / "binary.energy"
    spec.write_bytes(b"\xff\xfe\x00\x01")
    code, _, err = energyml("check", spec)
    assert code == 2 and "UTF-8" in err


def test_writing_where_nothing_can_be_written(energyml, tmp_path):
    code, _, err = energyml("graph", EXAMPLES[0], "-o", tmp_path / "no" / "such" / "folder.svg")
    assert code == 2 and "no such file" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", EXAMPLES[0], "--stage", "lexer"], "tree, model, ir, plan"),
        (["explain", EXAMPLES[0], "--size", "T"], "NAME=NUMBER"),
        (["explain", EXAMPLES[0], "--size", "Q=3"], "no dim `Q`"),
        (["graph", EXAMPLES[0], "-o", "x.png"], ".svg or .dot"),
        (["new", "chian"], "did you mean `chain`?"),
        (["check"], "Missing argument"),
        (["chekc"], "No such command"),
    ],
)
def test_wrong_command_lines(energyml, arguments, message):
    code, _, err = energyml(*arguments)
    assert code == 2 and message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--infer", "exakt"], "did you mean `exact`?"),
        (["--query", "marginal"], "unknown query"),
        (["--infer", "cg"], "cannot serve this model"),
        (["--infer", "infnet", "--query", "map"], "has not been fitted"),
        (["--infer", "enumerate(limit: 2)"], "limit is 2"),
        (["--infer", "enumerate(limit: many)"], "`limit` takes"),
    ],
)
def test_wrong_requests(energyml, arguments, message):
    code, _, err = energyml("infer", ROOT / "examples" / "tagger.energy", *arguments)
    assert code == 1 and message in err


def test_inputs_from_a_file(energyml, tmp_path):
    spec = tmp_path / "chain.energy"
    spec.write_text(
        "labels Tag = {A, B}\nlabels Word = {x, z}\ndim T\ninput word : Word[T]\ninput u : real[T, Tag]\n"
        "output y : Tag[T]\nnet f = linear(out: Tag)\nfactor a [t in T] (y[t]) = u[t]\n"
        "factor b [t in T] (y[t]) = f(word)[t]\ninfer exact\n"
    )
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"word": [["x", "z"]], "u": [[[0.0, 100.0], [100.0, 0.0]]]}))
    code, out, err = energyml("infer", spec, "--inputs", data, "--query", "map", "--json")
    assert code == 0, err
    assert json.loads(out)["exact"]["map"]["value"]["labels"]["y"] == [["B", "A"]]
    data.write_text(json.dumps({"word": [["x", "q"]], "u": [[[0.0, 1.0], [1.0, 0.0]]]}))
    code, _, err = energyml("infer", spec, "--inputs", data)
    assert code == 1 and "'q'" in err and "`Word`" in err
    data.write_text("{")
    code, _, err = energyml("infer", spec, "--inputs", data)
    assert code == 1 and "not JSON" in err
    data.write_text(json.dumps({"word": [["x", "z"]]}))
    code, _, err = energyml("infer", spec, "--inputs", data)
    assert code == 1 and "`u` was not given" in err


def test_an_internal_error_is_a_message(energyml, monkeypatch):
    monkeypatch.setattr(cli, "analyse", lambda source: 1 / 0)
    code, _, err = energyml("check", EXAMPLES[0])
    assert code == 70 and "internal error" in err


def test_a_lack_of_memory_is_no_internal_error(energyml, monkeypatch):
    import torch

    for ask in (lambda source: torch.empty(10**15), lambda source: bytearray(10**18)):
        monkeypatch.setattr(cli, "analyse", ask)
        code, _, err = energyml("check", EXAMPLES[0])
        assert code == 1 and err.startswith("energyml: out of memory") and "smaller batch" in err
        assert "enforce fail" not in err
