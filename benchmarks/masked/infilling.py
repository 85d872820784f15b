"""Pretrained antibody models as masked networks that fill in the third CDR of a heavy chain, given the rest of it.

The chain is the input x and the residues that were cut out are the answer y, as source and target are in the thesis's
translations: the energy of y given x is the sum of the masked scores of its residues.  Both networks are named in a
spec as `python('benchmarks.masked.infilling:Sapiens', ...)`.

`sapiens` 1.0.5 is a RoBERTa in fairseq's format, of which this module reads the weights as data; AntiBERTy 0.1.3 is a
BERT of Hugging Face's kind, which `antiberty_folder` brings into today's form.  Both packages are wheels on PyPI,
opened as archives: their code is not run.
"""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import energyml as em

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
BLANK = len(RESIDUES)
CUT = 12
# Copies of a chain with one residue masked that go through a network at once.
COPIES = 120
# Answers whose scores are remembered.
REMEMBERED = 1 << 16

SPEC = """\
labels Residue = {{{residues}}}
labels Site = {{{residues}, blank}}
dim L, N
input heavy : Site[L]  # a chain with blanks
output y : Residue[N]  # what fills them, from left to right
net mlm : conditionals(Residue) = python('benchmarks.masked.infilling:{network}', path: '{path}')
masked y {{ conditionals: mlm, given: heavy, energy: {energy} }}
infer {infer}
"""


def compiled(network: str, path: Path, energy: str, infer: str = "metropolis") -> em.EnergyModel:
    """The model of a spec; its network remembers scores, so that settings should share the network's memory."""
    text = SPEC.format(residues=", ".join(RESIDUES), network=network, path=path, energy=energy, infer=infer)
    return em.compile(text, seed=0).eval()


# ------------------------------------------------------------------------------------------------------------- networks


class Infilling(nn.Module):
    """A masked network over some residues of a chain: row n masks the n-th of them alone.

    Scores of answers that were seen before are remembered: a proposal that keeps every residue, and a chain that stands
    where another one stood, cost nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[bytes, Tensor] = {}
        self.passes = 0

    def masked_scores(self, y: Tensor, given: tuple[Tensor, ...], masks: Any) -> Tensor:
        """Residues ``[B, N]`` given chains ``[B, L]`` with N blanks each to scores ``[B, N, 20]``."""
        chain, place = given[0].clamp(min=0), blanks(given[0])
        exists = masks.get("L")
        exists = torch.ones_like(chain, dtype=torch.bool) if exists is None else exists.expand(chain.shape)
        full = chain.scatter(1, place, y)
        seen = torch.cat([full.masked_fill(~exists, -1), place], 1).to(torch.int16)
        keys = [one.numpy().tobytes() for one in seen]
        if len(self.known) > REMEMBERED:
            self.known.clear()
        new = {key: row for row, key in enumerate(keys) if key not in self.known}
        rows = torch.tensor(list(new.values()), dtype=torch.long)
        for some in rows.split(max(1, COPIES // y.shape[1])) if len(rows) else ():
            scores = self._masked_one_by_one(full[some], place[some], exists[some])
            self.known.update(zip((keys[row] for row in some.tolist()), scores, strict=True))
        return torch.stack([self.known[key] for key in keys])

    def _masked_one_by_one(self, full: Tensor, place: Tensor, exists: Tensor) -> Tensor:
        count, cells = place.shape
        self.passes += count * cells
        rows = full.repeat_interleave(cells, 0)
        hidden = torch.zeros_like(rows, dtype=torch.bool).scatter(1, place.reshape(-1, 1), True)
        longest = int(exists.sum(1).max())
        found = self.residue_scores(
            rows[:, :longest],
            hidden[:, :longest],
            exists.repeat_interleave(cells, 0)[:, :longest],
            place.reshape(-1, 1),
        )
        return found.reshape(count, cells, -1)

    @torch.no_grad()
    def scores_at(self, y: Tensor, given: tuple[Tensor, Tensor], cells: Sequence[int]) -> Tensor:
        """Scores ``[B, n, 20]`` at n cells alone, of residues ``[B, N]`` given chains and which positions exist."""
        chain, exists = given
        place = blanks(chain)
        return self._masked_one_by_one(chain.scatter(1, place, y), place[:, list(cells)], exists)

    @torch.no_grad()
    def all_masked(self, chain: Tensor, place: Tensor, exists: Tensor) -> Tensor:
        """Scores ``[B, N, 20]`` with all places masked at once: what a greedy start reads."""
        hidden = torch.zeros_like(chain, dtype=torch.bool).scatter(1, place, True)
        return self.residue_scores(chain.masked_fill(hidden, 0), hidden, exists, place)

    @abstractmethod
    def residue_scores(self, chain: Tensor, hidden: Tensor, exists: Tensor, at: Tensor) -> Tensor:
        """Chains ``[B, L]`` with `hidden` residues masked to scores ``[B, n, 20]`` at the positions ``at [B, n]``."""


def blanks(chain: Tensor) -> Tensor:
    """``[B, N]``: where the blanks of chains ``[B, L]`` are; all have N of them."""
    return (chain == BLANK).nonzero()[:, 1].reshape(chain.shape[0], -1)


class Sapiens(Infilling):
    """The heavy-chain model of BioPhi Sapiens (Prihoda et al. 2022): a RoBERTa of 4 layers with 128 units.

    Args:
        path: the wheel `sapiens-1.0.5-py3-none-any.whl`.
    """

    FIRST, BEGIN, PAD, END, MASK = 4, 0, 1, 2, 24  # fairseq's dictionary: <s> <pad> </s> <unk>, residues, <mask>
    LAYERS, HEADS = 4, 8

    def __init__(self, path: str) -> None:
        super().__init__()
        with (
            zipfile.ZipFile(path) as wheel,
            wheel.open("sapiens/models/v1/checkpoint_vh.pt") as stream,
            torch.serialization.safe_globals([argparse.Namespace]),
        ):
            weights = torch.load(stream, map_location="cpu", weights_only=True)["model"]
        for name, tensor in weights.items():
            short = name.removeprefix("decoder.").removeprefix("sentence_encoder.").replace(".", "_")
            self.register_buffer(short, tensor.float(), persistent=False)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias"))

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias"))

    def residue_scores(self, chain: Tensor, hidden: Tensor, exists: Tensor, at: Tensor) -> Tensor:
        batch = chain.shape[0]
        count = exists.sum(1, keepdim=True)
        tokens = (chain + self.FIRST).masked_fill(hidden, self.MASK).masked_fill(~exists, self.PAD)
        tokens = torch.cat([tokens.new_full((batch, 1), self.BEGIN), tokens, tokens.new_full((batch, 1), self.PAD)], 1)
        tokens = tokens.scatter(1, count + 1, self.END)
        read = tokens != self.PAD
        positions = torch.where(read, read.cumsum(1) + self.PAD, self.PAD)
        x = F.embedding(tokens, self.embed_tokens_weight) + F.embedding(positions, self.embed_positions_weight)
        x = self._norm("emb_layer_norm", x)
        allowed = None if bool(read.all()) else read[:, None, None, :]
        for layer in range(self.LAYERS):
            asked = x
            if layer == self.LAYERS - 1:  # nobody reads the last layer but at the masked residues
                asked = x.gather(1, (at + 1).unsqueeze(-1).expand(-1, -1, x.shape[-1]))
            x = self._layer(f"layers_{layer}", asked, x, allowed)
        x = self._norm("lm_head_layer_norm", F.gelu(self._linear("lm_head_dense", x)))
        return self._linear("lm_head", x)[..., self.FIRST : self.FIRST + len(RESIDUES)]

    def _layer(self, name: str, asked: Tensor, x: Tensor, allowed: Tensor | None) -> Tensor:
        def heads(part: str, y: Tensor) -> Tensor:
            return self._linear(f"{name}_self_attn_{part}_proj", y).unflatten(-1, (self.HEADS, -1)).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(heads("q", asked), heads("k", x), heads("v", x), attn_mask=allowed)
        mixed = self._linear(f"{name}_self_attn_out_proj", mixed.transpose(1, 2).flatten(-2))
        y = self._norm(f"{name}_self_attn_layer_norm", asked + mixed)
        inner = F.gelu(self._linear(f"{name}_fc1", y))
        return self._norm(f"{name}_final_layer_norm", y + self._linear(f"{name}_fc2", inner))


class AntiBERTy(Infilling):
    """AntiBERTy (Ruffolo et al. 2021): a BERT of 8 layers with 512 units, through the product's own reader.

    Args:
        path: a folder that `antiberty_folder` made.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        from energyml.nets.masked_pretrained import PretrainedMasked

        self.mlm = PretrainedMasked(tuple(RESIDUES), path=path, dim="L").eval()

    def residue_scores(self, chain: Tensor, hidden: Tensor, exists: Tensor, at: Tensor) -> Tensor:
        words, batch = self.mlm.vocabulary, chain.shape[0]
        count = exists.sum(1, keepdim=True)
        ids = self.mlm.tokens[chain].masked_fill(hidden, words.mask).masked_fill(~exists, words.pad)
        ids = torch.cat([ids.new_tensor(words.before).expand(batch, -1), ids, ids.new_full((batch, 1), words.pad)], 1)
        ids = ids.scatter(1, count + 1, words.behind[0])
        read = (torch.arange(ids.shape[1]) < count + 2).long()
        logits = self.mlm.model(input_ids=ids, attention_mask=read).logits
        return logits.gather(1, (at + 1).unsqueeze(-1).expand(-1, -1, logits.shape[-1]))[..., self.mlm.tokens]


def antiberty_folder(wheel: Path, out: Path) -> Path:
    """AntiBERTy as Hugging Face's `BertForMaskedLM` reads it: its own class names its parts in another way."""
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    if (out / "config.json").exists():
        return out
    inside = "antiberty/trained_models"
    with zipfile.ZipFile(wheel) as archive:
        settings = json.loads(archive.read(f"{inside}/AntiBERTy_md_smooth/config.json"))
        with archive.open(f"{inside}/AntiBERTy_md_smooth/pytorch_model.bin") as stream:
            weights = torch.load(stream, map_location="cpu", weights_only=True)
        words = archive.read(f"{inside}/vocab.txt").decode().split()
    settings["architectures"] = ["BertForMaskedLM"]
    model = BertForMaskedLM(BertConfig(**settings))
    found = model.load_state_dict(weights, strict=False)
    lacking = [name for name in found.missing_keys if not name.startswith("cls.predictions.decoder")]
    if lacking:
        raise SystemExit(f"{wheel} has no weights for {', '.join(lacking)}")
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    (out / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    BertTokenizer(str(out / "vocab.txt"), do_lower_case=False).save_pretrained(out)
    return out


# ----------------------------------------------------------------------------------------------------------------- data

# The third CDR stands between the second cysteine and W-G-x-G (Kabat's rule, without the cysteine's two followers).
CDR3 = re.compile(r"C(?P<cdr>[A-Z]{5,35})WG[A-Z]G[A-Z]{6}")


@dataclass(frozen=True)
class Task:
    """Chains with residues cut out.

    Attributes:
        chain: ``[B, L]`` residues, 0 behind the end; the true ones where they were cut out.
        place: ``[B, N]`` which were cut out.
        lengths: ``[B]``.
    """

    chain: Tensor
    place: Tensor
    lengths: Tensor

    @property
    def exists(self) -> Tensor:
        """``[B, L]``."""
        return torch.arange(self.chain.shape[1]) < self.lengths.unsqueeze(1)

    @property
    def truth(self) -> Tensor:
        """``[B, N]``: what was cut out."""
        return self.chain.gather(1, self.place)

    def blank(self) -> Tensor:
        """``[B, L]``: the chains with blanks where residues were cut out."""
        return self.chain.scatter(1, self.place, BLANK)


def chains(path: Path) -> Iterator[str]:
    """The heavy chains of a file, one a line, of real residues only."""
    for line in path.read_text(encoding="utf-8").split():
        if set(line) <= set(RESIDUES):
            yield line


def task(path: Path, count: int, seed: int, cut: int = CUT) -> Task:
    """`count` chains, drawn by a seed, whose third CDR has exactly `cut` residues, all of which are cut out."""
    found = [(line, match.start("cdr")) for line in chains(path)
             if (match := CDR3.search(line, 80)) and len(match["cdr"]) == cut]  # fmt: skip
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(seed))[:count].tolist()
    return encoded([found[one][0] for one in order], [list(range(found[one][1], found[one][1] + cut)) for one in order])


def encoded(lines: Sequence[str], places: Sequence[Sequence[int]]) -> Task:
    """Chains as numbers."""
    lengths = torch.tensor([len(line) for line in lines])
    chain = torch.zeros(len(lines), int(lengths.max()), dtype=torch.long)
    for row, line in enumerate(lines):
        chain[row, : len(line)] = torch.tensor([RESIDUES.index(one) for one in line])
    return Task(chain, torch.tensor(places), lengths)
