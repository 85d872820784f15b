"""Tokens per second of beam search, beside `transformers` on the same decoder.

    python -m benchmarks.beams.speed [--budget SECONDS] [--layers 2] [--hidden 128] [--words 1000] ...

The decoder is ours (`transformer_decoder`, random weights); its peer is a Pegasus decoder, whose layers compute the
same function, with the same weights copied into it.  Both search with beam 5 over a batch of 32 and no length penalty.
Ours ends an example when no hypothesis can come before its best answer, and goes on without it; the peer goes on until
that holds for all five answers of all examples.  So the ratio depends on how early answers end, and there is a row for
each of several biases of the end label: with `none` no answer ends before the longest length, and nothing is saved.

Answers are compared before anything is timed.  At the longest length the peer returns what has not ended, without the
end label's score, where ours ends it: examples in which the peer's answer has no end are counted apart.  Tokens are
those of our best answers, end labels included.  Contestants alternate in one process with one thread; ratios are of
pairs.  Without `transformers` ours is timed alone.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import energyml as em
from benchmarks.exact.timing import median_seconds, pairs
from energyml.nets.attention import Attention, Block, positions

NEVER = -1e4
SPEC = """
labels Word from data(end: '</s>')
dim S
dim T free <= {longest}
input memory : real[S, {hidden}]
output y : Word[T]
net decoder = transformer_decoder(hidden: {hidden}, heads: 4, layers: {layers})
sequence y {{ step: decoder, given: memory, normalize: local, end: '</s>' }}
infer beam(width: {width})
"""


def made(options: argparse.Namespace) -> tuple[em.EnergyModel, Tensor]:
    """A model with random weights that ends its answers at different lengths, and a batch."""
    words = [f"w{number}" for number in range(options.words - 1)]
    model = em.compile(SPEC.format(**vars(options)), labels={"Word": [*words, "</s>"]}, seed=options.seed).eval()
    decoder: Any = model.get_submodule("decoder")
    with torch.no_grad():
        decoder.readout.weight.mul_(options.sharpness)
        decoder.readout.bias[-1] = options.end
    generator = torch.Generator().manual_seed(options.seed)
    return model, torch.randn(options.batch, options.source, options.hidden, generator=generator)


Peer = Callable[..., tuple[Tensor, Tensor]]


def peer_of(model: em.EnergyModel, memory: Tensor, options: argparse.Namespace) -> Peer:
    """The same decoder and search in `transformers`: labels [B, T], the end label behind the end, and scores [B]."""
    from transformers import PegasusConfig, PegasusForConditionalGeneration
    from transformers.modeling_outputs import BaseModelOutput

    ours: Any = model.get_submodule("decoder")
    words, start = options.words, options.words  # one token more: the start symbol
    config = PegasusConfig(
        vocab_size=words + 1, d_model=options.hidden, encoder_layers=0, decoder_layers=options.layers,
        decoder_attention_heads=4, encoder_attention_heads=4, decoder_ffn_dim=4 * options.hidden,
        encoder_ffn_dim=4 * options.hidden, max_position_embeddings=options.longest + 2, activation_function="gelu",
        dropout=0.0, scale_embedding=False, tie_word_embeddings=False, pad_token_id=words - 1, eos_token_id=words - 1,
        decoder_start_token_id=start, forced_eos_token_id=None,
    )  # fmt: skip
    theirs: Any = PegasusForConditionalGeneration(config).eval()
    with torch.no_grad():
        decoder = theirs.model.decoder
        decoder.embed_tokens.weight.copy_(ours.label_embedding.weight)
        places = positions(torch.arange(options.longest + 2), options.hidden, torch.float32)
        decoder.embed_positions.weight.copy_(places)
        theirs.lm_head.weight.zero_()
        theirs.lm_head.weight[:words].copy_(ours.readout.weight)
        theirs.final_logits_bias.fill_(-1e9)
        theirs.final_logits_bias[0, :words] = ours.readout.bias
        _copy(ours.norm, decoder.layer_norm)
        for layer, block in zip(decoder.layers, ours.blocks, strict=True):
            _copy_block(block, layer)
        seen = ours.memory(memory)
        seen = seen + positions(torch.arange(memory.shape[1]).expand(memory.shape[:2]), options.hidden, seen.dtype)

    def generate(scored: bool = False) -> tuple[Tensor, Tensor]:
        found = theirs.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=seen), attention_mask=torch.ones(seen.shape[:2]),
            num_beams=options.width, do_sample=False, max_new_tokens=options.longest, early_stopping=False,
            length_penalty=0.0, return_dict_in_generate=True, output_scores=scored, use_cache=True,
        )  # fmt: skip
        labels = found.sequences[:, 1:]
        rest = labels.new_full((labels.shape[0], options.longest - labels.shape[1]), words - 1)
        return torch.cat([labels, rest], 1), found.sequences_scores

    return generate


def _copy(source: Any, target: Any) -> None:
    target.weight.copy_(source.weight)
    target.bias.copy_(source.bias)


def _copy_attention(source: Attention, target: Any) -> None:
    for ours, theirs in ((source.query, target.q_proj), (source.key, target.k_proj),
                         (source.value, target.v_proj), (source.out, target.out_proj)):  # fmt: skip
        _copy(ours, theirs)


def _copy_block(source: Block, target: Any) -> None:
    assert source.cross is not None and source.cross_norm is not None
    _copy(source.norm, target.self_attn_layer_norm)
    _copy_attention(source.attention, target.self_attn)
    _copy(source.cross_norm, target.encoder_attn_layer_norm)
    _copy_attention(source.cross, target.encoder_attn)
    _copy(source.wide[0], target.final_layer_norm)
    _copy(source.wide[1], target.fc1)
    _copy(source.wide[3], target.fc2)


def run(options: argparse.Namespace) -> None:
    """A row for each bias of the end label."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print(f"{options}\ntorch {torch.__version__}")
    for end in options.ends:
        options.end = NEVER if end == "none" else float(end)
        print(f"end label's bias {end}: {measured(options)}", flush=True)


def measured(options: argparse.Namespace) -> str:
    """Compare the answers, then time both."""
    model, memory = made(options)

    def ours() -> em.Assignment:
        return model.infer(memory=memory).map()

    answer = ours()
    labels = answer["y"]
    lengths = (labels >= 0).sum(1)
    tokens = int(lengths.sum())
    sizes = f"lengths {int(lengths.min())} to {int(lengths.max())}, {tokens} tokens"
    if importlib.util.find_spec("transformers") is None:
        alone = median_seconds(ours, options.budget)
        return f"{sizes}; energyml {tokens / alone:.0f} tokens/s; no `transformers` here to compare with"
    peer = peer_of(model, memory, options)
    theirs, scores = peer(scored=True)
    ended = (theirs == options.words - 1).any(1)
    same = (labels.masked_fill(labels < 0, options.words - 1) == theirs).all(1) & ended
    apart = float((answer.score - scores)[same].abs().max()) if bool(same.any()) else 0.0
    ratio = pairs(ours, peer, options.budget)
    return (
        f"{sizes}; same answer in {int(same.sum())} of the {int(ended.sum())} that the peer ends (scores within "
        f"{apart:.0e}); energyml {tokens / ratio.ours:.0f}, transformers {tokens / ratio.peer:.0f} tokens/s; "
        f"ratio {ratio.middle:.2f} ({ratio.low:.2f} to {ratio.high:.2f}, {ratio.pairs} pairs)"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"width": 5, "batch": 32, "longest": 40, "source": 20, "hidden": 128, "layers": 2, "words": 1000, "seed": 1}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sharpness", type=float, default=8.0, help="factor of the readout's weights")
    parser.add_argument("--ends", nargs="+", default=["none", "3", "5", "7"], help="biases of the end label")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of timing for each row")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
