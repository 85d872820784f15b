"""Small complete specs for the pages of errors: a chain with some of its statements changed."""

from __future__ import annotations

_CHAIN = {
    "labels": "labels Tag = {O, B}",
    "dim": "dim T",
    "input": "input x : real[T, 4]",
    "output": "output y : Tag[T]",
    "net": "net f = mlp(out: Tag)",
    "param": "param W : real[from: Tag, to: Tag]",
    "term": "chain y { unary: f(x), pair: W }",
}
_FACTORS = {
    "labels": "labels Tag = {O, B}",
    "dim": "dim T",
    "output": "output y : Tag[T]",
    "param": "param u : real[Tag]",
    "term": "factor unary [t in T] (y[t]) = u",
}
_FIELD = {
    "labels": "labels Seg = {background, horse}",
    "dim": "dim H, W",
    "input": "input rgb : real[3, H, W]",
    "field": "field s : real[Seg, H, W]",
    "net": "net u = unet(out: Seg)",
    "term": "gaussian s { unary: u(rgb) }",
}


def _text(base: dict[str, str], changed: dict[str, str]) -> str:
    return "".join(f"{line}\n" for line in (base | changed).values() if line)


def chain(**changed: str) -> str:
    """A chain over network scores; statements are replaced by key, others added at the end, and "" leaves one out."""
    return _text(_CHAIN, changed)


def factors(**changed: str) -> str:
    """Independent cells with one shared table; changed as in `chain`."""
    return _text(_FACTORS, changed)


def field(**changed: str) -> str:
    """A Gaussian field over an image; changed as in `chain`."""
    return _text(_FIELD, changed)
