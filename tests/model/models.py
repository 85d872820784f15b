"""What the tests of the checker share: a spec of many declarations, to which each test adds what it is about."""

from energyml.diagnostics import Report, Source
from energyml.model.check import check
from energyml.model.declared import CheckedModel
from energyml.syntax.parser import parse

DECLARATIONS = """
labels Tag = {O, B, I}
labels State = {p, q}
labels Word from data
dim T, H, W, E
dim S, K = 3
dim M[T]
input x : real[T, 4]
input word : Word[T]
input gap : real[T-1, 2]
input cells : real[T-2, Tag]
input char : State[T, M]
input image : real[T, 1, 16, 8]
input picture : real[3, H, W]
input other : real[S, 4]
input link : edge(T, T)[E]
input dist : real[E, 2]
output y : Tag[T]
output g : State[H, W]
output c : State[T, M]
latent z : State[T]
latent mood : State
net f = mlp(out: Tag)
net pairs = linear(out: [from: Tag, to: Tag])
net enc = blstm(hidden: 6)
net d = lstm_decoder()
net m = masked_blstm()
net top = pooled()
param u : real[Tag]
param v : real[State]
param w : real
param W2 : real[from: Tag, to: Tag]
param R : real[to: Tag, from: Tag]
param P : real[K, Tag]
param Z : real[Tag, State]
param V : real[a: State, b: State]
"""


def checked(text: str) -> tuple[CheckedModel, list[str]]:
    """The model of a text, and the codes of its errors in the order of their places."""
    report = Report(Source("spec", text))
    model = check(parse(report.source, report), report)
    return model, [diagnostic.code for diagnostic in report.ordered() if diagnostic.severity == "error"]


def errors(*statements: str) -> list[str]:
    """The codes of the errors that some statements bring about after the declarations."""
    return checked(DECLARATIONS + "\n".join(statements) + "\n")[1]


def model_of(*statements: str) -> CheckedModel:
    """The model of some statements after the declarations, which must be sound."""
    model, found = checked(DECLARATIONS + "\n".join(statements) + "\n")
    assert not found
    return model
