"""E04xx: infer, decode, train and data; options; what the planner refuses."""

from __future__ import annotations

from energyml.errors.kind import Kind
from energyml.errors.specs import chain, factors

KINDS = (
    Kind(
        "E0401",
        "unknown choice",
        "unknown {kind} `{name}`",
        why="Networks, backends, objectives, decoders, readers and what they take are chosen by name from lists that "
        "docs/language.md prints. Backends may also come from other packages, once those are installed.",
        bad=chain(infer="infer viterbi"),
        good=chain(infer="infer exact", decode="decode map"),
    ),
    Kind(
        "E0402",
        "unknown option",
        "`{card}` has no option `{option}`",
        why="Options are checked against the list of the thing that they belong to, in the file, on the command line "
        "and in Python alike. The options of a network stand where it is declared, not where it is called.",
        bad=chain(net="net f = mlp(out: Tag, hiden: 20)"),
        good=chain(net="net f = mlp(out: Tag, hidden: 20)"),
    ),
    Kind(
        "E0403",
        "bad option value",
        "`{option}` takes {expected}, found {found}",
        why="Every option has a type: a number in a range, one of a few words, a text in quotes, a label set, a "
        "range `low..high`, a schedule `first -> last`, or another choice with its own options.",
        bad=chain(train="train nll { epochs: many }"),
        good=chain(train="train nll { epochs: 20 }"),
    ),
    Kind(
        "E0404",
        "missing option",
        "`{card}` needs the {options}",
        why="This option has no default, as no value would be right for most models.",
        bad=chain(net="net f = mlp(hidden: 20)"),
        good=chain(net="net f = mlp(out: Tag, hidden: 20)"),
    ),
    Kind(
        "E0405",
        "value without a key",
        "`{card}` takes {count} without a key",
        why="Only the first options of a few choices may stand without their key, as in `n_best(5)` or "
        "`normal(0.1)`. All others are written `key: value`, so that a file can be read without looking up an order.",
        bad=chain(net="net f = mlp(Tag, 20)"),
        good=chain(net="net f = mlp(out: Tag, hidden: 20)"),
    ),
    Kind(
        "E0406",
        "option given twice",
        "`{option}` is given twice",
        help="remove one of them",
        why="It would not be clear which of the two counts.",
        bad=chain(net="net f = mlp(out: Tag, hidden: 20, hidden: 30)"),
        good=chain(net="net f = mlp(out: Tag, hidden: 20)"),
    ),
    Kind(
        "E0407",
        "choice made twice",
        "`{kind}` is chosen twice",
        help="keep one of them; the other can be given on the command line",
        why="A file makes each choice once. To try several, name them on the command line or in Python: `energyml "
        "compare FILE --infer 'exact, mean_field'`. Training in stages is one choice: `train A {...} then B {...}`.",
        bad=chain(infer="infer exact\ninfer mean_field"),
        good=chain(infer="infer exact"),
    ),
    Kind(
        "E0408",
        "stages outside train",
        "`{kind}` has one choice; only `train` has stages joined by `then`",
        help="leave the rest out",
        why="Training goes through its stages one after the other, each from the weights of the one before. "
        "Inference, decoding and data have no such order.",
        bad=chain(infer="infer mean_field then exact"),
        good=chain(infer="infer exact", train="train nll then ssvm"),
    ),
    Kind(
        "E0409",
        "backend cannot serve this model",
        "`{backend}` cannot serve this model: {reason}",
        why="A backend needs a view of every term (a table, a score of relaxed labels, a next-label score, a "
        "quadratic form) and perhaps a structure, such as a chain. `energyml explain FILE` lists every backend with "
        "what it can answer, or the reason why it cannot.",
        bad=chain(infer="infer cg(tol: 1e-6)"),
        good=chain(infer="infer exact"),
    ),
    Kind(
        "E0410",
        "objective cannot be served",
        "`{objective}` cannot train this model: {reason}",
        why="An objective asks its backend for something: `nll` for log Z, `marginal_ce` for marginals, `ssvm` for "
        "the best of score plus cost. Some look at the terms themselves, and need a view of each. Choose another "
        "objective, or another backend for this stage with `infer:`.",
        bad=chain(infer="infer mean_field", train="train ssvm { epochs: 5 }"),
        good=chain(infer="infer mean_field", train="train ssvm { epochs: 5, infer: exact }"),
    ),
    Kind(
        "E0411",
        "bad Python target",
        "a Python network is named 'package.module:Class', found '{target}'",
        help="write the module as it is imported, a colon, and the class",
        why="The part before the colon is imported when a model is built, and the part after it is the class of a "
        "torch.nn.Module. Paths of files are not importable.",
        bad=chain(net="net f : (real[T, 4]) -> real[T, Tag] = python('package/module.py')"),
        good=chain(net="net f : (real[T, 4]) -> real[T, Tag] = python('package.module:Net')"),
    ),
    Kind(
        "E0412",
        "decoder cannot be served",
        "`{decoder}` cannot decode this model: {reason}",
        why="A decoder asks the backend for an answer of one kind: `map` for the best one, `marginal_argmax` for "
        "marginals, `n_best` for several, `sample` for draws, `mode` for the best value of a field.",
        bad=factors(infer="infer mean_field", decode="decode n_best(5)"),
        good=factors(infer="infer exact", decode="decode n_best(5)"),
    ),
)
