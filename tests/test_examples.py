"""The examples that are Python programs do what their pages say."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from energyml.docpages import run_command

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def loaded(name: str) -> ModuleType:
    """An example as a module; running it as a program would do the same."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_field_segments_shapes_better_than_its_network_alone() -> None:
    scores = loaded("shapes").main(epochs=12, size=24)
    assert scores["with the field"] > scores["network alone"] + 0.1


def test_shapes_are_learnt_on_the_command_line(tmp_path: Path) -> None:
    spec = tmp_path / "shapes.energy"
    text = (EXAMPLES / "shapes.energy").read_text(encoding="utf-8")
    spec.write_text(text.replace("epochs: 20", "epochs: 2"), encoding="utf-8")
    loaded("shapes").write(tmp_path / "shapes.jsonl", count=40, size=8)
    run = str(tmp_path / "run")
    for command in (
        ["train", str(spec), "--out", run],
        ["eval", run],
        ["predict", run, str(tmp_path / "shapes.jsonl")],
    ):
        code, said = run_command(["energyml", *command])
        assert code == 0, said
    assert said.count('"y": [["') == 40


def test_the_picture_of_shapes_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    loaded("shapes").main(out=tmp_path / "shapes.png", epochs=1, count=16, size=8)
    assert (tmp_path / "shapes.png").read_bytes().startswith(b"\x89PNG")
