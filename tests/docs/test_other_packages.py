"""Backends of other packages: docs/architecture.md has a whole one; here is what can go wrong with entry points."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CARD = """\
from energyml.plan.backend_card import BackendCard
from energyml.queries import Quality

CARD = BackendCard("backend", "mine", "a backend of another package", answers={"map": Quality.LOWER})
OTHER = 3
"""


def package(folder: Path, **entries: str) -> None:
    """What an installer leaves behind for a package with these entry points."""
    info = folder / "theirs-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 0.1\n")
    lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[energyml.backends]\n{lines}")
    (folder / "their_card.py").write_text(CARD)


def energyml(folder: Path, *arguments: str) -> tuple[int, str]:
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from energyml.cli import main; main()"
    command = [sys.executable, "-c", program, str(folder), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_a_card_is_found_by_its_name(tmp_path: Path) -> None:
    package(tmp_path, mine="their_card:CARD")
    code, out = energyml(tmp_path, "explain", "examples/ocr.energy", "--stage", "plan", "--infer", "mine")
    assert code == 0, out
    assert "lower bound: map" in out


def test_a_broken_package_harms_nobody_else(tmp_path: Path) -> None:
    broken = {
        "lost": ("no_such_module:CARD", "No module named 'no_such_module'"),
        "empty": ("their_card:NOTHING", "has no attribute 'NOTHING'"),
        "odd": ("their_card:OTHER", "must name the card of a backend `odd`, found int"),
        "renamed": ("their_card:CARD", "must name the card of a backend `renamed`, found the backend card `mine`"),
    }
    package(tmp_path, mine="their_card:CARD", **{name: target for name, (target, _) in broken.items()})
    code, out = energyml(tmp_path, "explain", "examples/ising.energy", "--stage", "plan")
    assert code == 0, out
    assert [name for name in ("mine", *broken) if f"\n  {name} " in out] == ["mine"]
    code, out = energyml(tmp_path, "doctor")
    assert code == 0, out
    for name, (_, problem) in broken.items():
        line = next(line for line in out.splitlines() if line.startswith(f"  {name} "))
        assert problem in line
        assert "`theirs`" in line
    code, out = energyml(tmp_path, "explain", "examples/ocr.energy", "--infer", "lost")
    assert (code, out.startswith("energyml: the backend `lost` ")) == (1, True), out


def test_a_built_in_name_cannot_be_taken(tmp_path: Path) -> None:
    package(tmp_path, exact="no_such_module:CARD")
    code, out = energyml(tmp_path, "check", "examples/ocr.energy")
    assert (code, out) == (0, "examples/ocr.energy: no errors\n")
