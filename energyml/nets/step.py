"""Step networks: the scores of the next label from the labels before it.

A step network has ``start``, ``embed``, ``embed_soft`` and ``step``. The state starts without any label, the first
input is the embedding of the start symbol (whose index is the number of labels), and step t scores position t:

    state = network.start(given, masks, batch)
    scores, state = network.step(state, network.embed(start_symbols), 0)
    scores, state = network.step(state, network.embed(y[:, 0]), 1)

``forced`` is all steps at once for labels that are known, for less where nothing has to be done step by step.

A state is a tree (tuples, lists, dictionaries) of tensors with a leading batch axis, which a beam may gather, repeat or
blend; what else is in it stays as it is.  With n hypotheses of each of B examples, embeddings and all of these tensors
have B * n rows, those of an example standing together.

A named tuple may hold less: with ``by_row``, only the fields named there have a row for each hypothesis,
and the others B, one for all hypotheses of an example.  The fields in ``varying`` change from step to step.
"""

from energyml.nets.lstm_decoder import LSTMDecoder, LSTMState
from energyml.nets.transformer_decoder import TransformerDecoder, TransformerState

__all__ = ["LSTMDecoder", "LSTMState", "TransformerDecoder", "TransformerState"]
