"""Families, constraints, options and choices; what is reported once, and what is not reported at all."""

import pytest

from energyml.cards import registry
from energyml.cards.options import AnyOf, Word
from energyml.diagnostics import Report, Source
from energyml.driver import check_text, read_choices
from energyml.grammar import STATEMENT_WORDS
from energyml.model.check import check, term_names
from energyml.model.declared import Gaussian, Masked, Scheme, Sequence
from energyml.syntax.parser import parse
from tests.model.models import checked, errors, model_of

# ------------------------------------------------------------------------------------------------------------ families


@pytest.mark.parametrize(
    ("statement", "codes"),
    [
        ("chain y { pair: W2 }", []),
        ("chain y { unary: f(x), pair: W2, start: u, end: u }", []),
        ("chain y { unary: u, pair: -W2 }", []),
        ("chain y { unary: f(x) }", ["E0308"]),
        ("chain y { pair: W2, pair: W2 }", ["E0406"]),
        ("chain y { pair: W2, first: u }", ["E0307"]),
        ("chain y { unary: enc(x), pair: W2, start: f(x) }", ["E0325", "E0325"]),
        ("chain g { pair: W2 }", ["E0306"]),
        ("chain mood { pair: V }", ["E0306"]),
        ("chain x { pair: W2 }", ["E0103"]),
        ("chain nobody { pair: nothing }", ["E0102", "E0102"]),
        ("sequence y { step: d }", []),
        ("sequence y { step: d, given: enc(x), normalize: global }", []),
        ("sequence y { step: f }", ["E0310"]),
        ("sequence y { step: m }", ["E0310"]),
        ("sequence y { step: d(x) }", ["E0325"]),
        ("sequence y { step: d, normalize: both }", ["E0325"]),
        ("sequence y { step: d, end: Q }", ["E0313"]),
        ("sequence y { step: d, end: 1 + 1 }", ["E0325"]),
        ("masked y { conditionals: m, energy: local, given: x }", []),
        ("masked y { conditionals: m, given: { words: x, rest: other, all: u } }", []),
        ("sequence y { step: d, given: { words: enc(x), all: u } }", []),
        ("masked y { conditionals: m, given: {} }", ["E0325"]),
        ("masked y { conditionals: m, given: { a: x, a: u } }", ["E0406"]),
        ("masked y { conditionals: m, given: { a: nothing, b: nobody } }", ["E0102", "E0102"]),
        ("sequence y { step: d, given: { words: enc(x), rest: other } }", ["E0325"]),
        ("masked y { conditionals: d }", ["E0310"]),
        ("masked g { conditionals: m }", ["E0306"]),
        ("gaussian y { unary: f(x) }", ["E0309"]),
        ("score tail (y) = top(soft(y))", []),
        ("score tail (y, z) = top(soft(y), soft(z))", []),
        ("score tail (y) = top(soft(y)) * 2 - w", []),
        ("score tail (y) = top(soft(z))", ["E0324"]),
        ("score tail (y) = top(x)", ["E0324"]),
        ("score tail (y) = f(soft(y))", ["E0314"]),
        ("score tail (y) = top(y)", ["E0219"]),
        ("score tail (y, y) = top(soft(y))", ["E0301"]),
        ("score tail (x) = top(soft(x))", ["E0103"]),
        ("factor one [t in T] (y[t]) = potts(w)", ["E0227"]),
        ("factor one [i in H-1, j in W] (g[i, j], g[i+1, j]) = potts(w)", []),
        ("factor one [t in T-1] (z[t], z[t+1]) = smooth(w)", ["E0227"]),
        ("factor one [t in T, t in T] (y[t]) = u", ["E0303"]),
    ],
)
def test_statements(statement: str, codes: list[str]) -> None:
    assert errors(statement) == codes


def test_attention_needs_something_to_attend_to() -> None:
    assert errors("net a = lstm_decoder(attention: dot)", "sequence y { step: a }") == ["E0325"]
    assert errors("net a = lstm_decoder(attention: dot)", "sequence y { step: a, given: u }") == ["E0325"]
    assert errors("net a = lstm_decoder(attention: dot)", "sequence y { step: a, given: other }") == []
    assert errors("net a = lstm_decoder(attention: aligned)", "sequence y { step: a, given: other }") == ["E0325"]
    assert errors("net a = lstm_decoder(attention: aligned)", "sequence y { step: a, given: enc(x) }") == []


def test_terms_have_names() -> None:
    model = model_of(
        "factor one [t in T] (z[t]) = v",
        "chain y { unary: f(x), pair: W2 }",
        "sequence y { step: d }",
        "masked y { conditionals: m }",
        "score tail (y) = top(soft(y))",
        "forbid y[0] = I",
    )
    assert term_names(model) == ["one", "y.unary", "y.pair", "y.sequence", "y.masked", "tail"]
    assert isinstance(model.terms[2], Sequence) and isinstance(model.terms[3], Masked)
    assert errors("chain y { pair: W2 }", "chain y { pair: R }") == ["E0302"]
    assert errors("factor one [t in T] (y[t]) = u", "score one (y) = top(soft(y))") == ["E0302"]


FIELD = """
labels Seg = {a, b}
dim H, W, N, E
input rgb : real[3, H, W]
input link : edge(N, N)[E]
input line : real[N]
field s : real[Seg, H, W]
field q : real[N]
net u = unet(out: Seg)
net e = unet(out: 4)
param w : real
"""


@pytest.mark.parametrize(
    ("pair", "codes"),
    [
        ("s { unary: u(rgb), pair: potts(e(rgb)) }", []),
        ("s { unary: u(rgb), pair: potts(e(rgb)) + smooth(w), ridge: 2 * w, bounded: false }", []),
        ("s { unary: u(rgb), pair: potts(e(rgb)) * 2 }", ["E0325"]),
        ("s { unary: u(rgb), pair: potts(w) }", ["E0227"]),
        ("s { unary: u(rgb), pair: potts(u(rgb)) }", ["E0227"]),
        ("s { unary: u(rgb), pair: w }", ["E0325"]),
        ("s { unary: e(rgb) }", ["E0325"]),
        ("s { unary: u(rgb), ridge: u(rgb) }", ["E0325"]),
        ("s { pair: smooth(w) }", ["E0308"]),
        ("q { unary: line, pair: sparse(link, w) }", []),
        ("q { unary: line, pair: sparse(w, link) }", ["E0227"]),
        ("q { unary: line, pair: sparse(w) }", ["E0227"]),
        ("s { unary: u(rgb), pair: sparse(link, w) }", ["E0227"]),
        ("q { unary: line, pair: dense(line) }", ["E0227"]),
    ],
)
def test_fields(pair: str, codes: list[str]) -> None:
    other = "gaussian q { unary: line }" if pair.startswith("s") else "gaussian s { unary: u(rgb) }"
    model, found = checked(f"{FIELD}gaussian {pair}\n{other}\n")
    assert found == codes
    assert codes or all(isinstance(term, Gaussian) for term in model.terms)


def test_a_readout_follows_from_its_field() -> None:
    readout = "output y : Seg[H, W] = argmax s over Seg\ngaussian s { unary: u(rgb) }\ngaussian q { unary: line }\n"
    assert checked(FIELD + readout)[1] == []
    assert checked(FIELD + readout + "forbid y[0, 0] = a\n")[1] == ["E0327"]
    assert checked(FIELD + readout + "net p = pooled()\nscore tail (y) = p(soft(y))\n")[1] == ["E0327"]
    assert checked(FIELD + readout.replace("Seg[H, W]", "Seg[W, H]"))[1] == ["E0223"]
    assert checked(FIELD + readout.replace("over Seg", "over H"))[1] == ["E0103"]
    assert checked(FIELD + readout.replace("output", "latent"))[1] == ["E0223"]


# --------------------------------------------------------------------------------------------------------- constraints


@pytest.mark.parametrize(
    ("statement", "codes"),
    [
        ("forbid [t in T-1] y[t] = O and y[t+1] = I", []),
        ("forbid [t in T-1] y[t] = y[t+1]", []),
        ("forbid y[0] ~ '[BI]'", []),
        ("forbid y[0] !~ '*'", []),
        ("forbid mood = p and y[0] = O", []),
        ("forbid y[0] = Q", ["E0313"]),
        ("forbid y[0] = 'o'", ["E0313"]),
        ("forbid y[0] ~ 'Q*'", ["E0317"]),
        ("forbid [t in T] y[t] = z[t]", ["E0318"]),
        ("forbid [t in T-1] y[t] ~ y[t+1]", ["E0325"]),
        ("forbid [t in T] y[t] = y[t]", ["E0301"]),
        ("forbid [t in T] y[t] = Q and y[t] = R2 and y[t] ~ 'x'", ["E0313", "E0313", "E0317"]),
        ("scheme y bio", ["E0320"]),
        ("scheme y iob", ["E0319"]),
        ("scheme g bio", ["E0306"]),
        ("scheme x bio", ["E0103"]),
    ],
)
def test_constraints(statement: str, codes: list[str]) -> None:
    assert errors(statement) == codes


def test_labels_from_data_are_checked_later() -> None:
    text = "labels Tag from data\ndim T\noutput y : Tag[T]\nparam u : real[Tag]\nfactor a [t in T] (y[t]) = u\n"
    assert checked(text + "scheme y bioes\nforbid y[0] = 'I-X'\nforbid y[0] ~ 'Q*'\n")[1] == []


def test_a_repeated_scheme_is_kept_once_in_the_graph() -> None:
    text = "labels Tag = {O, 'B-x'}\ndim T\noutput y : Tag[T]\nparam u : real[Tag]\nfactor a [t in T] (y[t]) = u\n"
    report = check_text(text + "scheme y bio\nscheme y bio\n")
    assert [one.code for one in report.found] == ["W0302"]
    model = checked(text + "scheme y bio\nscheme y bio\n")[0]
    assert sum(isinstance(term, Scheme) for term in model.terms) == 2


# ---------------------------------------------------------------------------------------------------------- whole file


def test_warnings_wait_for_errors() -> None:
    text = "labels Tag = {O}\ndim T\ninput x : real[T]\noutput y : Tag[T]\n"
    assert [one.code for one in check_text(text).ordered()] == ["W0101", "W0301"]
    assert [one.code for one in check_text(text + "param u : real[Q]\n").ordered()] == ["E0204"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "dim T\n", "labels A = {a}\nlatent z : A\n"])
def test_nothing_to_infer(text: str) -> None:
    assert [one.code for one in check_text(text).errors] == ["E0112"]


def test_a_damaged_statement_silences_what_depends_on_it() -> None:
    text = """
labels Tag = {O B}
dim T
input x : real[T, 4]
output y : Tag[T]
net f = mlp(out: Tag)
param W : real[from: Tag, to: Tag]
chain y { unary: f(x), pair W }
train nll { balance: online(scale: y.unary, against: y.pair) }
"""
    assert [one.code for one in check_text(text).ordered()] == ["E0001", "E0022"]


def test_a_missing_declaration_is_one_mistake() -> None:
    assert errors("factor a [t in T] (y[t]) = q", "factor b [t in T] (y[t]) = 2 * q") == ["E0102"]
    assert errors("input a : real[Q]", "input b : real[Q]", "factor c [q in Q] (y[q]) = u") == ["E0204"]
    assert errors("factor a (y[t], z[t]) = Z", "factor b [t in T] (y[t]) = u") == ["E0208"]


def test_a_misspelt_name_is_mended_in_every_place() -> None:
    assert errors("factor a [t in T] (y[t]) = 2 * enq(x)[t]", "let b = enq(x)") == ["E0102", "E0102"]


def test_declarations_come_in_any_order() -> None:
    text = """
chain y { unary: f(x), pair: W }
param W : real[from: Tag, to: Tag]
net f = mlp(out: Tag)
output y : Tag[T]
input x : real[T, 4]
dim T
labels Tag = {O, B}
"""
    assert not check_text(text).found


# -------------------------------------------------------------------------------------------------------------- choices


def test_stages_on_the_command_line_are_joined_as_in_a_file() -> None:
    for text in ("nll(epochs: 2) then ssvm", "nll {epochs: 2}, ssvm", "nll {epochs: 2} then ssvm {}"):
        assert [str(one) for one in read_choices("objective", text)] == ["nll(epochs: 2)", "ssvm"]


def test_options_are_read_alike_everywhere() -> None:
    (chosen,) = read_choices("backend", "mean_field(steps: 20, damping: 1/2)")
    assert str(chosen) == "mean_field(steps: 20, damping: 0.5)"
    assert chosen["schedule"] == "sequential"


def test_every_word_of_an_option_can_be_written() -> None:
    kinds = (
        "net",
        "backend",
        "objective",
        "decoder",
        "reader",
        "optimizer",
        "balance",
        "stop",
        "init",
        "cost",
        "mixing",
    )
    for kind in (*kinds, "architecture"):
        for card in registry.every(kind):  # type: ignore[arg-type]
            assert card.name not in STATEMENT_WORDS or kind == "potential", card.name
            for option in card.options:
                types = option.type.types if isinstance(option.type, AnyOf) else (option.type,)
                words = [word for one in types if isinstance(one, Word) for word in one.words]
                assert not set(words) & set(STATEMENT_WORDS), (card.name, option.name)


def test_defaults_are_values_that_the_option_takes() -> None:
    for kind in ("net", "backend", "objective", "decoder", "reader", "optimizer", "balance", "stop", "init"):
        for card in registry.every(kind):  # type: ignore[arg-type]
            for option in card.options:
                if isinstance(option.type, Word) and option.default is not None and not option.required:
                    assert option.default in option.type.words, (card.name, option.name)
                assert option.summary, (card.name, option.name)


def test_checking_never_imports_torch_or_user_code() -> None:
    # The import rules have a test of their own; this one holds a spec that names a missing package.
    report = Report(Source("spec", "labels A = {a}\noutput y : A\nnet n : (A) -> real[A] = python('no.such:Thing')\n"))
    model = check(parse(report.source, report), report)
    assert not report.errors and model.nets["n"].selection["target"] == "no.such:Thing"
