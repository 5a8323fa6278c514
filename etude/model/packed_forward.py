"""Whole sequences end to end in one forward: hidden states, and log-probabilities of given tokens.

What training and scoring share. Logits are made a chunk of positions at a time, so [tokens, vocabulary] never
exists whole. Knows nothing of losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from etude.core.errors import EtudeError
from etude.core.policy import UNROUTED
from etude.model.attention import Attend, ContinuingAttend, KeepingAttend, PackedAttend, Prefixes, SharingAttend
from etude.model.decoder import Decoder
from etude.model.experts import Routing
from etude.model.head import token_logprobs

CHUNK_LOGITS = {"cpu": 1 << 20, "cuda": 1 << 29}  # on a CPU a chunk should stay in the cache
CHUNK_ROWS = 256  # at least, or a huge vocabulary would make the matrix products thin


class Packed:
    """Token sequences laid end to end, each with the temperature that divides its logits.

    `experts` of a sequence [tokens, blocks, experts of a token], if known, are those its tokens are routed to again,
    where they pass its bound `plausible`. `behind` are beginnings of the sequences that another forward computed. The
    first `common` tokens of a sequence are those of the one before it, and are computed once; only on a CPU, without
    experts and MTP heads.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokens: Sequence[npt.NDArray[np.integer]],
        temperatures: Sequence[float] = (1.0,),
        experts: Sequence[npt.NDArray[np.int16] | None] = (),
        plausible: Sequence[float] = (),
        behind: Prefixes | None = None,
        common: Sequence[int] = (),
    ) -> None:
        self.decoder, self.device = decoder, decoder.lm_head.weight.device
        self.chunk = max(
            CHUNK_ROWS, CHUNK_LOGITS.get(self.device.type, CHUNK_LOGITS["cuda"]) // decoder.config.vocab_size
        )
        # whole distributions of two models, and what is made of them, exist side by side
        self.chunk_whole = max(CHUNK_ROWS, self.chunk // 4) if self.device.type == "cuda" else self.chunk
        common = common or [0] * len(tokens)
        tokens = [t[alike:] for t, alike in zip(tokens, common, strict=True)]
        self.sequences, self.lengths = tokens, [len(t) for t in tokens]  # of what is computed
        lengths = self.lengths
        before = common if behind is None else [length for _, length in behind.places]
        self.places = list[npt.NDArray[np.int64]]()  # of each sequence, where all of its tokens lie
        for alike, begin, length in zip(common, accumulate([0, *lengths]), lengths, strict=False):
            own_T = np.arange(begin, begin + length)
            self.places.append(np.concatenate((self.places[-1][:alike], own_T)) if alike else own_T)
        self.share = None if decoder.share is None or behind is not None else decoder.share(lengths, self.device)
        if behind is not None:
            self.attend: Attend = ContinuingAttend(lengths, behind, self.device)
        elif any(common):
            self.attend = SharingAttend([torch.from_numpy(each) for each in self.places], common, sum(lengths))
        else:
            self.attend = PackedAttend(lengths, self.device) if self.share is None else self.share.attend
        self.heads: Sequence[int] = ()  # MTP heads that each sequence trains, where not all train all
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}  # keys and values by layer, where they were asked for
        self.longest = max(b + length for b, length in zip(before, lengths, strict=True))
        self.tokens_T = self.put(np.concatenate(tokens).astype(np.int64))
        positions = [b + np.arange(length) for b, length in zip(before, lengths, strict=True)]
        self.positions_T = self.put(np.concatenate(positions))
        self.routing = self._replay(experts, plausible) if any(known is not None for known in experts) else None
        tempered = any(t != 1.0 for t in temperatures)  # dividing by 1 would change nothing
        tempered_T = self.put(np.repeat(np.asarray(temperatures, np.float32), lengths)) if tempered else None
        self.temperature_T = None if tempered_T is None else self.mine(tempered_T)  # of the rows of `hidden`

    def put(self, array: npt.NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        # from pinned memory, or the host would wait here for all that the GPU still has to do
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor

    def mine(self, x_T: Tensor) -> Tensor:
        """Of all tokens -> of those that this process computes."""
        return x_T if self.share is None else x_T[self.share.own_N]

    def whole(self, x_ND: Tensor) -> Tensor:
        """Of the tokens that this process computes -> of all; without a gradient where there are others."""
        return x_ND if self.share is None else self.share.whole(x_ND)

    def total(self, x: Tensor) -> Tensor:
        """Of what each process found of its tokens, the sum."""
        return x if self.share is None else self.share.total(x)

    def own(self, facts: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """The entries whose `row` this process computes; their rows become places in what `hidden` returns."""
        if self.share is None:
            return facts
        place_T = np.full(sum(self.lengths), -1)
        place_T[self.share.own_N.cpu().numpy()] = np.arange(len(self.share.own_N))
        row_E = place_T[facts["row"]]
        return {name: fact_E[row_E >= 0] for name, fact_E in (facts | {"row": row_E}).items()}

    def hidden(self, depth: int = 0, keep: bool = False) -> list[Tensor]:
        """Hidden states of the main head and of the MTP heads up to `depth`; `keep` fills `kept`.

        Of all tokens, or of those that this process computes.
        """
        keeping = KeepingAttend(self.attend)
        attend = keeping if keep else self.attend
        positions_T = self.mine(self.positions_T)
        hidden = [self.decoder(self.mine(self.tokens_T), positions_T, attend, self.longest, self.routing)]
        self.kept = keeping.kept
        for d in range(1, depth + 1):
            # A sequence's last places get its first tokens. No stream counts those places, and as attention is causal
            # they reach no earlier one; but routers count them, and a neighbour's tokens would make that count depend
            # on what lies beside it.
            ahead = [np.roll(tokens_L, -d) for tokens_L in self.sequences]
            ahead_T = self.mine(self.put(np.concatenate(ahead).astype(np.int64)))
            facts = positions_T, self.attend, self.longest, self._counted(d)
            hidden.append(self.decoder.mtp_hidden(d, hidden[-1], ahead_T, *facts))
        return hidden

    def _counted(self, depth: int) -> Routing | None:
        """For the routers of a head: sequences that do not train it do not count, or packing would change its load."""
        if all(trained >= depth for trained in self.heads):
            return None
        routing = Routing()
        trains_T = np.repeat(np.asarray(self.heads) >= depth, self.lengths)
        routing.counted_T = self.mine(self.put(trains_T))
        return routing

    def _replay(self, experts: Sequence[npt.NDArray[np.int16] | None], plausible: Sequence[float]) -> Routing:
        config = self.decoder.config
        asked_TBK = np.full(
            (sum(self.lengths), len(config.sparse_layers), config.num_experts_per_tok), UNROUTED, np.int16
        )
        start = 0
        for length, known in zip(self.lengths, experts, strict=True):
            if known is not None:
                if known.shape != (length, *asked_TBK.shape[1:]) or known.max(initial=UNROUTED) >= config.num_experts:
                    raise EtudeError(
                        f"experts of shape {known.shape} were recorded of other tokens or by another model: these are "
                        f"{length} tokens and {asked_TBK.shape[1]} blocks, {asked_TBK.shape[2]} of "
                        f"{config.num_experts} experts in each"
                    )
                asked_TBK[start : start + length] = known
            start += length
        bounds = (
            {bound for bound, known in zip(plausible, experts, strict=True) if known is not None}
            if plausible
            else {0.0}
        )
        if len(bounds) == 1:
            return Routing(self.mine(self.put(asked_TBK)), bounds.pop())
        bound_T1 = np.repeat(np.asarray(plausible, np.float32), self.lengths)[:, None]
        return Routing(self.mine(self.put(asked_TBK)), self.mine(self.put(bound_T1)))

    def log_softmax(self, logits_RV: Tensor, rows_R: Tensor) -> Tensor:
        """Of the logits that the positions `rows_R` gave, each at its temperature."""
        if self.temperature_T is not None:
            logits_RV = logits_RV / self.temperature_T[rows_R, None]
        return logits_RV.float().log_softmax(-1)

    def tokens(
        self, hidden_RD: Tensor, rows_R: Tensor, at_E: Tensor, ids_E: Tensor, entropy: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities of ids, each predicted from one of the hidden states; and, if asked, the states' entropies.

        `rows_R` are the positions that gave the hidden states; entry e asks of the one with the number `at_E[e]`.
        """
        temperature_R = None if self.temperature_T is None else self.temperature_T[rows_R]
        return token_logprobs(hidden_RD, self.decoder.lm_head.weight, temperature_R, at_E, ids_E, entropy)

    @torch.no_grad()
    def logprobs(self, hidden_TD: Tensor, rows_E: Tensor, ids_E: Tensor) -> Tensor:
        """Log-probability of each id, predicted from the hidden state of its row."""
        parts = []
        for rows_R, ids_R in zip(*(torch.split(x, self.chunk) for x in (rows_E, ids_E)), strict=True):
            at_R = torch.arange(len(rows_R), device=self.device)
            parts.append(self.tokens(hidden_TD[rows_R], rows_R, at_R, ids_R)[0])
        return torch.cat(parts)

    @torch.no_grad()
    def scores(self) -> Tensor:
        """Log-probability of every token; 0 for the first of a sequence, which nothing predicts."""
        # behind the last token of a sequence comes a first one, whose position is 0
        rows_E = torch.nonzero(self.mine(self.positions_T.roll(-1)))[:, 0]
        next_E = (rows_E if self.share is None else self.share.own_N[rows_E]) + 1
        scores_T = torch.zeros(len(self.tokens_T), device=self.device)
        scores_T[next_E] = self.logprobs(self.hidden()[0], rows_E, self.tokens_T[next_E])
        return self.total(scores_T)
