"""E05xx: binding, data and running: the tensors do not fit the declarations.  Their pages show Python."""

from __future__ import annotations

from energyml.errors.kind import Kind
from energyml.errors.specs import chain

_IMPORTS = "import energyml as em\nimport torch\n\n"


def _python(call: str, spec: str | None = None, **compiling: str) -> str:
    """A script that compiles a spec and does something with it."""
    given = "".join(f", {key}={value}" for key, value in compiling.items())
    return f'{_IMPORTS}model = em.compile("""\n{spec or chain()}"""{given})\n{call}\n'


_X = "x=torch.zeros(1, 3, 4)"
_NET = "net f : (real[T, 4]) -> real[T, Tag] = python('torch.nn:Linear', in_features: {size}, out_features: 2)"
_FROM_DATA = chain(labels="labels Tag from data")

KINDS = (
    Kind(
        "E0501",
        "missing tensor",
        "`{name}` was not given",
        why="A model is called with every input that its terms read, and `score` also with a label for every cell of "
        "every variable, each by its declared name.",
        bad=_python("model.infer(lengths=torch.tensor([3]))"),
        good=_python(f"model.infer({_X})"),
    ),
    Kind(
        "E0502",
        "unknown argument",
        "the model has no input or variable `{name}`",
        why="Tensors are passed under the names that the spec declares.",
        bad=_python("model.infer(word=torch.zeros(1, 3, 4))"),
        good=_python(f"model.infer({_X})"),
    ),
    Kind(
        "E0503",
        "tensor of the wrong shape",
        "`{name}` has shape {shape}, but it is declared `{type}`: {problem}",
        why="A tensor has a leading batch axis and then the axes of its declaration, in the same order. Dims of the "
        "same name have the same size in every tensor of a call; shorter examples are padded, and `lengths` or "
        "`mask` say which positions exist.",
        bad=_python("model.infer(x=torch.zeros(1, 3, 5))"),
        good=_python(f"model.infer({_X})"),
    ),
    Kind(
        "E0504",
        "tensor of the wrong kind",
        "`{name}` holds {found}, but it is declared `{type}`",
        why="Real tensors hold floating-point numbers. Tensors of labels hold whole numbers, the places of the "
        "labels in their set.",
        bad=_python(f"model.score({_X}, y=torch.zeros(1, 3))"),
        good=_python(f"model.score({_X}, y=torch.zeros(1, 3, dtype=torch.long))"),
    ),
    Kind(
        "E0505",
        "label out of range",
        "`{name}` holds {value} in example {example}, but `{labels}` has {count} labels",
        why="Labels are counted from 0, in the order of their label set. Where it is allowed, -1 stands for a label "
        "that is not known.",
        bad=_python(f"model.score({_X}, y=torch.tensor([[0, 1, 2]]))"),
        good=_python(f"model.score({_X}, y=torch.tensor([[0, 1, 1]]))"),
    ),
    Kind(
        "E0506",
        "labels not known yet",
        "the labels of `{name}` come from {source} and are not known yet",
        help="pass them: em.load(..., labels={{'{name}': [...]}})",
        why="A label set that comes from data is empty until somebody has read the data: the training command, a "
        "checkpoint, or the caller, who passes the labels in order.",
        bad=_python("print(model)", _FROM_DATA),
        good=_python("print(model)", _FROM_DATA, labels="{'Tag': ['O', 'B']}"),
    ),
    Kind(
        "E0507",
        "network cannot be imported",
        "`{target}` cannot be imported: {problem}",
        why="A `python` network is imported when a model is built, not before. Its module must be importable from "
        "where Python runs, and its class must make a torch.nn.Module from the options of the spec.",
        bad=_python(
            f"model.infer({_X})", chain(net=_NET.format(size=4).replace("torch.nn:Linear", "no_such_package:Linear"))
        ),
        good=_python(f"model.infer({_X})", chain(net=_NET.format(size=4))),
    ),
    Kind(
        "E0508",
        "bad lengths or mask",
        "{problem}",
        why="`lengths` has one whole number for each example, the positions that exist; with several observed dims "
        "it is given by dim. `mask` is true where a position exists, and may have gaps anywhere.",
        bad=_python(f"model.infer({_X}, lengths=torch.tensor([7]))"),
        good=_python(f"model.infer({_X}, lengths=torch.tensor([2]))"),
    ),
    Kind(
        "E0509",
        "too many answers to enumerate",
        "enumerating this example needs {count} answers, and the limit is {limit}",
        why="Enumeration looks at every answer, and their number grows exponentially with the cells. It is meant for "
        "small examples, as a check on other backends. Raise `limit`, shorten the examples, or let the planner "
        "choose.",
        bad=_python(f"print(model.infer({_X}, using='enumerate(limit: 5)').log_partition)"),
        good=_python(f"print(model.infer({_X}, using='enumerate').log_partition)"),
    ),
    Kind(
        "E0511",
        "network failed",
        "the network `{name}` failed: {problem}",
        why="A network raised an error of its own, or gave a tensor of another shape than it is declared with. The "
        "message of the network follows; the declared type in the spec and the network's own sizes have to agree.",
        bad=_python(f"print(model.infer({_X}).log_partition)", chain(net=_NET.format(size=5))),
        good=_python(f"print(model.infer({_X}).log_partition)", chain(net=_NET.format(size=4))),
    ),
    Kind(
        "E0512",
        "not a number",
        "`{name}` holds {value} in example {example}, at {place}",
        help="clean the data; a cell that is not known is left out with `mask`",
        why="A score that is no number has no meaning, and beside one that is inf no other counts: every answer would "
        "be wrong without a word. Numbers on the host are checked before inference, those given to `expectation` for "
        "NaN; where there is no cell (behind `lengths`, in the gaps of `mask`) anything may stand. -inf is allowed: it "
        "forbids. What must be is said by `evidence`, or by -inf for everything else.",
        bad=_python(f"model.infer({_X} + float('nan'))"),
        good=_python(f"model.infer({_X})"),
    ),
    Kind(
        "E0515",
        "score is not a number",
        "the scores of `{term}` hold {value} in {where}, at {place}; they come from {origin}",
        help="look for NaN or inf in these weights and in the inputs of the network; too high a learning rate is "
        "the usual cause",
        why="A score that is NaN or +inf makes every answer wrong. The scores of a term are checked before inference: "
        "those that a network computes for each batch, parameters when they have changed. -inf is allowed: it forbids. "
        "On an accelerator the host does not wait for this check; there the status of an answer says it.",
        bad=_python(f"with torch.no_grad():\n    model.W.fill_(float('nan'))\nprint(model.infer({_X}).log_partition)"),
        good=_python(f"print(model.infer({_X}).log_partition)"),
    ),
    Kind(
        "E0516",
        "weights for other labels",
        "`{name}`: {problem}",
        why="The order of labels may come from the data, so two trainings of one spec can differ in it. A `state_dict` "
        "carries the names of the labels, dims and roles that its weights run along. Parameters are put in order by "
        "these names when they are loaded; the axes inside a network are not known, so its labels must have the order "
        "that they had in training.",
        bad=_python(
            "other = em.compile(model.compiled.source.text, labels={'Tag': ['B', 'O']})\n"
            "other.load_state_dict(model.state_dict())",
            _FROM_DATA,
            labels="{'Tag': ['O', 'B']}",
        ),
        good=_python(
            "other = em.compile(model.compiled.source.text, labels={'Tag': ['O', 'B']})\n"
            "other.load_state_dict(model.state_dict())",
            _FROM_DATA,
            labels="{'Tag': ['O', 'B']}",
        ),
    ),
    Kind(
        "E0517",
        "labels that cannot be bound",
        "the labels that are given for `{name}` cannot be used: {problem}",
        help="pass each label once, in order, as in `labels={{'{name}': ['a', 'b']}}`; labels that the spec lists "
        "need not be passed",
        why="A label's number is its place in its set, so every label stands in it once. Labels that the spec lists "
        "are not replaced from outside: another order would give weights and data another meaning.",
        bad=_python("print(model)", _FROM_DATA, labels="{'Tag': ['O', 'B', 'O']}"),
        good=_python("print(model)", _FROM_DATA, labels="{'Tag': ['O', 'B']}"),
    ),
)
