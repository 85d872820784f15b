"""The builder: a spec as Python calls.

    import energyml as em
    b = em.Builder()
    Letter = b.labels("Letter", "abcdefghijklmnopqrstuvwxyz")
    T = b.dim("T")
    image = b.input("image", em.real[T, 1, 16, 8])
    y = b.output("y", Letter[T])
    cnn = b.net("cnn", "lenet5", out=Letter)
    W = b.param("W", em.real["from": Letter, "to": Letter])
    b.chain(y, unary=cnn(image), pair=W)
    b.infer("exact")
    model = b.compile(seed=0)

A call adds one statement to a syntax tree.  The tree is printed, and its text goes down the one road of all text:
a built model means what the same model means in a file, and diagnostics show lines that can be read.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from energyml.building.arguments import (
    binder_nodes,
    condition_nodes,
    dim_item,
    members_node,
    readout_node,
    scope_items,
    source_node,
)
from energyml.building.parts import all_parts, call, described, ident, is_number, listed, name_of, required, wrong
from energyml.building.settings import Chosen, arguments, setting
from energyml.building.tensors import (
    Binder,
    Cell,
    Condition,
    Edges,
    Expression,
    ExpressionLike,
    Index,
    Net,
    Variable,
    expression_node,
)
from energyml.building.types import Dim, Labels, Signature, Type, type_node
from energyml.cards.card import CardKind
from energyml.cards.options import CardOf, Flag, Label, OptionType, Word
from energyml.diagnostics import NOWHERE, EnergyError, Source
from energyml.driver import Compiled, compile_source
from energyml.loading import bind
from energyml.model.names import BUILT_IN_WORDS
from energyml.syntax import tree as t
from energyml.syntax.formatter import format_spec, format_statement

if TYPE_CHECKING:
    from energyml.energy_model import EnergyModel

_CARDS: dict[t.ChoiceKind, CardKind] = {
    "infer": "backend", "decode": "decoder", "train": "objective", "data": "reader",
}  # fmt: skip

ScopeItem: TypeAlias = Cell | tuple[str, Cell]


class Builder:
    """Collects the statements of a spec; every method adds one, and returns what it declares.

    A call that fails adds nothing.  Python objects of the wrong kind raise `TypeError`; names that cannot be used and
    parts of another builder raise `EnergyError`; everything else is said by `check`, as for a file.
    """

    def __init__(self) -> None:
        self._statements: list[t.Statement] = []
        self._names: dict[str, t.Statement] = {}
        self._terms: dict[str, t.Statement] = {}
        self._choices: dict[t.ChoiceKind, list[t.Choice]] = {}

    # --- names --------------------------------------------------------------------------------------------------------

    def labels(
        self,
        name: str,
        members: Iterable[str] | None = None,
        /,
        *,
        source: Literal["data"] | Net | None = None,
        **options: Any,
    ) -> Labels:
        """Declare a label set: its labels in order, or where they come from.

        Args:
            name: the set's name.
            members: the labels; a string is its characters.
            source: `"data"`, or a network that brings its own labels.
            options: of the source, such as `min=2, unknown="<unk>"`.
        """
        new = self._new(name)
        self._own(members, source)
        if (members is None) == (source is None):
            raise TypeError(f"labels `{name}`: give either the labels or their `source`")
        if options and source is None:
            raise TypeError(f"labels `{name}`: options such as `{next(iter(options))}` belong to a `source`")
        made = source_node(source, options) if members is None else members_node(members, name)
        self._declare(new, t.LabelsDecl(NOWHERE, new, made))
        return Labels(self, new)

    def dim(
        self, name: str, /, *, size: int | None = None, at_most: int | None = None, within: Dim | None = None
    ) -> Dim:
        """Declare a size: observed; or fixed, part of the answer, or one for each position of another dim.

        Args:
            name: the dim's name.
            size: its fixed size.
            at_most: the bound of a size that is found with the answer.
            within: the dim that it has a size for each position of.
        """
        new = self._new(name)
        self._own(within)
        self._declare(new, t.DimDecl(NOWHERE, (dim_item(new, size, at_most, within),)))
        return Dim(self, t.Extent(NOWHERE, new, 0), new)

    def input(self, name: str, type: Type | Labels, /) -> Expression:
        """Declare what is observed."""
        new = self._new(name)
        self._own(type)
        self._declare(new, t.InputDecl(NOWHERE, new, type_node(type, f"input `{name}`")))
        return Expression(self, name_of(new))

    def edges(self, name: str, /, *ends: Dim, over: Dim) -> Edges:
        """Declare an input of edges between the positions of two or more dims, as many as `over` counts."""
        new = self._new(name)
        self._own(ends, over)
        place = f"edges `{name}`"
        parameters = tuple(required(Dim, end, place).name for end in ends)
        axes = (t.Axis(NOWHERE, None, required(Dim, over, place).node),)
        self._declare(new, t.InputDecl(NOWHERE, new, t.Type(NOWHERE, t.Ident(NOWHERE, "edge"), parameters, axes)))
        return Edges(self, new)

    def output(self, name: str, type: Type | Labels, /, *, argmax: tuple[Variable, Labels] | None = None) -> Variable:
        """Declare what is inferred; `argmax=(s, Seg)` reads it out of a field."""
        return self._variable("output", name, type, argmax)

    def latent(self, name: str, type: Type | Labels, /) -> Variable:
        """Declare what is summed out."""
        return self._variable("latent", name, type)

    def field(self, name: str, type: Type, /) -> Variable:
        """Declare a continuous field."""
        return self._variable("field", name, type)

    def _variable(
        self, kind: t.VariableKind, name: str, type: Type | Labels, argmax: tuple[Variable, Labels] | None = None
    ) -> Variable:
        new = self._new(name)
        self._own(type, argmax)
        readout = None if argmax is None else readout_node(argmax, name)
        self._declare(new, t.VariableDecl(NOWHERE, kind, new, type_node(type, f"{kind} `{name}`"), readout))
        return Variable(self, t.Cell(NOWHERE, new, ()))

    def net(
        self, name: str, card: str, /, *arguments_: Any, type: Signature | Type | None = None, **options: Any
    ) -> Net:
        """Declare a network of the catalogue, or any other with its `type`.

        Args:
            name: the network's name.
            card: its name in the catalogue, such as `lenet5` or `python`.
            arguments_: options without a key, such as `"pkg.mod:Class"`.
            type: `em.signature(...)`, `em.step(Tag)` or `em.conditionals(Tag)`.
            options: of the network.
        """
        new = self._new(name)
        self._own(arguments_, options, type)
        if not isinstance(type, Signature | Type | None):
            raise wrong(f"the type of net `{name}`", "`em.signature(...)` or a type such as `em.step(Tag)`", type)
        placed, keyed = arguments("net", ident(card, f"the network of `{name}`").text, arguments_, options)
        node = t.NetDecl(NOWHERE, new, None if type is None else type.node, call(card, (*placed, *keyed)))
        self._declare(new, node)
        return Net(self, new)

    def param(self, name: str, type: Type, /, *, initial: float | str | Chosen | None = None) -> Expression:
        """Declare a parameter; `initial` is a number, or a way to make its first values: `em.choose("normal", 0.1)`."""
        new = self._new(name)
        self._own(type, initial)
        place = f"the initial value of `{name}`"
        if not (initial is None or is_number(initial) or isinstance(initial, str | Chosen)):
            raise wrong(place, "a number or `em.choose(...)`", initial)
        first = None if initial is None else setting(initial, CardOf("init"), place)
        self._declare(new, t.ParamDecl(NOWHERE, new, type_node(type, f"param `{name}`"), first))
        return Expression(self, name_of(new))

    def let(self, name: str, value: ExpressionLike, /) -> Expression:
        """Give a tensor a name."""
        new = self._new(name)
        self._own(value)
        self._declare(new, t.LetDecl(NOWHERE, new, expression_node(value, f"let `{name}`")))
        return Expression(self, name_of(new))

    def index(self, name: str, /) -> Index:
        """An index for factors and constraints; it adds no statement, and may serve many terms."""
        return Index(self, t.Index(NOWHERE, ident(name, "the name of an index"), 0))

    # --- terms --------------------------------------------------------------------------------------------------------

    def factor(
        self, name: str, binders: Sequence[Binder], scope: Sequence[ScopeItem], value: ExpressionLike, /
    ) -> None:
        """Add a factor: `b.factor("pair", [t.over(T - 1)], [("from", y[t]), ("to", y[t + 1])], W)`.

        Args:
            name: the term's name.
            binders: its index sets; none for a single factor.
            scope: its cells, each alone or with the role of its axis.
            value: the table.
        """
        new = self._new_term(name)
        self._own(binders, scope, value)
        place = f"factor `{name}`"
        items, table = scope_items(scope, place), expression_node(value, place)
        self._add_term(new, t.FactorStmt(NOWHERE, new, binder_nodes(binders, place), items, table))

    def chain(
        self,
        variable: Variable,
        /,
        *,
        pair: ExpressionLike,
        unary: ExpressionLike | None = None,
        start: ExpressionLike | None = None,
        end: ExpressionLike | None = None,
    ) -> None:
        """Add a chain: scores of each label, of neighbours, and of the first and last label."""
        self._family("chain", variable, {"unary": unary, "pair": pair, "start": start, "end": end})

    def gaussian(
        self,
        variable: Variable,
        /,
        *,
        unary: ExpressionLike,
        pair: Expression | None = None,
        ridge: ExpressionLike | None = None,
        bounded: bool | None = None,
    ) -> None:
        """Add a Gaussian field: a linear part, couplings such as `em.potts(embed(rgb))`, and the ridge."""
        given = {"unary": unary, "pair": pair, "ridge": ridge, "bounded": bounded}
        self._family("gaussian", variable, given, {"bounded": Flag()})

    def sequence(
        self,
        variable: Variable,
        /,
        *,
        step: Net,
        given: ExpressionLike | Mapping[str, ExpressionLike] | None = None,
        normalize: Literal["local", "global"] | None = None,
        end: str | None = None,
    ) -> None:
        """Add a sequence score by a step network; `end` is the label that ends an answer of free length."""
        words = {"normalize": Word(("local", "global")), "end": Label()}
        self._family("sequence", variable, {"step": step, "given": given, "normalize": normalize, "end": end}, words)

    def masked(
        self,
        variable: Variable,
        /,
        *,
        conditionals: Net,
        energy: Literal["raw", "local"] | None = None,
        given: ExpressionLike | Mapping[str, ExpressionLike] | None = None,
    ) -> None:
        """Add the energy of a masked language model; it may be given several tensors, by names of your choice."""
        words = {"energy": Word(("raw", "local"))}
        self._family("masked", variable, {"conditionals": conditionals, "energy": energy, "given": given}, words)

    def _family(
        self,
        kind: t.FamilyKind,
        variable: Variable,
        given: Mapping[str, object],
        words: Mapping[str, OptionType] = MappingProxyType({}),
    ) -> None:
        """Add a family; `words` are the options that are neither tensors nor networks."""
        self._own(variable, given)
        made = []
        for name, value in given.items():
            place = f"`{name}` of a {kind}"
            if value is None:
                continue
            if name in words:
                node = setting(value, words[name], place)
            elif name in ("step", "conditionals"):
                node = name_of(required(Net, value, place).name)
            elif name == "given" and isinstance(value, Mapping):
                parts = [(ident(str(key), place), expression_node(one, place)) for key, one in value.items()]
                node = t.Block(NOWHERE, tuple(t.Option(NOWHERE, key, one) for key, one in parts))
            else:
                node = expression_node(value, place)
            made.append(t.Option(NOWHERE, t.Ident(NOWHERE, name), node))
        block = t.Block(NOWHERE, tuple(made))
        self._statements.append(
            t.FamilyStmt(NOWHERE, kind, required(Variable, variable, f"a {kind}").node.variable, block)
        )

    def score(self, name: str, variables: Sequence[Variable], value: Expression, /) -> None:
        """Add a black box over whole variables: `b.score("tail", [y], f(em.soft(y)))`."""
        new = self._new_term(name)
        self._own(variables, value)
        place = f"score `{name}`"
        given = listed(variables, f"the variables of {place}", "variables")
        if not given:
            raise TypeError(f"{place}: it has no variable")
        names = tuple(required(Variable, one, place).node.variable for one in given)
        self._add_term(new, t.ScoreStmt(NOWHERE, new, names, expression_node(value, place)))

    def forbid(self, binders: Sequence[Binder], /, *conditions: Condition) -> None:
        """Forbid that all conditions hold: `b.forbid([t.over(T - 1)], y[t] == "O", y[t + 1].like("I-*"))`."""
        self._own(binders, conditions)
        sets = binder_nodes(binders, "forbid")
        self._statements.append(t.ForbidStmt(NOWHERE, sets, condition_nodes(conditions)))

    def scheme(self, variable: Variable, scheme: str, /) -> None:
        """Add the constraints of a tagging scheme, such as `bioes`."""
        self._own(variable)
        name = required(Variable, variable, "a scheme").node.variable
        self._statements.append(t.SchemeStmt(NOWHERE, name, ident(scheme, "the name of a scheme")))

    # --- choices ------------------------------------------------------------------------------------------------------

    def infer(self, name: str, /, *arguments: Any, **options: Any) -> None:
        """Choose how to infer: `b.infer("mean_field", steps=20)`."""
        self._choose("infer", name, arguments, options)

    def decode(self, name: str, /, *arguments: Any, **options: Any) -> None:
        """Choose how to predict: `b.decode("n_best", 5)`."""
        self._choose("decode", name, arguments, options)

    def train(self, name: str, /, *arguments: Any, **options: Any) -> None:
        """Choose how to train; a second call is the next stage."""
        self._choose("train", name, arguments, options)

    def data(self, name: str, /, *arguments: Any, **options: Any) -> None:
        """Choose where examples come from: `b.data("letters", "letter.data", fold=0)`."""
        self._choose("data", name, arguments, options)

    def _choose(self, kind: t.ChoiceKind, name: str, positional: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        self._own(positional, options)
        made = self._choices.get(kind, [])
        if made and kind != "train":
            before = format_statement(t.ChoiceStmt(NOWHERE, kind, tuple(made)))
            raise EnergyError(f"`{kind}` is chosen already: `{before}`")
        placed, keyed = arguments(_CARDS[kind], ident(name, f"`{kind}`").text, positional, options)
        block = t.Block(NOWHERE, keyed) if kind == "train" and keyed else None
        choice = t.Choice(NOWHERE, t.Name(NOWHERE, name), placed if block else (*placed, *keyed), block)
        self._choices[kind] = [*made, choice]

    # --- results ------------------------------------------------------------------------------------------------------

    @property
    def spec(self) -> t.Spec:
        """The syntax tree: declarations and terms in the order of the calls, then the choices."""
        choices = [t.ChoiceStmt(NOWHERE, kind, tuple(made)) for kind, made in self._choices.items()]
        return t.Spec(NOWHERE, (*self._statements, *choices))

    def text(self) -> str:
        """The spec as text, as `energyml fmt` would lay it out."""
        return format_spec(self.spec)

    def check(self) -> Compiled:
        """Check the model, or raise `SpecError` with every diagnostic; no networks are built."""
        return compile_source(Source("<builder>", self.text()))

    def compile(self, *, labels: Mapping[str, Sequence[str]] | None = None, seed: int | None = None) -> EnergyModel:
        """Check the model and build it as a torch module.

        Args:
            labels: the labels of each set that comes from data, in order.
            seed: seed of the first values of all parameters.
        """
        return bind(self.check(), labels=labels, seed=seed)

    def __repr__(self) -> str:
        return self.text().rstrip("\n")

    def _repr_html_(self) -> str:
        """The text for notebooks."""
        return f"<pre><code>{html.escape(self.text())}</code></pre>"

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def _new(self, name: str) -> t.Ident:
        """A name that nothing declared so far has."""
        made = ident(name, "a declaration")
        if name in BUILT_IN_WORDS:
            raise EnergyError(f"a declaration: `{name}` cannot be a name: it is a word of the language")
        if name in self._names:
            raise EnergyError(f"`{name}` is declared already: `{format_statement(self._names[name])}`")
        return made

    def _new_term(self, name: str) -> t.Ident:
        """A name that no factor and no score has so far."""
        made = ident(name, "a term")
        if name in self._terms:
            raise EnergyError(f"a term `{name}` exists already: `{format_statement(self._terms[name])}`")
        return made

    def _own(self, *given: object) -> None:
        """Refuse parts of another builder."""
        for part in all_parts(given):
            if part.home is not None and part.home is not self:
                raise EnergyError(f"{described(part)} belongs to another builder")

    def _declare(self, name: t.Ident, statement: t.Statement) -> None:
        self._statements.append(statement)
        self._names[name.text] = statement

    def _add_term(self, name: t.Ident, statement: t.Statement) -> None:
        self._statements.append(statement)
        self._terms[name.text] = statement
