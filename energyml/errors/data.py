"""E08xx: data files: what cannot be read, what does not fit the declarations, and metrics.  Their pages show Python."""

from __future__ import annotations

from energyml.errors.kind import Kind

_TAGGER = """\
labels Word from data(unknown: '<unk>')
labels Tag = {O, B}
dim T
input word : Word[T]
output y : Tag[T]
net f = embedding(out: Tag)
factor unary [t in T] (y[t]) = f(word)[t]
"""
_CONLL = "data conll('tags.txt', columns: 'word y', validation: 1)\n"
_SENTENCES = "in O\nLondon B\n\nyes O\n\n"

_OCR = """\
labels Letter = 'a'..'z'
dim T
input image : real[T, 16, 8]
output y : Letter[T]
net f = linear(out: Letter)
factor unary [t in T] (y[t]) = f(image)[t]
"""
_PIXELS = '"0\\t" * 127'

_HORSES = """\
labels Seg = {background, horse}
dim H, W
input rgb : real[3, H, W]
output y : Seg[H, W]
net f = unet(out: Seg, channels: 4)
factor site [i in H, j in W] (y[i, j]) = f(rgb)[i, j]
data images('photos', 'masks', validation: 0)
"""

_TRANSLATION = """\
labels Source from data
labels Target from data(end: '</s>')
dim S
dim T free <= 4
input source : Source[S]
output y : Target[T]
net encoder = blstm(hidden: 4)
net decoder = lstm_decoder(hidden: 8, attention: bahdanau)
sequence y { step: decoder, given: encoder(source), normalize: local, end: '</s>' }
data pairs('train.de', 'train.en', validation: 0)
"""

_JSON = """\
labels Tag = {O, B}
dim T
input x : real[T, 2]
output y : Tag[T]
net f = linear(out: Tag)
factor unary [t in T] (y[t]) = f(x)[t]
data jsonl('tags.jsonl', validation: 0)
"""
_OBJECT = '{"x": [[0, 1], [1, 0]], "y": ["O", "B"]}\\n'


def _load(spec: str, files: str, beyond: str = "", imports: str = "") -> str:
    """A script that reads files in memory by a spec."""
    return (
        f"import energyml as em\n{imports}from energyml.data import load_data\n"
        f'from energyml.diagnostics import Source\n\nspec = Source("spec.energy", """\n{spec}""")\n'
        f"files = {{{files}}}\ndata = load_data(spec, root=files{beyond})\n"
    )


def _file(text: str, name: str = "tags.txt") -> str:
    return f'"{name}": {text!r}'.replace("'", '"') if '"' not in text else f'"{name}": {text!r}'


def _conll(text: str, line: str = _CONLL, beyond: str = "", imports: str = "") -> str:
    return _load(_TAGGER + line, _file(text), beyond, imports)


_GOOD = _conll(_SENTENCES)
_GOOD_OCR = _load(
    _OCR + "data letters('letter.data')\n",
    f'"letter.data": "".join(f"{{f}}\\ta\\t-1\\t{{f}}\\t1\\t{{f}}\\t" + {_PIXELS} + "0\\n" for f in range(10))',
)
_WITH_TEST = "data conll('tags.txt', columns: 'word y', validation: 0, test: 'test.txt', unknown: {policy})\n"


def _metric(name: str, labels: str) -> str:
    return (
        "import energyml as em\nfrom energyml.metrics import make_metric\n\n"
        f'metric = make_metric("{name}", labels=[{labels}])\n'
    )


KINDS = (
    Kind(
        "E0801",
        "data file that cannot be read",
        "`{path}` cannot be read: {problem}",
        help="paths in a `data` line start at the folder of the spec, or at the root that was given "
        "(`--root`, ENERGYML_DATA); `x` is also looked for as `x.gz`",
        why="The `data` line names files by paths that start at the spec's own folder, unless another root is given. A "
        "file `x` may also lie there compressed, as `x.gz`.",
        bad=_load(_TAGGER + _CONLL, _file(_SENTENCES, "train.txt")),
        good=_GOOD,
    ),
    Kind(
        "E0802",
        "damaged gzip file",
        "{place}: the compressed file {problem}",
        help="it may have been cut off while it was copied; fetch it again",
        why="Compressed files are recognised by their first bytes, and unpacked while they are read. This one ends or "
        "breaks in the middle, so examples would be missing without anybody noticing.",
        bad=_load(
            _TAGGER + _CONLL,
            f'"tags.txt": gzip.compress({_SENTENCES!r}.encode(), mtime=0)[:-12]',
            imports="import gzip\n",
        ),
        good=_load(
            _TAGGER + _CONLL, f'"tags.txt": gzip.compress({_SENTENCES!r}.encode(), mtime=0)', imports="import gzip\n"
        ),
    ),
    Kind(
        "E0803",
        "not UTF-8 text",
        "{place}: byte {byte} of the line, {value}, is not UTF-8 text",
        help="convert the file, for example with `iconv -f latin1 -t utf-8`",
        why="Text is read as UTF-8 everywhere, whatever the machine's language. Older corpora are often in another "
        "encoding and have to be converted once.",
        bad=_load(_TAGGER + _CONLL, "\"tags.txt\": 'Zürich B\\n\\nyes O\\n'.encode('latin1')"),
        good=_load(_TAGGER + _CONLL, "\"tags.txt\": 'Zürich B\\n\\nyes O\\n'.encode('utf-8')"),
    ),
    Kind(
        "E0804",
        "file without examples",
        "`{path}` holds no examples",
        help="is it the right file?",
        why="A file with nothing but blank lines and comments would give an empty split, and every metric on it would "
        "be meaningless.",
        bad=_conll("\n\n"),
        good=_GOOD,
    ),
    Kind(
        "E0805",
        "wrong number of columns",
        "{place}: expected {expected}, found {found}",
        help="every line has the same columns; `_` in `columns` skips one",
        why="Each line of a file of columns holds one token with all that is known about it, and all lines have the "
        "same columns. Columns are separated by tabs where a line has any, else by blanks; there are no comments, "
        "except in CoNLL-U.",
        bad=_conll("in O\nLondon\n\nyes O\n"),
        good=_GOOD,
    ),
    Kind(
        "E0806",
        "not a number",
        "{place}: expected {expected}, found `{found}`",
        help="correct the file",
        why="Pixels, folds, features and edges are numbers. NaN and infinity are none: they would reach the weights.",
        bad=_GOOD_OCR.replace('+ "0\\n" for', '+ "x\\n" for'),
        good=_GOOD_OCR,
    ),
    Kind(
        "E0807",
        "label that the label set lacks",
        "{place}: `{label}` is no label of `{labels}`",
        why="What a model learns from must have labels that it can give. In validation and test files a label that "
        "training never saw counts as wrong, and that is said; with `unknown: error` it is an error. Tokens that "
        "training never saw need a label of their own: `labels Word from data(unknown: '<unk>')`.",
        bad=_load(
            _TAGGER + _WITH_TEST.format(policy="error"),
            f"{_file(_SENTENCES)}, {_file('Rome B-LOC' + chr(10), 'test.txt')}",
        ),
        good=_load(
            _TAGGER + _WITH_TEST.format(policy="count_wrong"),
            f"{_file(_SENTENCES)}, {_file('Rome B-LOC' + chr(10), 'test.txt')}",
        ),
    ),
    Kind(
        "E0808",
        "declaration that the data does not fill",
        "the reader `{reader}` gives nothing for `{name}`; it gives {fields}",
        help="name it in the reader's options, rename the declaration, or drop it",
        why="Every declared input and output is filled from a field of the same name. Where one input and one output "
        "are left over, a reader with one of each fills them whatever they are called.",
        bad=_load(_TAGGER.replace("input word", "input pos : Word[T]\ninput word") + _CONLL, _file(_SENTENCES)),
        good=_GOOD,
    ),
    Kind(
        "E0809",
        "image that cannot be read",
        "`{path}` cannot be read as an image: {problem}",
        help="open it in an image viewer; it may be cut off, or another kind of file",
        why="Images are read with pillow, which knows JPEG, PNG and many more formats. This file is none of them, or "
        "it is damaged.",
        bad=_load(_HORSES, '"photos/a.png": b"none", "masks/a.png": b"none"'),
        good=_load(_HORSES, '"photos/a.pgm": b"P5 2 2 255 abcd", "masks/a.pgm": b"P5 2 2 255 abcd"'),
    ),
    Kind(
        "E0810",
        "image without a mask",
        "`{image}` has no mask: no image in `{folder}` is called `{stem}`",
        help="add the mask, or take the image out of the folder",
        why="An image and its mask have the same name in two folders; their endings may differ. Leaving an image out "
        "silently would change what a model is judged by.",
        bad=_load(_HORSES, '"photos/a.pgm": b"P5 2 2 255 abcd", "masks/b.pgm": b"P5 2 2 255 abcd"'),
        good=_load(_HORSES, '"photos/a.pgm": b"P5 2 2 255 abcd", "masks/a.pgm": b"P5 2 2 255 abcd"'),
    ),
    Kind(
        "E0811",
        "examples cannot be divided",
        "{problem}",
        help="change `validation`, `test`, `folds` or `fold` in the `data` line",
        why="Training, validation and test examples come from other files, from a share or a number that is held out, "
        "or from folds. None of them may be empty, and no example may be in two of them.",
        bad=_conll(_SENTENCES, "data conll('tags.txt', columns: 'word y', validation: 2)\n"),
        good=_GOOD,
    ),
    Kind(
        "E0812",
        "not a JSON object",
        "{place}: not a JSON object: {problem}",
        help='every line is one object, `{{"word": [...], "y": [...]}}`',
        why="In a file of JSON lines, every line is an object of its own, whose keys are the names that the spec "
        "declares.",
        bad=_load(_JSON, _file("[1, 2]\n", "tags.jsonl")),
        good=_load(_JSON, f"\"tags.jsonl\": '{_OBJECT}'"),
    ),
    Kind(
        "E0813",
        "files of different lengths",
        "`{shorter}` ends with line {line}, but `{longer}` goes on",
        help="the two files must be translations of each other, line by line",
        why="Parallel text is two files, and the n-th lines of both belong together. With a line missing, all pairs "
        "behind it would be wrong.",
        bad=_load(_TRANSLATION, f"{_file('ja' + chr(10), 'train.de')}, {_file('yes' + chr(10) + 'no', 'train.en')}"),
        good=_load(_TRANSLATION, '"train.de": "ja\\nnein\\n", "train.en": "yes\\nno\\n"'),
    ),
    Kind(
        "E0814",
        "key that an object lacks",
        "{place}: the object has no `{name}`",
        help="every object needs every declared input and output; `null` is a label that is not known",
        why="The keys of JSON objects are the names that the spec declares, and every example has all of them.",
        bad=_load(_JSON, '"tags.jsonl": \'{"x": [[0, 1]]}\\n\''),
        good=_load(_JSON, f"\"tags.jsonl\": '{_OBJECT}'"),
    ),
    Kind(
        "E0815",
        "column that nothing declares",
        "`columns` names `{name}`, which is no input or output",
        why="The names in `columns` are those of declared inputs and outputs, in the order of the file's columns. A "
        "column that the model does not read is called `_`.",
        bad=_conll(_SENTENCES, _CONLL.replace("word y", "words y")),
        good=_GOOD,
    ),
    Kind(
        "E0816",
        "value that does not fit its declaration",
        "{place}: `{name}` is declared `{type}`, found {found}",
        help="change the declaration or the data",
        why="A declaration says how many axes a value has and how long the fixed ones are. Values from a file must "
        "have this shape; sizes that differ between examples are dims.",
        bad=_load(_JSON, '"tags.jsonl": \'{"x": [[0, 1, 2]], "y": ["O"]}\\n\''),
        good=_load(_JSON, f"\"tags.jsonl\": '{_OBJECT}'"),
    ),
    Kind(
        "E0817",
        "sizes that disagree",
        "{place}: `{name}` has {found} along `{dim}`, but other values of the example have {expected}",
        help="all values over a dim have the same number of positions in an example",
        why="A dim has one size in each example: as many labels as words, as many rows as labels.",
        bad=_load(_JSON, '"tags.jsonl": \'{"x": [[0, 1]], "y": ["O", "B"]}\\n\''),
        good=_load(_JSON, f"\"tags.jsonl\": '{_OBJECT}'"),
    ),
    Kind(
        "E0818",
        "longer than the answer may be",
        "{place}: `{name}` has {count} labels and an end label, but `{dim}` is at most {bound}",
        help="raise the bound in the declaration of the dim; `longest` leaves long pairs out of training",
        why="A dim that is part of the answer has a bound, and the end label counts. Examples that are longer cannot "
        "be scored.",
        bad=_load(_TRANSLATION, '"train.de": "ja\\nnein\\n", "train.en": "yes\\nno no no no\\n"'),
        good=_load(_TRANSLATION, '"train.de": "ja\\nnein\\n", "train.en": "yes\\nno\\n"'),
    ),
    Kind(
        "E0819",
        "label set without labels",
        "the labels of `{name}` cannot be found: {problem}",
        help="change the options of `from data`, or pass a vocabulary",
        why="The labels of a set that comes from data are those that the training examples have often enough. A "
        "network that brings its own labels has to be asked before data can be read.",
        bad=_load(_TAGGER.replace("from data(unknown: '<unk>')", "from data(min: 10)") + _CONLL, _file(_SENTENCES)),
        good=_GOOD,
    ),
    Kind(
        "E0820",
        "spec without data",
        "the spec has no `data` line",
        help="write `data conll('train.txt', columns: 'word y')` or the like, or pass a reader",
        why="The `data` line says which reader reads which files. Without one the reader has to be given where the "
        "data is asked for.",
        bad=_load(_TAGGER, _file(_SENTENCES)),
        good=_GOOD,
    ),
    Kind(
        "E0821",
        "metric that does not fit the labels",
        "`{metric}` cannot judge these labels: {problem}",
        help="choose another metric; `accuracy` judges any labels",
        why="Metrics over spans need labels such as `O`, `B-NP` and `I-NP`; an index of one label needs that label.",
        bad=_metric("f1", '"NOUN", "VERB"'),
        good=_metric("f1", '"O", "B-NP", "I-NP"'),
    ),
)
