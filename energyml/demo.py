"""`energyml demo`: a spec is checked, trained and swapped between backends, on words that are drawn here.

The letters are a 5 x 3 pixel alphabet blown up to the 16 x 8 images of the OCR task, with noise that makes single
letters hard to tell apart; the chain learns which letters follow which.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from energyml.diagnostics import Source
from energyml.driver import bind, compile_source
from energyml.energy_model import EnergyModel
from energyml.explain import explain

SPEC = """\
# Read handwritten words: a convolutional network looks at letters, a chain knows which letters follow which.
labels Letter = {a, c, e, n, o, r, s, t}
dim T
input image : real[T, 1, 16, 8]
output y : Letter[T]

net cnn = lenet5(out: Letter)
param W : real[from: Letter, to: Letter]
chain y { unary: cnn(image), pair: W }

infer exact
decode map
train nll { epochs: 8, optimizer: adam(lr: 1e-2) }
"""

WORDS = ("cat", "car", "arc", "art", "rat", "tar", "eat", "tea", "sea", "ace", "ear", "era", "ant", "tan", "can", "ran",
         "net", "ten", "one", "son", "not", "ton", "rot", "cot", "nose", "rose", "race", "care", "case", "star", "rats",
         "arts", "ocean", "canoe", "react", "trace", "crate", "stone", "notes", "snore")  # fmt: skip
GLYPHS = {
    "a": "010101111101101", "c": "011100100100011", "e": "111100110100111", "n": "110101101101101",
    "o": "010101101101010", "r": "110101110101101", "s": "011100010001110", "t": "111010010010010",
}  # fmt: skip
NOISE = 1.2
TRAINING_WORDS, TEST_WORDS, BATCH = 1200, 300, 40


def draw(words: list[str], letters: tuple[str, ...], generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Images [B, T, 1, 16, 8], labels [B, T] (-1 after a word's end) and lengths [B]."""
    longest = max(len(word) for word in words)
    images = torch.zeros(len(words), longest, 1, 16, 8)
    labels = torch.full((len(words), longest), -1)
    for row, word in enumerate(words):
        for place, letter in enumerate(word):
            glyph = torch.tensor([float(bit) for bit in GLYPHS[letter]]).reshape(5, 3)
            images[row, place, 0, 0:15, 1:7] = glyph.repeat_interleave(3, 0).repeat_interleave(2, 1)
            labels[row, place] = letters.index(letter)
    images += NOISE * torch.randn(images.shape, generator=generator)
    return images, labels, torch.tensor([len(word) for word in words])


def _sample_words(count: int, generator: torch.Generator) -> list[str]:
    return [WORDS[int(i)] for i in torch.randint(len(WORDS), (count,), generator=generator)]


def accuracy(model: EnergyModel, images: Tensor, labels: Tensor, lengths: Tensor) -> float:
    """Share of letters read right by the best word."""
    with torch.no_grad():
        read = model.infer(image=images, lengths=lengths).map()["y"]
    cells = labels >= 0
    return float((read[cells] == labels[cells]).double().mean())


def _train(
    model: EnergyModel,
    images: Tensor,
    labels: Tensor,
    lengths: Tensor,
    generator: torch.Generator,
    say: Callable[[str], None],
) -> None:
    stage = model.compiled.model.choices.train[0]
    optimizer = torch.optim.Adam(model.parameters(), lr=stage["optimizer"]["lr"])
    for epoch in range(stage["epochs"]):
        total, order = 0.0, torch.randperm(len(labels), generator=generator)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            loss = model.loss(image=images[rows], lengths=lengths[rows], y=labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        say(f"  epoch {epoch + 1}: loss {total / len(order):.3f}")


def run(say: Callable[[str], None], training: int = TRAINING_WORDS, test: int = TEST_WORDS, seed: int = 0) -> float:
    """Run the demo; returns the accuracy of the trained chain."""
    compiled = compile_source(Source("demo.energy", SPEC))
    say("The spec\n")
    say("\n".join(f"  {line}" for line in SPEC.splitlines()))
    say("\nWhat energyml makes of it (energyml explain --stage plan)\n")
    say("\n".join(f"  {line}" for line in explain(compiled, "plan", {}).splitlines()[:8]))
    model = bind(compiled, seed=seed)
    letters = model.graph.label_sets["Letter"].labels or ()
    generator = torch.Generator().manual_seed(seed)
    images, labels, lengths = draw(_sample_words(training, generator), letters, generator)
    words = _sample_words(test, generator)
    test_images, test_labels, test_lengths = draw(words, letters, generator)
    say(f"\nTraining on {training} noisy words by negative log-likelihood")
    _train(model, images, labels, lengths, generator, say)
    right = accuracy(model, test_images, test_labels, test_lengths)
    model.gains["y.pair"] = 0.0
    alone = accuracy(model, test_images, test_labels, test_lengths)
    model.gains.clear()
    say(f"\nLetters read right on {test} new words: {100 * right:.1f}% (without the chain: {100 * alone:.1f}%)")
    _swap(model, words, test_images, test_lengths, say)
    return right


def _swap(model: EnergyModel, words: list[str], images: Tensor, lengths: Tensor, say: Callable[[str], None]) -> None:
    """The same model under two backends: one word changes, the answers do not."""
    short = [i for i, word in enumerate(words) if len(word) == 3][:5]
    say("\nThe same model under two backends (using='exact', using='enumerate')")
    answers = {}
    for using in ("exact", "enumerate"):
        with torch.no_grad():
            posterior = model.infer(image=images[short][:, :3], lengths=lengths[short], using=using)
            read = ["".join(word) for word in posterior.map().decode("y")]
            answers[using] = posterior.log_partition
            confidence = posterior.log_prob(y=posterior.map()["y"]).exp()
        shown = ", ".join(f"{word} ({float(p):.2f})" for word, p in zip(read, confidence, strict=True))
        say(f"  {using:<10} {shown}")
    gap = float((answers["exact"] - answers["enumerate"]).abs().max())
    say(f"  written: {', '.join(words[i] for i in short)}; largest difference in log Z: {gap:.1e}")
