"""Imports point one way along the road, and the front half of the road starts without torch."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# --- the layering, as data ------------------------------------------------------------------------------------------

# The road, in order: a stop may import itself and the stops before it.
ROAD = ("energyml.syntax", "energyml.model", "energyml.ir", "energyml.plan")

# What stands beside the road: messages, the words of queries, and cards (descriptions that a spec's names refer to).
MESSAGES = ("energyml.diagnostics", "energyml.errors")
CARD_LISTS = (
    "energyml.nets.cards",
    "energyml.objectives.cards",
    "energyml.train.cards",
    "energyml.data.cards",
    "energyml.metrics.cards",
)

# package or module -> the parts of energyml that it may import, anywhere in its text. The longest matching row counts;
# a module without a row may import all of energyml. Every row may import itself.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "energyml.diagnostics": (),
    "energyml.errors": ("energyml.diagnostics",),
    "energyml.queries": (),
    "energyml.execution": ("energyml.diagnostics",),
    "energyml.grammar": (),
    "energyml.syntax": (*MESSAGES, "energyml.grammar"),
    "energyml.cards": ("energyml.diagnostics", "energyml.syntax"),
    "energyml.nets.cards": ("energyml.cards", "energyml.model.types"),
    "energyml.objectives.cards": ("energyml.cards", "energyml.queries"),
    "energyml.train.cards": ("energyml.cards",),
    "energyml.data.cards": ("energyml.cards",),
    "energyml.metrics.cards": ("energyml.cards",),
    "energyml.model": (*MESSAGES, "energyml.syntax", "energyml.cards", *CARD_LISTS),
    "energyml.ir": (*MESSAGES, "energyml.syntax", "energyml.cards", "energyml.queries", "energyml.model"),
    "energyml.plan": (*MESSAGES, "energyml.cards", *CARD_LISTS, "energyml.queries", "energyml.model", "energyml.ir"),
}

# Cards and the types that they speak of stand before the packages that they lie in.
STAND_APART = (*CARD_LISTS, "energyml.model.types")

# Imports that close a circle: importer and imported, with the reason. The list only gets shorter.
IN_A_CIRCLE: dict[tuple[str, str], str] = {
    ("energyml.posterior", "energyml.certificates"): "`certificate` asks other backends, by posteriors of their own",
    ("energyml.posterior", "energyml.interop"): "`to_arviz` and `to_pyro` convert a posterior",
    ("energyml.energy_model", "energyml.objectives"): "`loss` calls objectives, whose teachers are models",
    ("energyml.objectives", "energyml.train"): "teachers are loaded from the folders of trained runs",
}

# Third-party modules that these never import, not even inside a function or for a type checker.
NEVER_IMPORT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*ROAD, *MESSAGES, *CARD_LISTS, "energyml.cards", "energyml.grammar"), ("torch", "torch_struct")),
}

# Importable in functions only, because startup counts.
LAZY = ("networkx",)

# The core reaches what is inside this package through the registry, by name.
REGISTERED = "energyml.backends"

# Private parts of torch, from which the execution mode is read: one module alone knows them.
PRIVATE = ("torch._C", "torch._dynamo", "torch._functorch")
KNOWS_PRIVATE = "energyml.execution"

# Bound terms are made and told apart here alone; others take views of them.
BINDING = "energyml.bind"

# Importing these, and running `energyml check`, loads none of HEAVY.
LIGHT = (*ROAD, "energyml.cli")
HEAVY = ("torch", "networkx")

# --- reading imports ------------------------------------------------------------------------------------------------


parsed = cache(ast.parse)


def inside(name: str, package: str) -> bool:
    """Whether a dotted name is the package or lies in it."""
    return name == package or name.startswith(package + ".")


@cache
def module_files() -> dict[str, Path]:
    """Every module of energyml by its dotted name, each once: backends and grammar through the links."""
    found = {}
    for path, _, files in os.walk(ROOT / "energyml", followlinks=True):
        for file in (Path(path, name) for name in files if name.endswith(".py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(tree: ast.Module, package: str) -> Iterator[tuple[int, str, bool]]:
    """The imports of a module: line, dotted name, and whether it runs when the module is imported.

    ``from a import b`` gives ``a.b``, since ``b`` may be a module. ``package`` resolves relative imports. What stands
    under ``if TYPE_CHECKING`` is given too, as something that does not run: it still points along the road.
    """

    def visit(node: ast.AST, runs: bool) -> Iterator[tuple[int, str, bool]]:
        match node:
            case ast.Import():
                for alias in node.names:
                    yield node.lineno, alias.name, runs
            case ast.ImportFrom():
                base = node.module or ""
                if node.level:
                    parents = package.split(".")
                    base = ".".join((*parents[: len(parents) - node.level + 1], *filter(None, [node.module])))
                for alias in node.names:
                    yield node.lineno, base if alias.name == "*" else f"{base}.{alias.name}", runs
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                runs = False
            case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test):
                for child in node.body:
                    yield from visit(child, False)
                for child in node.orelse:
                    yield from visit(child, runs)
                return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, runs)

    return visit(tree, True)


def row(table: dict[str, tuple[str, ...]], module: str) -> tuple[str, tuple[str, ...]] | None:
    """The longest entry of a table that the module lies in."""
    key = max((key for key in table if inside(module, key)), key=len, default=None)
    return None if key is None else (key, table[key])


def violations(module: str, text: str, is_package: bool) -> list[str]:
    """What a module imports against the layering, one sentence each."""
    found = []
    package = module if is_package else module.rpartition(".")[0]
    for line, name, runs in imports(parsed(text), package):

        def report(reason: str, line: int = line, name: str = name) -> None:
            found.append(f"{module}:{line} imports {name}: {reason}")

        if inside(name, "energyml"):
            allowed = row(MAY_IMPORT, module)
            if allowed and not any(inside(name, other) for other in (allowed[0], *allowed[1])):
                report(f"{allowed[0]} may import {', '.join(allowed[1]) or 'nothing of energyml'}")
            if name != REGISTERED and inside(name, REGISTERED) and not inside(module, REGISTERED):
                report(f"{REGISTERED}.* is reached through the registry only")
        banned = row(NEVER_IMPORT, module)
        if banned and any(inside(name, other) for other in banned[1]):
            report(f"{banned[0]} never does")
        if runs and any(inside(name, other) for other in LAZY):
            report("this belongs inside the function that uses it")
    return found


def other_backends(module: str, text: str, is_package: bool) -> list[str]:
    """The imports of a backend that are of another backend, one sentence each."""
    own = ".".join(module.split(".")[:3])
    return [
        f"{module}:{line} imports {name}"
        for line, name, _ in imports(parsed(text), module if is_package else module.rpartition(".")[0])
        if inside(module, REGISTERED) and inside(name, REGISTERED) and not inside(name, own)
    ]


def classes_of_terms() -> set[str]:
    """The names of all classes of bound terms, without their common base."""
    trees = [parsed(file.read_text(encoding="utf-8")) for name, file in module_files().items() if inside(name, BINDING)]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found: set[str] = {"BoundTerm"}
    while True:
        more = {one.name for one in classes if found & {ast.unparse(base).rpartition(".")[2] for base in one.bases}}
        if more <= found:
            return found - {"BoundTerm"}
        found |= more


def names_of_terms(text: str, classes: set[str]) -> list[tuple[int, str]]:
    """Where a module names a class of terms: imported, used, as an attribute, a pattern or a text; line and name."""
    found = []
    for node in ast.walk(parsed(text)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) if name in classes:
                found.append((node.lineno, name))
            case ast.Constant(value=str(name)) if name in classes:
                found.append((node.lineno, name))
    return found


def room(module: str) -> str:
    """The package or top-level module of energyml that a module belongs to; each backend is one."""
    if module in STAND_APART:
        return module
    return ".".join(module.split(".")[: 3 if inside(module, REGISTERED) else 2])


def imports_between_rooms() -> dict[tuple[str, str], str]:
    """Which room imports which, lazily and for type checkers too, with an example of each."""
    modules, found = module_files(), dict[tuple[str, str], str]()
    for module, file in sorted(modules.items()):
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        for line, name, _ in imports(parsed(file.read_text(encoding="utf-8")), package):
            if not inside(name, "energyml"):
                continue
            target = name if name in modules else name.rpartition(".")[0]
            if room(module) != room(target):
                found.setdefault((room(module), room(target)), f"{module}:{line} imports {name}")
    return found


def circle(edges: Iterable[tuple[str, str]]) -> list[str]:
    """Rooms of which each imports the next, the last one the first; empty where there is no circle."""
    above: dict[str, set[str]] = {}
    for importer, imported in edges:
        above.setdefault(importer, set()).add(imported)
    try:
        TopologicalSorter(above).prepare()
    except CycleError as problem:
        return list(reversed(problem.args[1]))
    return []


# --- the tests ------------------------------------------------------------------------------------------------------


def test_layering() -> None:
    found = [
        sentence
        for module, file in sorted(module_files().items())
        for sentence in violations(module, file.read_text(encoding="utf-8"), file.name == "__init__.py")
    ]
    assert not found, "\n".join(["imports against the layering:", *found])


def test_no_backend_imports_another() -> None:
    found = [
        sentence
        for module, file in sorted(module_files().items())
        for sentence in other_backends(module, file.read_text(encoding="utf-8"), file.name == "__init__.py")
    ]
    assert not found, "\n".join(["code that backends share belongs in a library that all of them import:", *found])


@pytest.mark.parametrize(
    "text",
    [
        "from energyml.backends.gaussian.session import FieldSession",
        "def f():\n    import energyml.backends.gaussian",
        "if TYPE_CHECKING:\n    from energyml.backends import gaussian",
        "from ..gaussian import card",
    ],
)
def test_another_backend_is_seen(text: str) -> None:
    assert len(other_backends("energyml.backends.exact.chain", text, is_package=False)) == 1
    assert not other_backends("energyml.backends.gaussian.cg", text, is_package=False)
    assert not other_backends("energyml.driver", text, is_package=False)


def test_packages_form_no_cycle() -> None:
    edges = imports_between_rooms()
    found = circle(edges.keys() - IN_A_CIRCLE.keys())
    assert not found, "\n".join(["imports in a circle:", *(edges[pair] for pair in pairwise(found))])


def test_known_circles_are_circles() -> None:
    edges = imports_between_rooms()
    assert IN_A_CIRCLE.keys() <= edges.keys()
    for pair in IN_A_CIRCLE:
        assert circle(edges.keys() - IN_A_CIRCLE.keys() | {pair}), f"{pair} is no longer in a circle"


def test_a_circle_is_seen() -> None:
    assert circle([("a", "b"), ("b", "c"), ("c", "a")])[0] in "abc"
    assert not circle([("a", "b"), ("b", "c"), ("a", "c")])


def test_classes_of_terms_stay_in_bind() -> None:
    classes = classes_of_terms()
    assert {"TableTerm", "LinearTerm", "QuadraticTerm", "StepwiseTerm", "MaskedTerm", "BlackBoxTerm"} <= classes
    found = [
        f"{module}:{line} names {name}"
        for module, file in sorted(module_files().items())
        if not inside(module, BINDING)
        for line, name in names_of_terms(file.read_text(encoding="utf-8"), classes)
    ]
    assert not found, "\n".join(["terms are read through their views, see energyml/bind/views.py:", *found])


@pytest.mark.parametrize(
    "text",
    [
        "from energyml.bind.tables import TableTerm",
        "from energyml.bind.tables import TableTerm as Table",
        "def f(term):\n    return isinstance(term, tables.TableTerm)",
        "match term:\n    case tables.TableTerm():\n        pass",
        "found = type(term).__name__ == 'TableTerm'",
    ],
)
def test_a_class_of_terms_is_seen(text: str) -> None:
    assert len(names_of_terms(text, {"TableTerm"})) == 1


def test_the_execution_mode_is_read_in_one_module() -> None:
    found = [
        f"{module}:{node.lineno} reads {ast.unparse(node)}"
        for module, file in sorted(module_files().items())
        for node in ast.walk(parsed(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in PRIVATE and module != KNOWS_PRIVATE
    ]
    assert not found, "\n".join(found)


def test_every_row_is_about_something() -> None:
    modules = module_files()
    names = {*MAY_IMPORT, *NEVER_IMPORT, REGISTERED, KNOWS_PRIVATE, BINDING, *STAND_APART, *LIGHT} | {
        other for row in MAY_IMPORT.values() for other in row
    }
    assert names <= modules.keys()


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("energyml.syntax.tree", "from energyml.model import types"),
        ("energyml.syntax.tree", "from energyml import model"),
        ("energyml.syntax.tree", "from ..ir import build"),
        ("energyml.model.types", "def f():\n    import torch.nn"),
        ("energyml.model.types", "if TYPE_CHECKING:\n    from torch import Tensor"),
        ("energyml.plan.choose", "import energyml.objectives.nll"),
        ("energyml.plan.choose", "import energyml"),
        ("energyml.plan.structure", "try:\n    import networkx as nx\nexcept ImportError:\n    pass"),
        ("energyml.cards", "from energyml.model import types"),
        ("energyml.driver", "def f():\n    from energyml.backends import exact"),
        ("energyml.driver", "from energyml.backends.exact import chain"),
    ],
)
def test_the_check_sees(module: str, text: str) -> None:
    assert len(violations(module, text, is_package=False)) == 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("energyml.syntax.tree", "from energyml.errors import SpecError\nfrom energyml.syntax import text"),
        ("energyml.plan.choose", "from energyml.ir import build\nfrom . import cost\nfrom .. import diagnostics"),
        ("energyml.plan.structure", "def f():\n    import networkx as nx"),
        ("energyml.plan.structure", "if TYPE_CHECKING:\n    import networkx as nx"),
        ("energyml.driver", "import torch\nimport energyml.backend\nfrom energyml import backends"),
        ("energyml.backends.exact.chain", "import torch\nfrom energyml.backends.exact import semiring"),
    ],
)
def test_the_check_allows(module: str, text: str) -> None:
    assert violations(module, text, is_package=False) == []


def test_checking_a_spec_loads_nothing_heavy(tmp_path: Path) -> None:
    spec = tmp_path / "tiny.energy"
    spec.write_text(
        "labels Tag = {A, B}\ndim T\noutput y : Tag[T]\nparam u : real[Tag]\n"
        "factor unary [t in T] (y[t]) = u\ninfer exact\n"
    )
    program = f"""
import importlib, sys
for name in {LIGHT!r}:
    importlib.import_module(name)
    loaded = [heavy for heavy in {HEAVY!r} if heavy in sys.modules]
    assert not loaded, f"importing {{name}} loads {{loaded}}"
from energyml.cli import main
sys.argv = ["energyml", "check", {str(spec)!r}]
try:
    status = main()
except SystemExit as stop:
    status = stop.code
assert not status, f"energyml check ended with {{status}}"
loaded = [heavy for heavy in {HEAVY!r} if heavy in sys.modules]
assert not loaded, f"energyml check loads {{loaded}}"
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
