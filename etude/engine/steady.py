"""A step of requests that all decode, with drafts, on tensors that stay where they are: a GPU replays it as one graph.

Everything from the tokens to the next drafts happens on the device, without asking the host: which drafts are kept
decides which of the computed states the heads draft from. Also the rule of acceptance itself, which other steps share.

Shapes: R requests, K drafts of each, J = K + 1 tokens of each in the step, V vocabulary, S places of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.engine.sampler import pick
from etude.model.decoder import Decoder

WARM = 3  # times that a step is computed before it is captured


def verify(
    p_RJV: Tensor,
    q_RKV: Tensor,
    drafts_RK: Tensor,
    drafted_RK: Tensor,
    accepting_RK: Tensor,
    drawing_RJ: Tensor,
) -> tuple[Tensor, Tensor]:
    """How many of its K drafts each request keeps, and the token behind them. J = K + 1.

    `p` are the model's distributions at the drafts and behind the last, `q` those that the drafts were drawn from.
    Entries of `drafts` beyond a request's own are not `drafted`. Uniform numbers: one to accept each draft, one to
    draw the token at each place.
    """
    many = drafts_RK.shape[1]
    q_RKV = q_RKV * drafted_RK[:, :, None]  # where nothing was drafted, all of p is what p has more
    at_RK1 = drafts_RK[:, :, None]
    p_RK, q_RK = p_RJV[:, :many].gather(-1, at_RK1)[..., 0], q_RKV.gather(-1, at_RK1)[..., 0]
    kept_RK = drafted_RK & (accepting_RK * q_RK < p_RK)
    kept_R = kept_RK.long().cumprod(1).sum(1)
    rows_R = torch.arange(len(kept_R), device=kept_R.device)
    p_RV = p_RJV[rows_R, kept_R]
    behind_RV = torch.nn.functional.pad(q_RKV, (0, 0, 0, 1))[rows_R, kept_R]
    rest_RV = (p_RV - behind_RV).clamp_(min=0)
    # a rejection means that p has less than q somewhere, so more elsewhere; rounding may have eaten it
    rest_RV = torch.where(rest_RV.sum(-1, keepdim=True) > 0, rest_RV, p_RV)
    token_R1, _ = pick(rest_RV, drawing_RJ[rows_R, kept_R][:, None])
    return kept_R, token_R1[:, 0]


class RowsAttend:
    """J new tokens of each of R rows, over all places of the rows up to each token itself."""

    latent = True

    def __init__(self, cache_LPRKSD: Tensor, rows_R: Tensor, positions_RJ: Tensor, places: int) -> None:
        self.cache, self.places = cache_LPRKSD, places
        self.rows_R, self.positions_RJ = rows_R, positions_RJ
        seen = torch.arange(places, device=rows_R.device)
        self.seen_RJS = seen <= positions_RJ[:, :, None]

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        count, new = self.positions_RJ.shape
        planes = self.cache[layer]
        at = (self.rows_R[:, None], slice(None), self.positions_RJ)
        planes[0][at] = k_TKD.view(count, new, *k_TKD.shape[1:])
        keys_RKSD = planes[0][:, :, : self.places][self.rows_R]
        if len(planes) == 1:
            values_RKSD = keys_RKSD[..., : v_TKD.shape[-1]]
        else:
            planes[1][at] = v_TKD.view(count, new, *v_TKD.shape[1:])
            values_RKSD = planes[1][:, :, : self.places][self.rows_R]
        # the query heads that share a key head stand as so many queries, so each key is read once
        heads, key_heads = q_THD.shape[1], k_TKD.shape[1]
        q = q_THD.view(count, new, key_heads, heads // key_heads, -1).permute(0, 2, 3, 1, 4).flatten(2, 3)
        mask = self.seen_RJS[:, None].repeat(1, 1, heads // key_heads, 1)
        out = F.scaled_dot_product_attention(q, keys_RKSD, values_RKSD, attn_mask=mask)
        out = out.view(count, key_heads, heads // key_heads, new, -1).permute(0, 3, 1, 2, 4)
        return out.reshape(count * new, heads, -1)


@dataclass(frozen=True)
class RowView:
    """Dense rows: any device, any model."""

    decoder: Decoder
    attend: RowsAttend
    positions_T: Tensor
    places: int

    def hidden(self, tokens_T: Tensor) -> Tensor:
        out: Tensor = self.decoder(tokens_T, self.positions_T, self.attend, self.places)
        return out

    def ahead(self, depth: int, hidden_TD: Tensor, next_T: Tensor) -> Tensor:
        return self.decoder.mtp_behind(depth, hidden_TD, next_T, self.positions_T, self.attend, self.places)

    def logits(self, hidden_TD: Tensor) -> Tensor:
        return self.decoder.logits(hidden_TD).float()

    def verify(self, *facts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return verify_logits(*facts)

    def draw(self, logits_RV: Tensor, temperature_R1: Tensor, uniform_R1: Tensor) -> Tensor:
        return pick(_chances(logits_RV, temperature_R1)[0], uniform_R1)[0]


class View(Protocol):
    """A step's tokens, known to the memory that holds what came before them."""

    def hidden(self, tokens_T: Tensor) -> Tensor: ...

    def ahead(self, depth: int, hidden_TD: Tensor, next_T: Tensor) -> Tensor:
        """The state of head `depth` from the one below it and the tokens `depth` ahead."""
        ...

    def logits(self, hidden_TD: Tensor) -> Tensor: ...

    def verify(
        self,
        logits_RJV: Tensor,
        beliefs_RKV: Tensor,
        drafts_RK: Tensor,
        temperature_R1: Tensor,
        accepting_RK: Tensor,
        drawing_RJ: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Drafts kept, the token behind them, and log-probabilities of both; `beliefs` are the drafts' own logits."""
        ...

    def draw(self, logits_RV: Tensor, temperature_R1: Tensor, uniform_R1: Tensor) -> Tensor: ...


class Memory(Protocol):
    """Where keys and values lie, as far as a steady step has to know: in rows, or in pages."""

    width: int  # numbers that say where a request's tokens lie

    def view(self, where_RX: Tensor, positions_RJ: Tensor, places: int) -> View: ...


class Steady:
    """`steps` of them in a row, of R requests; the host hears of all at the end."""

    def __init__(self, memory: Memory, decoder: Decoder, drafts: int, requests: int, places: int, steps: int) -> None:
        device, new = decoder.lm_head.weight.device, drafts + 1
        self.memory, self.most, self.places, self.steps = memory, drafts, places, steps
        later = (steps - 1) * new
        self.columns = (new, 1, memory.width, later + drafts, later + new, later + 2 * drafts, 1)
        self.inputs_RX = torch.zeros(requests, sum(self.columns), device=device, dtype=torch.float64)
        self.outputs_RX = torch.zeros(requests, steps * (1 + 2 * new) + drafts, device=device, dtype=torch.float64)
        self.beliefs_RKV = torch.zeros(requests, drafts, decoder.config.vocab_size, device=device)
        self.host_RX = torch.zeros(self.inputs_RX.shape, dtype=torch.float64, pin_memory=device.type == "cuda")
        self.graph: torch.cuda.CUDAGraph | None = None

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Uniform numbers wanted of each request: to accept with, to draw with, to draft with."""
        return self.columns[3], self.columns[4], self.columns[5]

    def __call__(self, facts: Sequence[Sequence[float]]) -> tuple[list[list[tuple[int, float]]], list[list[int]]]:
        """Of each request: tokens with their log-probabilities, and drafts behind them.

        The facts of a request: its last token and drafts, where the first of these stands, where its tokens lie,
        uniform numbers of three kinds, the temperature.
        """
        self.host_RX.copy_(torch.tensor(facts, dtype=torch.float64))
        self.inputs_RX.copy_(self.host_RX, non_blocking=True)
        if self.inputs_RX.is_cuda:
            if self.graph is None:
                self._capture()
            assert self.graph is not None
            self.graph.replay()
        else:
            self._compute()
        new, answers, drafts = self.most + 1, [], []
        for row in self.outputs_RX.tolist():
            answer: list[tuple[int, float]] = []
            for step in range(self.steps):
                kept, *rest = row[step * (1 + 2 * new) : (step + 1) * (1 + 2 * new)]
                answer += [(int(rest[j]), rest[new + j]) for j in range(int(kept) + 1)]
            answers.append(answer)
            drafts.append([int(token) for token in row[self.steps * (1 + 2 * new) :]])
        return answers, drafts

    def _capture(self) -> None:
        before = self.beliefs_RKV.clone()  # what computing a step changes; the cache gets the same values again
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                self._compute()
                self.beliefs_RKV.copy_(before)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._compute()
        self.beliefs_RKV.copy_(before)

    def _compute(self) -> None:
        parts = torch.split(self.inputs_RX, list(self.columns), 1)
        ids_RJ, ends_R1, where_RX = (part.long() for part in parts[:3])
        done_R1, told = torch.zeros_like(ends_R1), []
        for _ in range(self.steps):
            ids_RJ, kept_R1, facts_RX = self._step(ids_RJ, ends_R1 + done_R1, where_RX, done_R1, parts[3:])
            done_R1 = done_R1 + kept_R1 + 1
            told.append(facts_RX)
        self.outputs_RX.copy_(torch.cat((*told, ids_RJ[:, 1:].double()), 1))

    def _step(
        self, ids_RJ: Tensor, ends_R1: Tensor, where_RX: Tensor, done_R1: Tensor, numbers: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The last token and the drafts behind it -> the same of the next step, drafts kept, and what is told of it."""
        accepting_RX, drawing_RX, drafting_RX, temperature_R1 = numbers
        requests, new = ids_RJ.shape
        each_J = torch.arange(new, device=ids_RJ.device)
        view = self.memory.view(where_RX, ends_R1 + each_J, self.places)
        hidden_TD = view.hidden(ids_RJ.flatten())
        drafts_RK, at_RJ = ids_RJ[:, 1:], done_R1 + each_J
        kept_R1, token_R1, logprobs_RJ = view.verify(
            view.logits(hidden_TD).view(requests, new, -1),
            self.beliefs_RKV,
            drafts_RK,
            temperature_R1,
            accepting_RX.gather(1, at_RJ[:, : self.most]),
            drawing_RX.gather(1, at_RJ),
        )
        told_RJ = F.pad(drafts_RK, (0, 1)).scatter(1, kept_R1, token_R1)
        ahead_RX = F.pad(told_RJ, (0, self.most))  # entry i: the token i + 1 behind the first of the step
        rows_R, next_ids = torch.arange(requests, device=ids_RJ.device), [token_R1]
        for depth in range(1, self.most + 1):
            next_T = ahead_RX[:, depth - 1 : depth - 1 + new].flatten()
            hidden_TD = view.ahead(depth, hidden_TD, next_T)
            logits_RV = view.logits(hidden_TD.view(requests, new, -1)[rows_R, kept_R1[:, 0]])
            self.beliefs_RKV[:, depth - 1] = logits_RV
            # token i has its number wherever in a step it is drafted: behind what was kept, which the host cannot know
            drawn_R1 = view.draw(logits_RV, temperature_R1, drafting_RX.gather(1, done_R1 + kept_R1 + depth - 1))
            ahead_RX = ahead_RX.scatter(1, kept_R1 + depth, drawn_R1)
            next_ids.append(drawn_R1)
        return torch.cat(next_ids, 1), kept_R1, torch.cat((kept_R1, told_RJ, logprobs_RJ), 1)


def verify_logits(
    logits_RJV: Tensor,
    beliefs_RKV: Tensor,
    drafts_RK: Tensor,
    temperature_R1: Tensor,
    accepting_RK: Tensor,
    drawing_RJ: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """As a view verifies, in plain torch."""
    p_RJV, logp_RJV = _chances(logits_RJV, temperature_R1[:, :, None])
    q_RKV, _ = _chances(beliefs_RKV, temperature_R1[:, :, None])
    all_RK = torch.ones_like(drafts_RK, dtype=torch.bool)
    kept_R, token_R = verify(p_RJV, q_RKV, drafts_RK, all_RK, accepting_RK, drawing_RJ)
    told_RJ = F.pad(drafts_RK, (0, 1)).scatter(1, kept_R[:, None], token_R[:, None])
    return kept_R[:, None], token_R[:, None], logp_RJV.gather(-1, told_RJ[:, :, None])[..., 0]


def _chances(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """What is sampled from, and log-probabilities; temperature 0 is certain of the likeliest, and tells those of 1."""
    greedy = temperature == 0
    logits = logits / torch.where(greedy, 1.0, temperature).float()
    logp = logits.double().log_softmax(-1)
    certain = torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    return torch.where(greedy, certain, logp.exp().float()), logp
