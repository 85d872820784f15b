"""Specs that the tests of the IR share: one of each family, and mixtures."""

from __future__ import annotations

from functools import cache

from energyml.diagnostics import Report, Source
from energyml.ir.build import build
from energyml.ir.graph import Graph
from energyml.model.check import check
from energyml.syntax.parser import parse

OCR = """
labels Letter = 'a'..'z'
dim T
input image : real[T, 1, 16, 8]
output y : Letter[T]
net cnn = lenet5(out: Letter, activation: sigmoid)
param W : real[from: Letter, to: Letter] = normal(0.0123456789)
param a : real[Letter]
param b : real[Letter] = 0.5
chain y { unary: 0.1 * cnn(image) - 2.5 * cnn(image), pair: W, start: a, end: b }
"""

SKIP = """
labels Tag = {O, 'B-NP', "I-NP", '$', "it's"}
labels Word from data(min: 2, unknown: '<unk>')
dim T
input word : Word[T]
output y : Tag[T]
net lstm = blstm(out: Tag, dropout: 0.25)
param W : real[from: Tag, to: Tag]
param V : real[from: Tag, to: Tag]
factor unary [t in T] (y[t]) = lstm(word)[t]
factor pair [t in T-1] (from: y[t], to: y[t+1]) = W
factor skip [t in T-2] (from: y[t+2], to: y[t]) = V
forbid [t in T-1] y[t] = O and y[t+1] ~ 'I-*'
forbid y[0] = 'I-NP'
forbid [t in T-1] y[t] != y[t+1] and y[t] = '$'
"""

BIOES = """
labels Tag = {O, 'B-PER', 'I-PER', 'E-PER', 'S-PER'}
dim T
input x : real[T, 10]
output y : Tag[T]
net score1 = mlp(out: Tag, hidden: 20)
factor unary [t in T] (y[t]) = score1(x)[t]
scheme y bioes
"""

ISING = """
labels Spin = {down, up}
dim H, W
input x : real[H, W, 3]
output y : Spin[H, W]
net u = linear(out: Spin)
param w : real
factor unary [i in H, j in W] (y[i, j]) = u(x)[i, j]
factor down [i in H-1, j in W] (y[i, j], y[i+1, j]) = potts(w)
factor right [i in H, j in W-1] (y[i, j], y[i, j+1]) = potts(2 * w)
"""

TREE = """
labels State = {a, b, c}
dim T, E
input x : real[T, 4]
input dist : real[E, 2]
input link : edge(T, T)[E]
output y : State[T]
net u = mlp(out: State)
net v = mlp(out: [head: State, tail: State])
factor unary [t in T] (y[t]) = u(x)[t]
factor link_score [e = (i, j) in link] (head: y[i], tail: y[j]) = v(dist)[e]
"""

FIELD = """
labels Seg = {background, horse}
dim H, W
input rgb : real[3, H, W]
field s : real[Seg, H, W]
output y : Seg[H, W] = argmax s over Seg
net unet1 = unet(out: Seg)
net embed = unet(out: 8, depth: 2)
param w : real
gaussian s { unary: unet1(rgb), pair: potts(embed(rgb)) + smooth(w), ridge: 1e-3, bounded: false }
"""

SPARSE = """
dim N, E
input x : real[N, 4]
input strength : real[E]
input link : edge(N, N)[E]
field s : real[N]
net u : (real[N, 4]) -> real[N] = python("pkg:Node")
gaussian s { unary: u(x), pair: sparse(link, strength) }
"""

SEQUENCE = """
labels Word from data(min: 2, most: 5000)
labels Target = {x, y, '</s>'}
dim S
dim T free <= 60
input word : Word[S]
output out : Target[T]
net enc = blstm(hidden: 50)
net decoder = lstm_decoder(attention: dot)
let h = enc(word)
sequence out { step: decoder, given: h, normalize: global, end: '</s>' }
"""

MASKED = """
labels Residue from mlm
dim T
output y : Residue[T]
net mlm = transformers("models/esm", online: false)
masked y { conditionals: mlm, energy: local }
"""

MIXTURE = """
labels Tag = {O, B, I}
labels State = {p, q}
dim T, K = 3
dim M[T]
labels Char = 'a'..'c'
input word : real[T, 8]
input chars : Char[T, M]
output y : Tag[T]
latent z : State[T]
latent mood : State
net enc = blstm(hidden: 10)
net f : (real[T, Tag]) -> real = python("my_package.nets:Tail")
net g : (Char[T, M]) -> real[T, Tag] = python("my_package.nets:Chars")
net decoder = lstm_decoder()
param W : real[from: Tag, to: Tag]
param u : real[Tag, State]
param P : real[K, State]
let h = enc(word)
net top = mlp(out: Tag)
chain y { unary: top(h) + g(chars), pair: W }
factor emit [t in T] (z[t], y[t]) = -u
factor mood_prior (mood) = P[0] / 3 + 0.1 * P[2]
factor mood_first (mood, first: y[0]) = (u - u) + u
sequence y { step: decoder, given: h, normalize: local }
score tail (y) = f(soft(y)) * 1e-7
forbid mood = p
"""

PYTHON = """
labels Tag = {O, B}
dim T
input x : real[T, 3]
output y : Tag[T]
net f : (real[T, 3]) -> real[T, Tag] = python("pkg:Class", hidden: 100, rate: 1.0, mode: 'fast', deep: true, eps: 1e-9)
net judge : (Tag[T]) -> real = python("pkg.mod:Judge")
factor unary [t in T] (y[t]) = f(x)[t]
score rule (y) = judge(hard(y))
"""

SPECS = {
    "ocr": OCR,
    "skip": SKIP,
    "bioes": BIOES,
    "ising": ISING,
    "tree": TREE,
    "field": FIELD,
    "sparse": SPARSE,
    "sequence": SEQUENCE,
    "masked": MASKED,
    "mixture": MIXTURE,
    "python": PYTHON,
}


def compiled(text: str) -> Graph:
    """The graph of a spec, which must be sound."""
    source = Source("spec", text)
    report = Report(source)
    model = check(parse(source, report), report)
    report.raise_errors()
    return build(model)


@cache
def graph(name: str) -> Graph:
    """The graph of one of the shared specs."""
    return compiled(SPECS[name])
