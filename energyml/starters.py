"""Commented starter specs, one for each family of scores (`energyml new`)."""

from __future__ import annotations

CHAIN = """\
# A linear chain: each label depends on its input and on its neighbour.
labels Tag = {O, 'B-NP', 'I-NP'}
dim T  # observed: the length of the input

input features : real[T, 20]  # one vector for each position
output y : Tag[T]  # one label for each position

net local = mlp(out: Tag, hidden: 100)  # scores of the labels at one position
param W : real[from: Tag, to: Tag]  # scores of neighbouring labels

chain y { unary: local(features), pair: W }
scheme y bio  # I-NP may only follow B-NP or I-NP

infer exact  # or: enumerate, mean_field(steps: 10), ...
decode map
train nll { epochs: 20, optimizer: adam(lr: 1e-3) }
"""

GRID = """\
# A grid: an Ising-like model of a small image.
labels Pixel = {off, on}
dim H, W

input brightness : real[H, W, 1]
output y : Pixel[H, W]

net local = linear(out: Pixel)  # scores of the labels of one pixel
param w : real = 0.5  # how strongly neighbours agree

factor unary [i in H, j in W] (y[i, j]) = local(brightness)[i, j]
factor down [i in H-1, j in W] (y[i, j], y[i+1, j]) = potts(w)
factor right [i in H, j in W-1] (y[i, j], y[i, j+1]) = potts(w)

infer auto
decode map
"""

TREE = """\
# A graph that is known only at run time: a tree, or anything else that edges can say.
labels Role = {head, argument, modifier}
dim T, E  # nodes and edges of one example

input features : real[T, 20]
input link : edge(T, T)[E]  # two node positions for each edge
output y : Role[T]

net local = mlp(out: Role)
param V : real[parent: Role, child: Role]

factor unary [t in T] (y[t]) = local(features)[t]
factor link_pair [e = (i, j) in link] (parent: y[i], child: y[j]) = V

infer auto
decode map
"""

FIELD = """\
# A Gaussian field: a quadratic score over real values, read out as labels.
labels Seg = {background, object}
dim H, W

input rgb : real[3, H, W]
field s : real[Seg, H, W]  # one real score for each label of each pixel
output y : Seg[H, W] = argmax s over Seg

net local = unet(out: Seg)
net embed = unet(out: 16)  # pixels with similar vectors get similar labels

gaussian s { unary: local(rgb), pair: potts(embed(rgb)), ridge: 1.0 }

infer cg(tol: 1e-6)
decode mode
"""

SEQUENCE = """\
# A sequence score: each label depends on all labels before it.
labels Word from data(min: 2, unknown: '<unk>')
labels Tag = {noun, verb, other}
dim T

input word : Word[T]
output y : Tag[T]

net encoder = blstm(hidden: 100)
net decoder = lstm_decoder(hidden: 100, attention: aligned)

sequence y { step: decoder, given: encoder(word), normalize: local }

infer beam(width: 5)
decode map
train teacher_forcing { epochs: 5 }
"""

MASKED = """\
# A masked-LM energy: the score of a sequence from the scores of each position given all others.
labels Residue = {A, C, G, T}
dim N

output y : Residue[N]

net mlm = masked_blstm(hidden: 100)

masked y { conditionals: mlm, energy: raw }

infer metropolis(sweeps: 1000)
decode sample(10)
train pseudo_likelihood { infer: enumerate }
"""

GLOBAL = """\
# A structured prediction energy network: local scores and a network over the whole relaxed answer.
labels Tag = {A, B, C}
dim T

input features : real[T, 20]
output y : Tag[T]

net local = mlp(out: Tag)
net tail = pooled(hidden: 50)  # one number for the whole sequence

factor unary [t in T] (y[t]) = local(features)[t]
score whole (y) = tail(soft(y))

infer auto
decode map
"""

STARTERS: dict[str, str] = {
    "chain": CHAIN,
    "grid": GRID,
    "tree": TREE,
    "field": FIELD,
    "sequence": SEQUENCE,
    "masked": MASKED,
    "global": GLOBAL,
}
