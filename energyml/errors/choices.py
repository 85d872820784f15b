"""E04xx: infer, decode, train and data; options; what the planner refuses."""

from __future__ import annotations

from energyml.errors.kind import Kind

KINDS = (
    Kind("E0401", "unknown choice", "unknown {kind} `{name}`"),
    Kind("E0402", "unknown option", "`{card}` has no option `{option}`"),
    Kind("E0403", "bad option value", "`{option}` takes {expected}, found {found}"),
    Kind("E0404", "missing option", "`{card}` needs the option `{option}`"),
    Kind("E0405", "too many values without a key", "`{card}` takes {count} without a key"),
    Kind("E0406", "option given twice", "`{option}` is given twice"),
    Kind("E0407", "choice made twice", "`{kind}` is chosen twice", help="keep one of them; the other can be given on the command line"),
    Kind("E0408", "stages outside train", "`{kind}` has one choice; only `train` has stages joined by `then`"),
    Kind("E0409", "backend cannot serve this model", "`{backend}` cannot serve this model: {reason}"),
    Kind("E0410", "objective cannot be served", "`{objective}` cannot train this model: {reason}"),
    Kind("E0411", "bad Python target", "a Python network is named 'package.module:Class', found '{target}'"),
    Kind("E0412", "decoder cannot be served", "`{decoder}` cannot decode this model: {reason}"),
)  # fmt: skip
