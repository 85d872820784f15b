"""Gradient ascent and inference networks: a batch at once against a straightforward loop over examples.

    python -m benchmarks.approximate_inference.speed [--examples 1000] [--batch 500] [--repeats 3]

The model is the chain of Tu & Gimpel 2019 with the sizes of Twitter POS (25 labels, sentences of 5 to 30 words).  Both
sides make the same 50 steps of momentum from the cells' own scores and round by the likeliest label; their answers are
compared.  The loop is what one would write in a notebook: one sentence at a time, autograd, `torch.optim.SGD`; for a
network, its layers called on one sentence after another.  The bar is 20 times the examples per second.  For a network
the ratio is printed that its own multiplications would leave at the speed of large matrix products, with nothing
beside them: no batch can be faster than that with the same arithmetic on as many cores.  Nothing here runs in tests.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import energyml as em

LABELS, SHORTEST, LONGEST = 25, 5, 30
STEPS, RATE, MOMENTUM = 50, 1.0, 0.9
USING = f"relaxed(steps: {STEPS}, lr: {RATE:g}, momentum: {MOMENTUM}, start: unary, round: argmax, tol: 0)"
SPEC = f"""\
labels Tag = {{{", ".join(f"L{number}" for number in range(LABELS))}}}
dim T
input u : real[T, Tag]
output y : Tag[T]
param W : real[from: Tag, to: Tag] = normal(1)
chain y {{ unary: u, pair: W }}
"""
WORDS, HIDDEN = 5000, 100
TAGGER = f"""\
labels Word = {{{", ".join(f"w{number}" for number in range(WORDS))}}}
labels Tag = {{{", ".join(f"L{number}" for number in range(LABELS))}}}
dim T
input word : Word[T]
output y : Tag[T]
net scores = blstm(out: Tag, hidden: {HIDDEN}, embed: {HIDDEN})
param W : real[from: Tag, to: Tag] = normal(1)
chain y {{ unary: scores(word), pair: W }}
"""


def one_by_one(u: Tensor, lengths: list[int], pair: Tensor) -> list[Tensor]:
    """The labels of each sentence: eq. 1 of the paper, a sentence at a time."""
    found = []
    for scores, length in zip(u, lengths, strict=True):
        own = scores[:length]
        logits = own.clone().requires_grad_()
        optimizer = torch.optim.SGD([logits], lr=RATE, momentum=MOMENTUM)
        for _ in range(STEPS):
            optimizer.zero_grad()
            p = logits.softmax(-1)
            energy = -(p * own).sum() - ((p[:-1] @ pair) * p[1:]).sum()
            energy.backward()
            optimizer.step()
        found.append(logits.detach().argmax(-1))
    return found


def in_batches(model: em.EnergyModel, u: Tensor, lengths: Tensor, size: int, using: str) -> list[Tensor]:
    """The same by the backend."""
    found: list[Tensor] = []
    with torch.no_grad():
        for first in range(0, len(u), size):
            here = lengths[first : first + size]
            longest = int(here.max())
            answer = model.infer(u=u[first : first + size, :longest], lengths=here, using=using).map()
            found += [labels[:length] for labels, length in zip(answer["y"], here.tolist(), strict=True)]
    return found


def rate(run: Callable[[], object], count: int, repeats: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Examples per second of a clock: the median of some runs, and the spread between the fastest and the slowest."""
    taken = []
    for _ in range(repeats):
        began = clock()
        run()
        taken.append(count / (clock() - began))
    return statistics.median(taken), max(taken) - min(taken)


def product_speed(clock: Callable[[], float], size: int = 1024, runs: int = 10) -> float:
    """Multiplications per second of large matrix products."""
    one = torch.randn(size, size)
    one @ one
    return statistics.median(rate(lambda: one @ one, size**3, 1, clock)[0] for _ in range(runs))


def multiplications(net: nn.Module) -> int:
    """Those of one word: each weight of a matrix or a window is used once; embeddings of words are looked up."""
    body = net.parts[0].body  # type: ignore[index, union-attr]
    return sum(weight.numel() for weight in body.parameters() if weight.dim() > 1)


def plain_network(architecture: str, net: nn.Module) -> Callable[[Tensor], Tensor]:
    """The layers of an inference network as one would call them: the words of a sentence [T] to its labels [T]."""
    body, table = net.parts[0].body, net.parts[0].reader.tables[0].weight  # type: ignore[index, union-attr]

    def cnn(words: Tensor) -> Tensor:
        x = table[words].T.unsqueeze(0)
        return body.heads[0](torch.cat([window(x) for window in body.windows], 1).relu().squeeze(0).T)

    def blstm(words: Tensor) -> Tensor:
        return body.heads[0](both(table[words].unsqueeze(0))[0].squeeze(0))

    def seq2seq(words: Tensor) -> Tensor:
        states = both(table[words].unsqueeze(0))[0].squeeze(0)
        hidden, cell, before, found = states.new_zeros(1, HIDDEN), states.new_zeros(1, HIDDEN), body.start, []
        for state in states:
            gates = body.read(torch.cat([before, state])).unsqueeze(0) + body.recur(hidden)
            i, f, g, o = gates.chunk(4, 1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
            found.append(body.heads[0](torch.cat([hidden[0], state])))
            before = body.embeddings[0](found[-1].softmax(-1))
        return torch.stack(found)

    if architecture != "cnn":
        both = nn.LSTM(HIDDEN, HIDDEN, batch_first=True, bidirectional=True)
        ahead, back = body.stack.ahead[0].state_dict(), body.stack.back[0].state_dict()
        both.load_state_dict(ahead | {f"{name}_reverse": one for name, one in back.items()})
    return {"cnn": cnn, "blstm": blstm, "seq2seq": seq2seq}[architecture]


def networks(given: argparse.Namespace, clock: Callable[[], float]) -> None:
    """Print the rates of the three architectures and their ratios."""
    model = em.compile(TAGGER, seed=0).eval()
    words = torch.randint(WORDS, (given.examples, LONGEST))
    lengths = torch.randint(SHORTEST, LONGEST + 1, (given.examples,)).sort().values
    some = slice(0, given.examples, max(1, given.examples // 200))
    speed = product_speed(clock)
    print(f"large matrix products: {2e-9 * speed:.0f} Gflop/s")
    for architecture in ("cnn", "blstm", "seq2seq"):
        using = f"infnet({architecture}(hidden: {HIDDEN}))"
        net = model.inference_module(using)
        assert net is not None
        plain = plain_network(architecture, net)

        @torch.no_grad()
        def loop(plain: Callable[[Tensor], Tensor] = plain) -> list[Tensor]:
            pairs = zip(words[some], lengths[some].tolist(), strict=True)
            return [plain(one[:length]).argmax(-1) for one, length in pairs]

        @torch.no_grad()
        def batches(size: int, using: str = using) -> list[Tensor]:
            found: list[Tensor] = []
            for first in range(0, given.examples, size):
                here = lengths[first : first + size]
                posterior = model.infer(word=words[first : first + size, : int(here.max())], lengths=here, using=using)
                labels = posterior.ask("soft_decode").value["y"].argmax(-1)
                found += [one[:length] for one, length in zip(labels, here.tolist(), strict=True)]
            return found

        wanted = loop()  # warm-up
        peer, spread = rate(loop, len(wanted), given.repeats, clock)
        needed = multiplications(net) * float(lengths.double().mean())
        print(
            f"{architecture}, one by one: {peer:.0f} examples/s (spread {spread:.0f}); {1e-6 * needed:.1f} million "
            f"multiplications each, so that no batch is more than {speed / needed / peer:.1f} times as fast"
        )
        for size in given.batch:
            found = batches(size)  # warm-up
            own, spread = rate(partial(batches, size), given.examples, given.repeats, clock)
            same = [torch.equal(a, b) for a, b in zip(found[some], wanted, strict=True)]
            print(
                f"{architecture}, batches of {size}: {own:.0f} examples/s (spread {spread:.0f}), {own / peer:.1f} "
                f"times; {sum(same)} of {len(same)} answers equal"
            )


def main() -> None:
    """Print both rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--batch", type=int, nargs="+", default=[10, 100, 500])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="measure CPU time, for a machine that others use too")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clock = time.process_time if given.cpu else time.perf_counter
    torch.manual_seed(0)
    model = em.compile(SPEC, seed=0)
    u = torch.randn(given.examples, LONGEST, LABELS)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (given.examples,)).sort().values
    some = slice(0, given.examples, max(1, given.examples // 50))
    pair = model.get_parameter("W").detach()

    def loop() -> list[Tensor]:
        return one_by_one(u[some], lengths[some].tolist(), pair)

    wanted = loop()  # warm-up
    peer, spread = rate(loop, len(lengths[some]), given.repeats, clock)
    print(f"one by one: {peer:.0f} examples/s (spread {spread:.0f})")
    for using in (USING, USING.replace("argmax", "coordinate")):
        for size in given.batch:
            found = in_batches(model, u, lengths, size, using)  # warm-up
            run = partial(in_batches, model, u, lengths, size, using)
            own, spread = rate(run, given.examples, given.repeats, clock)
            line = f"batches of {size}, {using.partition('round: ')[2].partition(',')[0]}: {own:.0f} examples/s "
            line += f"(spread {spread:.0f}), {own / peer:.1f} times"
            if using == USING:
                same = [torch.equal(a, b) for a, b in zip(found[some], wanted, strict=True)]
                line += f"; {sum(same)} of {len(same)} answers equal"
            print(line)
    networks(given, clock)


if __name__ == "__main__":
    main()
