"""What `energyml doctor` looks at: versions, devices, optional extras, the grammar's tables, and the backends."""

from __future__ import annotations

import os
import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from energyml import __version__, cards, grammar

REQUIRED = ("torch", "lark", "networkx", "rich", "typer", "numpy", "torch-struct", "safetensors", "opt_einsum")
# package -> the extra of pyproject.toml that brings it, and what it is for
OPTIONAL = {
    "pillow": ("images", "the reader of images and masks"),
    "sacrebleu": ("translation", "the metric bleu"),
    "matplotlib": ("plots", "plots of runs and comparisons"),
    "arviz": ("sampling", "draws as ArviZ data"),
    "pyro-ppl": ("sampling", "the backend nuts, and models as Pyro distributions"),
    "transformers": ("transformers", "pretrained masked language models"),
    "scipy": ("ilp", "the backend ilp"),
    "ray": ("ray", "sweeps on a cluster"),
    "pygments": ("", "highlighting of spec files"),
}


# what it costs where native code is not built
COST = "at up to ten times the time on CPUs"


def examine() -> tuple[str, bool]:
    """A report, and whether everything that is needed is there."""
    missing = [name for name in REQUIRED if _version(name) is None]
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    lines = [f"energyml {__version__}", f"python {platform.python_version()} on {system}", "", "needed"]
    lines += [f"  {name:<14}{_version(name) or 'MISSING: pip install ' + name}" for name in REQUIRED]
    lines += ["", "optional"]
    lines += [
        f"  {name:<14}{_version(name) or _absent(name, extra):<15} {what}" for name, (extra, what) in OPTIONAL.items()
    ]
    lines += ["", "devices", *(f"  {line}" for line in _devices(missing))]
    lines += ["", "grammar", f"  {_tables()}"]
    lines += ["", "native code", f"  {_native(missing)}"]
    lines += ["", "backends", *_backends()]
    lines += ["", "all is well" if not missing else f"missing: {', '.join(missing)}"]
    return "\n".join(lines), not missing


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _absent(name: str, extra: str) -> str:
    return f"not installed: pip install {repr(f'energyml[{extra}]') if extra else name};"


def _devices(missing: list[str]) -> list[str]:
    if "torch" in missing or find_spec("torch") is None:
        return ["unknown: torch is missing"]
    import torch

    found = [f"cpu ({torch.get_num_threads()} threads)"]
    found += [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def _native(missing: list[str]) -> str:
    if "torch" in missing:
        return "unknown: torch is missing"
    native = import_module("energyml.native")
    if native.set_aside:
        return "set aside by ENERGYML_NATIVE=0: torch serves instead"
    if native.baseline is None:
        system = "" if os.name == "posix" else f"; {platform.system()} has none"
        return f"not built: torch serves instead, {COST} (GCC or Clang at install builds it{system})"
    threads = "with" if native.baseline.has_openmp() else "without"
    found = f"built, {threads} OpenMP: " + ", ".join(f"{part} {one}" for part, one in native.loaded.items())
    lacking = [part for part in native.PARTS if part not in native.loaded]
    return f"{found}; not built for {', '.join(lacking)}: torch serves instead, {COST}" if lacking else found


def _tables() -> str:
    if grammar.tables_are_fresh():
        return "prepared tables match the grammar"
    return "prepared tables are missing or stale: the parser is built at each start"


def _backends() -> list[str]:
    found = [card for card in cards.every("backend") if card.name != "auto"]
    states = {
        card.name: "ready" if card.implementation else "card only, no implementation in this version" for card in found
    }
    return [f"  {name:<18}{state}" for name, state in (states | cards.broken()).items()]
