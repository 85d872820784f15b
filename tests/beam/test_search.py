"""Greedy, beam and best-first search against enumeration."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import energyml as em
from energyml.backends.beam.search import Plan, Search
from energyml.energy_model import BackendRefused
from energyml.queries import Quality
from tests.beam.models import DECODERS, FREE_TABLES, MIXED, tagger, translation
from tests.beam.test_steps import EXAMPLES, every_decoder, every_example

FULL = 3**4
ALL = "beam(width: 200)"


def same_answers(found: em.Assignment, wanted: em.Assignment) -> None:
    torch.testing.assert_close(found.score, wanted.score)
    assert torch.equal(found["y"], wanted["y"])


@every_example
def test_a_full_beam_is_exact(name: str) -> None:
    example = EXAMPLES[name]()
    with torch.no_grad():
        full, truth = example.infer(ALL), example.infer("enumerate")
        same_answers(full.map(), truth.map())
        same_answers(full.n_best(5), truth.n_best(5))
        torch.testing.assert_close(full.log_partition, truth.log_partition)


@every_example
def test_best_first_is_exact(name: str) -> None:
    example = EXAMPLES[name]()
    with torch.no_grad():
        same_answers(example.infer("best_first").map(), example.infer("enumerate").map())
        same_answers(example.infer("best_first").n_best(4), example.infer("enumerate").n_best(4))


@every_example
@pytest.mark.parametrize(
    "using", ["greedy", "beam(width: 2)", "beam(width: 4, diverse: 2)", "beam(width: 2, finished: within)"]
)
def test_narrow_beams_bound_from_below_and_say_their_scores(name: str, using: str) -> None:
    example = EXAMPLES[name]()
    with torch.no_grad():
        result = example.infer(using).ask("map")
        assert (result.value.score <= example.infer("enumerate").map().score + 1e-9).all()
        done = ~result.value.score.isneginf()
        scores = example.infer(using).problem.score(result.value.labels)
        torch.testing.assert_close(result.value.score[done], scores[done])
        assert bool(done.all()) == result.status.ok


@every_decoder
@pytest.mark.parametrize("finished", ["beside", "within"])
def test_the_sum_over_a_beam_is_a_lower_bound(decoder: str, finished: str) -> None:
    example = translation(decoder)
    with torch.no_grad():
        truth = example.infer("enumerate").log_partition
        for width in (1, 2, 4, 8):
            found = example.infer(f"beam(width: {width}, finished: {finished})").log_partition
            assert (found <= truth + 1e-9).all()


def test_greedy_takes_the_best_label_at_each_step() -> None:
    example = tagger(kind="plain")
    with torch.no_grad():
        steps = example.infer("greedy").problem.steps()
        state, previous = steps.start(), None
        for t in range(steps.size):
            scores, state = steps.advance(state, previous, t)
            previous = scores.argmax(-1)
            assert torch.equal(example.infer("greedy").map()["y"][:, t], previous)


@pytest.mark.parametrize("using", ["beam(width: 2)", "beam(width: 4, diverse: 2)", "best_first", "greedy"])
@pytest.mark.parametrize(
    "make", [lambda: tagger(more=MIXED), lambda: translation(more=FREE_TABLES), lambda: translation("transformer")]
)
def test_a_batch_is_a_loop_of_singles(make, using: str) -> None:
    example = make()
    with torch.no_grad():
        together = example.infer(using).map()
        for b in range(together.score.shape[0]):
            here = slice(b, b + 1)
            alone = {
                name: {dim: one[here] for dim, one in value.items()} if isinstance(value, dict) else value[here]
                for name, value in example.arguments.items()
            }
            single = example.model.infer(using=using, **alone).map()
            torch.testing.assert_close(single.score, together.score[here])
            assert torch.equal(single["y"], together["y"][here])


@every_decoder
@pytest.mark.parametrize("wanted", [1, 3, None])
def test_settled_examples_leave_without_a_trace(decoder: str, wanted: int | None) -> None:
    """Ending early and narrowing the batch change no answer that is wanted."""
    steps = translation(decoder).infer("beam").problem.steps()
    plain = Search(steps, Plan(3), narrows=False).run()
    early = Search(steps, Plan(3, wanted=wanted)).run()
    count = wanted or 3
    torch.testing.assert_close(early.score[:, :count], plain.score[:, :count])
    assert torch.equal(early.labels[:, :count], plain.labels[:, :count])


def test_length_penalty_ranks_complete_answers() -> None:
    example = translation("gru")
    with torch.no_grad():
        result = example.infer("beam(width: 200, length_penalty: 1)").ask("n_best", count=5)
        truth = example.infer("enumerate").n_best(15)
    lengths = (truth["y"] >= 0).sum(-1)
    wanted = (truth.score / lengths).topk(5, 1).values
    found = result.value.score / (result.value["y"] >= 0).sum(-1)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(result.statistics["ranks"][:, :5], wanted)


def test_diverse_groups_differ() -> None:
    example = tagger(kind="plain")
    with torch.no_grad():
        far = example.infer("beam(width: 4, diverse: 4, diversity: 1000)").n_best(4)
        assert all(len({int(label) for label in far["y"][b, :3, 0]}) == 3 for b in range(3))  # three labels in all
        near = example.infer("beam(width: 4, diverse: 4, diversity: 0)").n_best(4)
        assert (
            near.score[:, 1:].isneginf().all() and (near["y"][:, 1:] == -1).all()
        )  # the same answer four times is one


def test_groups_share_the_width() -> None:
    with pytest.raises(BackendRefused, match="3 groups cannot share 4 hypotheses"):
        tagger().infer("beam(width: 4, diverse: 3)")


def test_constraints_hold_inside_the_beam() -> None:
    example = tagger("lstm", "global", more="scheme y bio")
    with torch.no_grad():
        best = example.infer("beam(width: 3)").n_best(3)
    for sentence in best.decode("y"):
        for answer in sentence:
            for before, here in zip(["O", *answer], answer, strict=False):
                assert not (here == "I-x" and before == "O")


def test_a_dead_end_is_said() -> None:
    """A beam of one follows the best label to where nothing is allowed; exact search turns back."""
    text = """
    labels Tag = {A, B}
    dim T = 2
    input u : real[T, Tag]
    output y : Tag[T]
    factor f [t in T] (y[t]) = u[t]
    forbid y[0] = A and y[1] = A
    forbid y[0] = A and y[1] = B
    infer greedy
    """
    model = em.compile("\n".join(line.strip() for line in text.splitlines()))
    u = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    result = model.infer(u=u).ask("map")
    assert not result.status.ok and "raise `width`" in result.status.message
    assert result.value["y"].tolist() == [[-1, -1]]
    assert model.infer(u=u, using="best_first").map()["y"].tolist() == [[1, 1]]
    assert model.infer(u=u, using="beam(width: 2)").map()["y"].tolist() == [[1, 1]]


def test_best_first_says_when_its_budget_ends() -> None:
    example = tagger("lstm", "global", kind="plain")
    with torch.no_grad():
        result = example.infer("best_first(nodes: 2)").ask("map")
    assert not result.status.ok and "raise `nodes`" in result.status.message and not result.status.is_useless
    assert (result.value.score <= example.infer("enumerate").map().score + 1e-9).all()


@every_example
def test_costs_are_seen_by_the_beam(name: str) -> None:
    example = EXAMPLES[name]()
    shape = (*example.infer("beam").problem.steps().along.compact(example.infer("enumerate").map()["y"], 1).shape, 3)
    cost = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
    with torch.no_grad():
        for using in (ALL, "beam(width: 200, finished: within)"):
            same_answers(example.infer(using).max_with_cost(y=cost), example.infer("enumerate").max_with_cost(y=cost))


@every_example
def test_gradients_of_scores_and_sums(name: str) -> None:
    example = EXAMPLES[name]()
    parameters = list(example.model.parameters())

    def gradient(using: str) -> list[torch.Tensor | None]:
        posterior = example.infer(using)
        total = torch.where(posterior.log_partition.isneginf(), 0, posterior.log_partition).sum()
        best = posterior.map().score
        return list(torch.autograd.grad(total + best.sum(), parameters, allow_unused=True))

    for found, wanted in zip(gradient(ALL), gradient("enumerate"), strict=True):
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decoder", DECODERS)
def test_types(decoder: str, dtype: torch.dtype) -> None:
    example = translation(decoder, dtype=dtype)
    with torch.no_grad():
        for using in ("greedy", "beam", "best_first"):
            assert example.infer(using).map().score.dtype == dtype


def test_nothing_to_search() -> None:
    with torch.no_grad():
        for using in ("greedy", "beam", "best_first"):
            empty = tagger(size=0, kind="plain").infer(using).map()
            assert empty["y"].shape == (3, 0) and empty.score.tolist() == [0, 0, 0]
            for decoder in DECODERS:
                nobody = torch.zeros(0, 4, 3, dtype=torch.float64)
                assert tagger(decoder).model.infer(using=using, x=nobody).map()["y"].shape == (0, 4)
        for using in ("ancestral", "stochastic_beam"):
            assert tagger().model.infer(using=using, x=nobody).sample(2)["y"].shape == (2, 0, 4)


def test_a_search_that_ran_out_of_nodes_proves_nothing() -> None:
    example = tagger("gru", size=4, kind="plain")
    with torch.no_grad():
        short, whole = (example.infer(f"best_first(nodes: {nodes})").ask("map") for nodes in (1, 10_000))
    assert (short.quality, whole.quality) == (Quality.LOWER, Quality.EXACT)


SEQUENCE = """\
labels Tag = {A, B}
dim T
input u : real[T, 3]
output y : Tag[T]
net decoder = DECODER
sequence y { step: decoder, given: u }
"""
NOTHING = "forbid [t in T] y[t] = A\nforbid [t in T] y[t] = B\n"


@pytest.mark.parametrize("backend", ["greedy", "beam", "relaxed_beam", "ancestral"])
def test_examples_without_an_answer_are_told(backend: str) -> None:
    spec = SEQUENCE.replace("DECODER", "lstm_decoder(hidden: 4, attention: aligned)")
    query = {"count": 2} if backend == "ancestral" else {}
    for rules, fine in (("", True), (NOTHING, False)):
        posterior = em.compile(spec + rules, seed=0).infer(u=torch.zeros(2, 3, 3), using=backend)
        assert posterior.ask("sample" if query else "map", **query).status.ok == fine


class NoEmbedding(nn.Module):
    """A step network that lacks a method."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.labels = labels

    def start(self, given: object, masks: object, batch: int) -> tuple[torch.Tensor]:
        return (torch.zeros(batch, 1),)

    def step(self, state: object, embedding: torch.Tensor, t: int) -> tuple[torch.Tensor, object]:
        return torch.zeros(embedding.shape[0], 1), state

    def forward(self) -> None: ...


class OneScore(NoEmbedding):
    """One that gives one score in place of one for each label."""

    def embed(self, labels: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(labels), 1)

    def embed_soft(self, probabilities: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(probabilities), 1)


def test_step_networks_of_ones_own_are_checked() -> None:
    spec = SEQUENCE.replace("net decoder =", "net decoder : step(Tag) =")
    own = "python('tests.beam.test_search:{}', labels: Tag)"
    with pytest.raises(em.EnergyError, match="`NoEmbedding` has no `embed`"):
        em.compile(spec.replace("DECODER", own.format("NoEmbedding")))
    model = em.compile(spec.replace("DECODER", own.format("OneScore")))
    with pytest.raises(em.EnergyError, match=r"`decoder` gave scores of shape \[2, 1\], and `y` has 2 labels"):
        model.infer(u=torch.zeros(2, 3, 3), using="beam").map()


class Elman(OneScore):
    """A recurrent network whose state is a tree of tensors in a form of its author's choice."""

    def __init__(self, labels: int, form: str) -> None:
        super().__init__(labels)
        self.form = form
        self.words = nn.Embedding(labels + 1, 4)
        self.cell, self.out = nn.RNNCell(4, 5), nn.Linear(5, labels)

    def start(self, given: object, masks: object, batch: int) -> object:
        return self._packed(torch.zeros(batch, 5))

    def embed(self, labels: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.words(labels)
        return found

    def embed_soft(self, probabilities: torch.Tensor) -> torch.Tensor:
        return probabilities @ self.words.weight[: probabilities.shape[-1]]

    def step(self, state: Any, embedding: torch.Tensor, t: int) -> tuple[torch.Tensor, object]:
        hidden = {"tensor": lambda: state, "tuple": lambda: state[0], "dict": lambda: state["deep"][0]}[self.form]()
        hidden = self.cell(embedding, hidden)
        return self.out(hidden), self._packed(hidden)

    def _packed(self, hidden: torch.Tensor) -> object:
        return {"tensor": hidden, "tuple": (hidden, None), "dict": {"deep": [hidden], "steps": 3}}[self.form]


@pytest.mark.parametrize("form", ["tensor", "tuple", "dict"])
def test_states_of_ones_own_networks_are_trees_of_tensors(form: str) -> None:
    spec = SEQUENCE.replace("net decoder =", "net decoder : step(Tag) =")
    spec = spec.replace("DECODER", f"python('tests.beam.test_search:Elman', labels: Tag, form: '{form}')")
    model, given = em.compile(spec, seed=0), {"u": torch.zeros(2, 3, 3)}
    with torch.no_grad():
        truth = model.infer(**given, using="enumerate").map()
        for backend in (ALL, "best_first"):
            same_answers(model.infer(**given, using=backend).map(), truth)
        soft = model.infer(**given, using="relaxed_beam(width: 8, alpha: 1000)")
        assert torch.equal(soft.ask("soft_decode").value["y"].argmax(-1), truth["y"])


def test_an_end_label_that_data_did_not_bring_is_told() -> None:
    spec = """\
labels Word from data
dim T free <= 4
input u : real[3]
output y : Word[T]
net decoder = lstm_decoder(hidden: 4)
sequence y { step: decoder, given: u, end: '</s>' }
"""
    with pytest.raises(em.EnergyError, match=r"from data\(end: '</s>'\)"):
        em.compile(spec, labels={"Word": ["a", "b"]})
