"""The examples that are Python programs do what their pages say."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

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


def test_the_picture_of_shapes_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    loaded("shapes").main(out=tmp_path / "shapes.png", epochs=1, count=16, size=8)
    assert (tmp_path / "shapes.png").read_bytes().startswith(b"\x89PNG")
