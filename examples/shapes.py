"""Learn to segment pictures of discs and bars, with and without the field; draws a picture of both.

    python examples/shapes.py --out shapes.png

The same on the command line, from pictures in a file:

    python examples/shapes.py --data
    energyml train examples/shapes.energy --out run
    energyml eval run

The network alone is the same spec without `pair`: the field then is what the unary says at each pixel.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

import energyml as em

SPEC = Path(__file__).with_name("shapes.energy")
COLOURS = torch.tensor([[0.45, 0.45, 0.5], [0.7, 0.4, 0.35], [0.35, 0.6, 0.65]])  # of background, discs and bars


def draw(count: int, size: int, seed: int, noise: float = 0.2) -> tuple[Tensor, Tensor]:
    """Pictures [count, size, size, 3] and their labels [count, size, size]."""
    generator = torch.Generator().manual_seed(seed)
    row, column = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    labels = torch.zeros(count, size, size, dtype=torch.long)
    for number in range(count):
        for label in (1, 2, 1, 2):
            y, x = (torch.rand(2, generator=generator) * size).tolist()
            reach = size * (0.12 + 0.12 * float(torch.rand((), generator=generator)))
            if label == 1:
                inside = (row - y) ** 2 + (column - x) ** 2 < reach**2
            else:
                inside = ((row - y).abs() < reach / 2) & ((column - x).abs() < 1.5 * reach)
            labels[number][inside] = label
    clean = COLOURS[labels]
    return clean + noise * torch.randn(clean.shape, generator=generator), labels


def write(path: Path, count: int = 128, size: int = 32) -> None:
    """Pictures and labels for the `data` line of the spec: a JSON object a line."""
    names = ("background", "disc", "bar")
    with path.open("w", encoding="utf-8") as file:
        for rgb, labels in zip(*draw(count, size, seed=0), strict=True):
            pixels = [[[round(value, 3) for value in pixel] for pixel in row] for row in rgb.tolist()]
            file.write(
                json.dumps({"rgb": pixels, "y": [[names[one] for one in row] for row in labels.tolist()]}) + "\n"
            )


def fit(model: em.EnergyModel, pictures: Tensor, labels: Tensor, epochs: int, seed: int = 0) -> None:
    """Minimise the cross-entropy of each pixel."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.randperm(len(pictures), generator=generator).split(16):
            optimizer.zero_grad()
            model.loss(rgb=pictures[batch], y=labels[batch]).backward()
            optimizer.step()


def jaccard(found: Tensor, labels: Tensor) -> float:
    """Intersection over union, averaged over labels."""
    shares = [
        ((found == label) & (labels == label)).sum() / ((found == label) | (labels == label)).sum()
        for label in range(len(COLOURS))
    ]
    return float(torch.stack(shares).mean())


def picture(path: Path, pictures: Tensor, *rows: tuple[str, Tensor]) -> None:
    """Pictures and labellings side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(rows) + 1, len(pictures), figsize=(1.6 * len(pictures), 1.7 * (len(rows) + 1)))
    for column, image in enumerate(pictures):
        axes[0, column].imshow(image.clamp(0, 1).numpy())
        for row, (_, labels) in enumerate(rows, start=1):
            axes[row, column].imshow(COLOURS[labels[column]].numpy())
    for axis, title in zip(axes[:, 0], ("picture", *(title for title, _ in rows)), strict=True):
        axis.set_ylabel(title)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main(out: Path | None = None, epochs: int = 20, count: int = 128, size: int = 32) -> dict[str, float]:
    """Train both models and return their Jaccard indices on new pictures."""
    text = SPEC.read_text(encoding="utf-8")
    models = {
        "network alone": em.compile(text.replace("pair: smooth(w), ", ""), seed=0),
        "with the field": em.compile(text, seed=0),
    }
    train, test = draw(count, size, seed=0), draw(32, size, seed=1)
    found = {}
    for name, model in models.items():
        fit(model, *train, epochs)
        with torch.no_grad():
            found[name] = model.infer(rgb=test[0]).map()["y"]
    scores = {name: jaccard(labels, test[1]) for name, labels in found.items()}
    for name, score in scores.items():
        print(f"{name:>15}: Jaccard index {score:.3f}")
    if out is not None:
        shown = [(name, labels[:5]) for name, labels in found.items()]
        picture(out, test[0][:5], *shown, ("truth", test[1][:5]))
        print(f"{out}: pictures, network alone, with the field, truth")
    return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the picture here (needs matplotlib)")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--data", action="store_true", help="only write pictures beside the spec, for `energyml train`")
    given = parser.parse_args()
    if given.data:
        write(SPEC.with_name("shapes.jsonl"))
    else:
        main(given.out, given.epochs)
