"""How the drafts of MTP heads fare on given text, each behind the true tokens: kept by rejection sampling, agreed upon.

On one rank, and on each of several that compute a model together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from etude.core.token_files import Slice
from etude.learn.streams import Ids
from etude.model.decoder import Decoder
from etude.model.packed_forward import Packed

Piece = Ids | Slice  # of a document: its ids, or where they lie


def ids_of(piece: Piece) -> Ids:
    return piece.read() if isinstance(piece, Slice) else piece


@torch.no_grad()
def drafts(decoder: Decoder, pieces: Sequence[Piece]) -> tuple[torch.Tensor, torch.Tensor]:
    """For each head and each place from which all heads predict a token of the same piece: kept, and agreed upon."""
    heads = decoder.config.num_nextn_predict_layers
    if not pieces:
        return torch.zeros(heads, 0), torch.zeros(heads, 0)
    flat = Packed(decoder, [ids_of(piece) for piece in pieces])
    hidden = [flat.whole(hidden_TD) for hidden_TD in flat.hidden(heads)]
    left_T = flat.put(np.repeat(flat.lengths, flat.lengths)) - flat.positions_T  # tokens to the end, this one included
    rows_E = torch.nonzero(left_T > heads)[:, 0]
    chances, agreements = [], []
    for d in range(1, heads + 1):
        kept, agreed = [], []
        for rows_R in torch.split(rows_E, flat.chunk_whole):
            drafted_RV = flat.log_softmax(decoder.logits(hidden[d][rows_R]), rows_R)
            true_RV = flat.log_softmax(decoder.logits(hidden[0][rows_R + d]), rows_R)
            kept.append(torch.minimum(drafted_RV, true_RV).exp().sum(-1))
            agreed.append((drafted_RV.argmax(-1) == true_RV.argmax(-1)).float())
        chances.append(torch.cat(kept))
        agreements.append(torch.cat(agreed))
    return torch.stack(chances), torch.stack(agreements)
