"""Computes the package list, and compiles native code; everything else is in pyproject.toml.

``grammar/`` and ``backends/`` are folders of the repository that install inside ``energyml``. The links
``energyml/grammar`` and ``energyml/backends`` point at them for type checkers and editable installs, and are not
followed here: each package is listed once, from its real folder.
"""

import copy
import os
import platform
import shutil
import sys
import time
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent

# package -> folder, the same mapping as `package-dir` in pyproject.toml
FOLDERS = {"energyml": "energyml", "energyml.grammar": "grammar", "energyml.backends": "backends"}

# --------------------------------------------------------------------------------------------------------- native code

NATIVE = Path("energyml/native")
# part -> the folders whose headers it includes beside its own, and its instruction sets beside `plain`; what takes
# longest to compile comes first. x86-64-v4 where it was measured to gain at least 15%.
PARTS = {
    "chains": ((), ("v4", "v3")),
    "elimination": ((), ("v4", "v3")),
    "fields": ((), ("v3",)),
    "trees": (("elimination",), ("v3",)),
    "gibbs": ((), ("v3",)),
    "beams": ((), ("v3",)),
}
X86 = platform.machine().lower() in ("x86_64", "amd64")
OPENMP = ["-fopenmp"] if sys.platform.startswith("linux") else []
FLAGS = ["-O3", "-g0", "-std=c++17", "-fno-math-errno", "-Wno-psabi", "-fvisibility=hidden", *OPENMP]
# What one shared object defines is not seen by others: two instruction sets never share a function.
LINKING = [*OPENMP, f"-Wl,--version-script={NATIVE / 'python/exports.map'}"] if sys.platform.startswith("linux") else []
if os.environ.get("ENERGYML_SANITIZE"):  # `make sanitize`
    FLAGS += ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    LINKING += ["-fsanitize=address,undefined"]
    PARTS = {part: (folders, sets[:1]) for part, (folders, sets) in PARTS.items()}
COST = "torch serves instead, at up to ten times the time on CPUs; `energyml doctor` says which parts are built"


def module(name: str, source: Path, folders: tuple[str, ...], flags: list[str]) -> Extension:
    """One shared object; `optional`, as the package installs all the same without it."""
    headers = [header for folder in folders for header in (ROOT / NATIVE / folder).glob("*.h")]
    return Extension(
        f"energyml.native.{name}",
        [str(source)],
        depends=[
            "setup.py",
            str(NATIVE / "python/exports.map"),
            *sorted(str(header.relative_to(ROOT)) for header in headers),
        ],
        define_macros=[("MODULE", name)],
        language="c++",
        extra_compile_args=[*FLAGS, *flags],
        extra_link_args=LINKING,
        optional=True,
    )


def modules() -> list[Extension]:
    """The baseline, and each part for each instruction set; none on systems without GCC's kind of vectors."""
    if os.name != "posix":
        return []
    found = [module("_baseline", NATIVE / "python/baseline.cpp", ("python",), [])]
    for part, (folders, sets) in PARTS.items():
        for one in (*(sets if X86 else ()), "plain"):
            # Old processors alone take `plain` on x86: it is not worth the time that -O3 takes to compile.
            plain = ["-O2"] if X86 else []
            flags = plain if one == "plain" else [f"-march=x86-64-{one}"]
            name = f"_{part}_{one}"
            found.append(module(name, NATIVE / part / "module.cpp", (part, "simd", "python", *folders), flags))
    return found


class BuildModules(build_ext):
    """Compiles modules side by side, says when each is done, and in one line what is not built."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()
        self.failed: list[str] = []

    def build_extensions(self) -> None:
        command = self.compiler.compiler_cxx[0]
        if shutil.which(command) is None:
            print(f"native code is not built, as there is no compiler `{command}`: {COST}", file=sys.stderr, flush=True)
            self.extensions = []
        super().build_extensions()
        if self.failed:
            names = ", ".join(sorted(self.failed))
            print(f"native code is not built for {names}: {COST}", file=sys.stderr, flush=True)

    def build_extension(self, ext: Extension) -> None:
        what = ext.name.rpartition("._")[2].replace("_", " ")
        target = Path(self.get_ext_fullpath(ext.name))
        if not self.force and self._left_by_an_earlier_build(ext, target):
            return
        before, start = _changed(target), time.monotonic()
        worker = copy.copy(self)  # objects are named after sources: each variant has a folder of its own
        worker.build_temp = str(Path(self.build_temp, ext.name))
        try:
            build_ext.build_extension(worker, ext)
        except Exception as problem:  # whatever it is, torch serves: the line at the end says so
            print(f"native code: {what}: {problem}"[:300], file=sys.stderr, flush=True)
            self.failed.append(what)
            return
        if _changed(target) != before:
            print(f"native code: {what} is built ({time.monotonic() - start:.0f} s)", flush=True)

    def _left_by_an_earlier_build(self, ext: Extension, target: Path) -> bool:
        """Take a module that is in the checkout and newer than all it is made of, where another place wants it."""
        left = ROOT / NATIVE / target.name
        if target.resolve() == left or not left.exists():
            return False
        if any((ROOT / one).stat().st_mtime > left.stat().st_mtime for one in (*ext.sources, *ext.depends)):
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(left, target)
        return True

    # A module is put where an older one is without writing into that: a process that runs it keeps what it has.
    def copy_file(self, infile: str, outfile: str, *options: object, **named: object) -> tuple[str, bool]:
        Path(outfile).unlink(missing_ok=True)
        return super().copy_file(infile, outfile, *options, **named)


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


# ------------------------------------------------------------------------------------------------------------ packages


def packages() -> list[str]:
    found = []
    for package, folder in FOLDERS.items():
        for path, folders, files in os.walk(ROOT / folder, followlinks=False):
            inner = Path(path).relative_to(ROOT / folder).parts
            if inner and "__init__.py" not in files:
                folders.clear()  # a package lives inside packages only
            else:
                found.append(".".join((package, *inner)))
    return sorted(found)


setup(packages=packages(), ext_modules=modules(), cmdclass={"build_ext": BuildModules})
