"""Step networks: the scores of the next label from the labels before it.

A step network has ``start``, ``embed``, ``embed_soft`` and ``step``. The state starts without any label, the first
input is the embedding of the start symbol (whose index is the number of labels), and step t scores position t:

    state = network.start(given, masks, batch)
    scores, state = network.step(state, network.embed(start_symbols), 0)
    scores, state = network.step(state, network.embed(y[:, 0]), 1)

``forced`` is all steps at once for labels that are known, for less where nothing has to be done step by step.

A state is a named tuple of tensors with a leading batch axis.  The fields in ``varying`` change from step to step.  The
fields in ``by_row`` have a row for each hypothesis, which a beam may gather, repeat or blend; the others have one row
for all hypotheses of an example.  With n hypotheses of each of B examples, embeddings and the fields in ``by_row`` have
B * n rows, those of an example standing together, and the other fields B.  A network without ``by_row`` gets B * n rows
of everything.
"""

from energyml.nets.lstm_decoder import LSTMDecoder, LSTMState
from energyml.nets.transformer_decoder import TransformerDecoder, TransformerState

__all__ = ["LSTMDecoder", "LSTMState", "TransformerDecoder", "TransformerState"]
