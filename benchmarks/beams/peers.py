"""The same decoders in `transformers`: weights are copied from ours, and `generate` searches.

A peer is a function that returns labels [B, T], the end label behind the end, and the scores [B] of the best answers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import energyml as em
from energyml.nets.attention import Attention, Block, positions
from energyml.nets.lstm_decoder import LSTMDecoder

Peer = Callable[..., tuple[Tensor, Tensor]]


def searched(theirs: Any, options: argparse.Namespace, given: Callable[[], dict[str, Any]], *, fixed: bool) -> Peer:
    """Beam search by `generate`: no length penalty; where lengths are given, no end label.

    What it is given is made anew for each call: `generate` repeats encoder outputs for each beam in place.
    """
    words = options.words

    def generate(scored: bool = False) -> tuple[Tensor, Tensor]:
        found = theirs.generate(
            **given(), num_beams=options.width, do_sample=False, max_new_tokens=options.longest, early_stopping=False,
            length_penalty=0.0, return_dict_in_generate=True, output_scores=scored, use_cache=True,
            eos_token_id=None if fixed else words - 1,
        )  # fmt: skip
        labels = found.sequences[:, 1:]
        rest = labels.new_full((labels.shape[0], options.longest - labels.shape[1]), words - 1)
        return torch.cat([labels, rest], 1), found.sequences_scores

    return generate


def transformer_peer(model: em.EnergyModel, memory: Tensor, options: argparse.Namespace, *, fixed: bool) -> Peer:
    """A Pegasus decoder, whose layers compute the same function as those of `transformer_decoder`."""
    from transformers import PegasusConfig, PegasusForConditionalGeneration
    from transformers.modeling_outputs import BaseModelOutput

    ours: Any = model.get_submodule("decoder")
    words, start = options.words, options.words  # one token more: the start symbol
    config = PegasusConfig(
        vocab_size=words + 1, d_model=options.hidden, encoder_layers=0, decoder_layers=options.layers,
        decoder_attention_heads=4, encoder_attention_heads=4, decoder_ffn_dim=4 * options.hidden,
        encoder_ffn_dim=4 * options.hidden, max_position_embeddings=options.longest + 2, activation_function="gelu",
        dropout=0.0, scale_embedding=False, tie_word_embeddings=False, pad_token_id=words - 1,
        eos_token_id=None if fixed else words - 1, decoder_start_token_id=start, forced_eos_token_id=None,
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

    def given() -> dict[str, Any]:
        return {
            "encoder_outputs": BaseModelOutput(last_hidden_state=seen),
            "attention_mask": torch.ones(seen.shape[:2]),
        }

    return searched(theirs, options, given, fixed=fixed)


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


def lstm_peer(model: em.EnergyModel, memory: Tensor, options: argparse.Namespace, *, fixed: bool) -> Peer:
    """An LSTM with dot attention as a model of `transformers`: its cache is the state of the LSTM.

    Keys of the memory are made once before the search; the library repeats them for each beam.
    """
    from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutputWithPast

    ours: Any = model.get_submodule("decoder")
    assert isinstance(ours, LSTMDecoder) and ours.attention == "dot" and ours.layers == 1
    words = options.words

    class Recurrent(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
        config_class = PretrainedConfig
        main_input_name = "input_ids"

        def __init__(self, config: PretrainedConfig) -> None:
            super().__init__(config)
            self.embedding = torch.nn.Embedding(words + 1, options.hidden)
            self.recurrence = torch.nn.LSTMCell(options.hidden, options.hidden)
            self.readout = torch.nn.Linear(2 * options.hidden, words + 1)
            self.post_init()

        @classmethod
        def _supports_default_dynamic_cache(cls) -> bool:
            return False

        def prepare_inputs_for_generation(
            self, input_ids: Tensor, past_key_values: Any = None, memory: Any = None, keys: Any = None, **more: Any
        ) -> dict[str, Any]:
            return {"input_ids": input_ids[:, -1], "past_key_values": past_key_values, "memory": memory, "keys": keys}

        def _reorder_cache(self, past: Any, beam: Tensor) -> Any:
            return tuple(one.index_select(0, beam) for one in past)

        def forward(
            self, input_ids: Tensor, past_key_values: Any = None, memory: Any = None, keys: Any = None, **more: Any
        ) -> CausalLMOutputWithPast:
            state = self.recurrence(self.embedding(input_ids), past_key_values)
            scores = torch.bmm(keys, state[0].unsqueeze(2)).squeeze(2) * options.hidden**-0.5
            read = torch.bmm(scores.softmax(1).unsqueeze(1), memory).squeeze(1)
            logits = self.readout(torch.cat([state[0], read], 1))
            return CausalLMOutputWithPast(logits=logits.unsqueeze(1), past_key_values=state)

    config = PretrainedConfig(
        vocab_size=words + 1, is_encoder_decoder=False, pad_token_id=words - 1, bos_token_id=words,
        eos_token_id=None if fixed else words - 1, num_hidden_layers=1, hidden_size=options.hidden,
    )  # fmt: skip
    theirs: Any = Recurrent(config).eval()
    with torch.no_grad():
        theirs.embedding.weight.copy_(ours.label_embedding.weight)
        for name, weight in zip(
            ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), ours.recurrence.all_weights[0], strict=True
        ):
            getattr(theirs.recurrence, name).copy_(weight)
        theirs.readout.weight.zero_()
        theirs.readout.weight[:words].copy_(ours.readout.weight)
        theirs.readout.bias.fill_(-1e9)
        theirs.readout.bias[:words] = ours.readout.bias
        assert ours.key is not None
        keys = ours.key(memory)
    start = torch.full((memory.shape[0], 1), words)
    given = {"input_ids": start, "memory": memory, "keys": keys}
    return searched(theirs, options, lambda: given, fixed=fixed)


PEERS = {"transformer": transformer_peer, "lstm": lstm_peer}
