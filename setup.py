"""Computes the package list; everything else is in pyproject.toml.

``grammar/`` and ``backends/`` are folders of the repository that install inside ``energyml``. The links
``energyml/grammar`` and ``energyml/backends`` point at them for type checkers and editable installs, and are not
followed here: each package is listed once, from its real folder.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent

# package -> folder, the same mapping as `package-dir` in pyproject.toml
FOLDERS = {"energyml": "energyml", "energyml.grammar": "grammar", "energyml.backends": "backends"}

# Native code.  `optional`: without a compiler the package installs all the same, as every kernel has a torch twin.
# The instruction set is chosen at run time (backends/native/simd.h), so a wheel runs on any machine of its kind.
UNIX = os.name == "posix"
OPENMP = ["-fopenmp"] if sys.platform.startswith("linux") else []
NATIVE = Path("backends/native")


def extension(name: str, source: str) -> Extension:
    """One module of native code; every header counts as a dependency of every module."""
    return Extension(
        f"energyml.backends.native.{name}",
        [str(NATIVE / source)],
        depends=sorted(str(NATIVE / header.name) for header in (ROOT / NATIVE).glob("*.h")),
        language="c++",
        extra_compile_args=["-O3", "-g0", "-std=c++17", "-fno-math-errno", "-Wno-psabi", *OPENMP]
        if UNIX
        else ["/O2", "/std:c++17"],
        extra_link_args=OPENMP,
        optional=True,
    )


EXTENSIONS = [
    extension("_kernels", "kernels.cpp"),
    extension("_graphs", "graphs.cpp"),
    extension("_fields", "fields.cpp"),
    extension("_sweeps", "sweeps.cpp"),
    extension("_beams", "beams.cpp"),
]


class BuildModules(build_ext):
    """Puts a module where an older one is without writing into that: a process that runs it keeps what it has."""

    def copy_file(self, infile: str, outfile: str, *options: object, **named: object) -> tuple[str, bool]:
        Path(outfile).unlink(missing_ok=True)
        return super().copy_file(infile, outfile, *options, **named)


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


# Modules are compiled side by side: they take minutes, and do not depend on each other.
setup(
    packages=packages(),
    ext_modules=EXTENSIONS,
    cmdclass={"build_ext": BuildModules},
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
)
