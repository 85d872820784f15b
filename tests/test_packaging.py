"""The wheel holds every package of the three folders, nothing else, and works outside the repository."""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# folder of the repository -> folder of the wheel
FOLDERS = {"energyml": "energyml", "grammar": "energyml/grammar", "backends": "energyml/backends"}

SPEC = """\
labels Tag = {A, B}
dim T
output y : Tag[T]
param u : real[Tag]
factor unary [t in T] (y[t]) = u
infer exact
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command as a user outside the repository would, and return what it printed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def sources(pattern: str) -> dict[str, Path]:
    """The files of the three folders that match, by their name in the wheel; links are not followed."""
    found = {}
    for folder, target in FOLDERS.items():
        for path, _, files in os.walk(ROOT / folder, followlinks=False):
            for file in sorted(Path(path, name) for name in files):
                if file.match(pattern):
                    found[f"{target}/{file.relative_to(ROOT / folder).as_posix()}"] = file
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy, so that the checkout stays clean and no old build/ is picked up."""
    work = tmp_path_factory.mktemp("wheel")
    copy = work / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, copy)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", work / "dist", copy, cwd=work)
    (built,) = (work / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a clean environment with the wheel and this environment's dependencies."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, with_pip=False)
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home)
    # The dependencies come from this environment, after the wheel's own folder on the path. Its .pth files are not
    # read this way, hence neither is the one that would make the editable install of the checkout importable.
    here = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip()
    borrowed = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    assert borrowed
    Path(here, "dependencies.pth").write_text("\n".join(borrowed) + "\n")
    return scripts


def test_every_folder_of_modules_is_a_package() -> None:
    missing = {file.parent for file in sources("*.py").values() if not (file.parent / "__init__.py").exists()}
    assert not missing, "these folders hold modules but no __init__.py, so the wheel would leave them out"


def test_links_are_relative_and_reach_the_folders() -> None:
    for folder in ("grammar", "backends"):
        assert (ROOT / "energyml" / folder).readlink() == Path("..", folder)


def test_wheel_holds_every_module(names: set[str]) -> None:
    assert {name for name in names if name.endswith(".py")} == set(sources("*.py"))


def test_wheel_holds_the_grammar_and_the_type_marker(names: set[str]) -> None:
    data = sources("*.lark").keys() | sources("*.json").keys()
    assert any(name.endswith(".lark") for name in data)
    assert data <= names
    assert "energyml/py.typed" in names


def test_wheel_has_one_top_level_package(names: set[str]) -> None:
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"energyml"}


def test_installed_wheel_is_what_python_imports(installed: Path) -> None:
    for package in ("energyml", "energyml.grammar", "energyml.backends"):
        program = f"import {package} as package; print(package.__file__)"
        file = run(installed / "python", "-c", program, cwd=installed).strip()
        assert Path(file).is_relative_to(installed.parent), file


def test_installed_version_is_the_declared_one(installed: Path) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    program = "from importlib.metadata import version; print(version('energyml'))"
    assert run(installed / "python", "-c", program, cwd=installed).strip() == declared


def test_installed_command_checks_a_spec(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.energy").write_text(SPEC)
    run(installed / "energyml", "check", "tiny.energy", cwd=tmp_path)


@pytest.mark.parametrize("part", ["baseline", "chains", "trees", "elimination", "fields", "gibbs", "beams"])
@pytest.mark.parametrize("compiler", [shutil.which("c++") or shutil.which("g++")])
def test_native_code_is_built_where_there_is_a_compiler(names: set[str], compiler: str | None, part: str) -> None:
    built = [name for name in names if name.startswith(f"energyml/native/_{part}")]
    assert bool(built) == (compiler is not None)
