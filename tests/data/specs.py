"""Small specs and files that the tests of data read."""

from collections.abc import Mapping

from energyml.data import Data, load_data
from energyml.diagnostics import Source

TAGGER = """\
labels Word from data(min: 2, unknown: '<unk>')
labels Tag from data
dim T
input word : Word[T]
output y : Tag[T]
net f = embedding(out: Tag)
param W : real[from: Tag, to: Tag]
chain y { unary: f(word), pair: W }
"""

CHARACTERS = """\
labels Char from data(unknown: '<unk>')
labels Word from data(unknown: '<unk>')
labels Tag from data
dim T
dim M[T]
input char : Char[T, M]
input word : Word[T]
output y : Tag[T]
net f = chars_words(out: Tag, chars: 4, char_layers: 1, words: 4, hidden: 4, layers: 1)
param W : real[from: Tag, to: Tag]
chain y { unary: f(char, word), pair: W }
"""

OCR = """\
labels Letter = 'a'..'z'
dim T
input image : real[T, 1, 16, 8]
output y : Letter[T]
net f = linear(out: Letter)
factor unary [t in T] (y[t]) = f(image)[t]
"""

TRANSLATION = """\
labels Source from data(unknown: '<unk>')
labels Target from data(unknown: '<unk>', end: '</s>')
dim S
dim T free <= 6
input source : Source[S]
output y : Target[T]
net encoder = blstm(hidden: 4, embed: 4)
net decoder = lstm_decoder(hidden: 8, embed: 4, attention: bahdanau)
sequence y { step: decoder, given: encoder(source), normalize: local, end: '</s>' }
"""

TREE = """\
labels Sentiment = {negative, neutral, positive}
dim N
dim E
input vector : real[N, 2]
input link : edge(N, N)[E]
output y : Sentiment[N]
net node_scores = linear(out: Sentiment)
param W : real[parent: Sentiment, child: Sentiment]
factor node [n in N] (y[n]) = node_scores(vector)[n]
factor arc [e = (i, j) in link] (parent: y[i], child: y[j]) = W
"""

HORSES = """\
labels Seg = {background, horse}
dim H, W
input rgb : real[3, H, W]
output y : Seg[H, W]
net f = unet(out: Seg, channels: 4)
factor site [i in H, j in W] (y[i, j]) = f(rgb)[i, j]
"""

SENTENCES = """\
the D
dog N
barks V

the D
cat N

dogs N
bark V
"""


def load(spec: str, reader: str, files: Mapping[str, str | bytes], **options: object) -> Data:
    """Read files in memory by a spec and its `data` line."""
    return load_data(Source("spec.energy", f"{spec}data {reader}\n"), root=files, **options)  # type: ignore[arg-type]


def letter_line(letter: str, after: int, word: int, fold: int, pixels: str = "0") -> str:
    """A line of letter.data; the real file has a tab at the end."""
    return "\t".join(["1", letter, str(after), str(word), "1", str(fold), *([pixels] * 128)]) + "\t\n"
