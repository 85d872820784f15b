"""E05xx: binding, data and running: the tensors do not fit the declarations."""

from __future__ import annotations

from energyml.errors.kind import Kind

KINDS = (
    Kind("E0501", "missing input", "the input `{name}` was not given"),
    Kind("E0502", "unknown argument", "the model has no input or variable `{name}`"),
    Kind("E0503", "tensor of the wrong shape", "`{name}` has shape {shape}, but it is declared `{type}`: {problem}"),
    Kind("E0504", "tensor of the wrong kind", "`{name}` holds {found}, but it is declared `{type}`"),
    Kind("E0505", "label out of range", "`{name}` holds {value} in example {example}, but `{labels}` has {count} labels"),
    Kind("E0506", "labels not known yet", "the labels of `{name}` come from {source} and are not known yet",
         help="pass them: em.load(..., labels={{'{name}': [...]}})"),
    Kind("E0507", "network cannot be imported", "`{target}` cannot be imported: {problem}"),
    Kind("E0508", "bad lengths or mask", "{problem}"),
    Kind("E0509", "too many answers to enumerate", "enumerating this example needs {count} answers, and the limit is {limit}"),
    Kind("E0510", "forbidden answer", "the answer has probability zero: {problem}"),
    Kind("E0511", "network failed", "the network `{name}` failed: {problem}"),
)  # fmt: skip
