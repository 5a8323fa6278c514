"""Speculation: MTP heads draft the next tokens, one forward verifies them all, and what is sampled stays the same.

A step computes, for every request that samples, its last token and the drafts behind it. Draft j, which was drawn from
q, is accepted with probability min(1, p / q), where p is the model's own distribution at that place; the first one that
is not is replaced by a token drawn from what p has more than q, and behind the last accepted one a token is drawn from
p itself. So each token has the distribution p, whatever the heads believe (Leviathan et al. 2023), and its reported
log-probability is that of p. Greedy requests are the case in which p and q are certain of one token.

Requests in one step differ in prompts, lengths, settings and in how many drafts they have. A rejected draft leaves
keys behind its request's end; the next step writes over them, so nothing is rolled back. All randomness of token i
comes from (seed, i) in three streams: drafting, accepting, and drawing, which is the sampler's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from etude.core.errors import EtudeError
from etude.core.policy import Sampling
from etude.core.settings import EngineSettings
from etude.engine.cache import KeyValueCache
from etude.engine.draft_acceptance import ACCEPTING, DRAFTING, verify
from etude.engine.request import Request, Top
from etude.engine.row_attention import CachedAttend, spans
from etude.engine.runner import Read
from etude.engine.sampler import Sampled, heaviest, pick, uniforms
from etude.engine.scheduler import Chunk
from etude.model.decoder import Decoder
from etude.model.experts import Routing

if TYPE_CHECKING:
    from etude.engine.cuda.draft_cache import PageMemory
    from etude.engine.cuda.draft_graphs import DraftGraphs


@dataclass(frozen=True)
class Distributions:
    """What N rows of logits are sampled from: temperature applied, top-k and top-p cut; greedy rows are certain."""

    chances_NV: Tensor  # float32, sums of 1
    weights_NV: Tensor  # what the log-probabilities are of: as above, but of greedy rows at temperature 1
    total_N1: Tensor  # float64, sums of the weights

    def logprobs(self, ids_N: Tensor) -> Tensor:
        return (self.weights_NV.gather(-1, ids_N[:, None]).double().log() - self.total_N1.log())[:, 0]

    def top(self, row: int, count: int) -> Top:
        heavy_K, ids_K = self.weights_NV[row].topk(min(count, self.weights_NV.shape[1]))
        logprobs_K = heavy_K.double().log() - self.total_N1[row].log()
        alternatives = int((heavy_K > 0).sum())
        return tuple(zip(ids_K[:alternatives].tolist(), logprobs_K[:alternatives].tolist(), strict=True))


def distributions(logits_NV: Tensor, sampling: Sequence[Sampling]) -> Distributions:
    device, logits_NV = logits_NV.device, logits_NV.float()
    temperatures = [s.temperature or 1.0 for s in sampling]
    if any(t != 1.0 for t in temperatures):
        logits_NV = logits_NV / torch.tensor(temperatures, device=device)[:, None]
    weights_NV = (logits_NV - logits_NV.amax(-1, keepdim=True)).exp_()
    limited = [i for i, s in enumerate(sampling) if s.temperature and (s.top_k or s.top_p < 1)]
    if limited:
        rows = torch.tensor(limited, device=device)
        weights_NV[rows] = heaviest(weights_NV[rows], [sampling[i] for i in limited])
    total_N1 = weights_NV.sum(-1, keepdim=True, dtype=torch.float64)
    chances_NV = (weights_NV / total_N1).float()
    # Greedy is the case of a certain p and q, so one rule of acceptance serves all requests.
    greedy = [i for i, s in enumerate(sampling) if not s.temperature]
    if greedy:
        rows = torch.tensor(greedy, device=device)
        best_G1 = logits_NV[rows].argmax(-1, keepdim=True)
        chances_NV[rows] = torch.zeros_like(chances_NV[rows]).scatter_(-1, best_G1, 1.0)
    return Distributions(chances_NV, weights_NV, total_N1)


@dataclass(frozen=True)
class _Drafts:
    """What was drafted for the requests of the last step."""

    seats: dict[int, int]  # number of a request -> its row below
    lengths: list[int]  # of each row, the tokens behind which it was drafted
    tokens: list[list[int]]
    beliefs_RKV: Tensor  # the logits that they were drawn from

    def of(self, request: Request) -> list[int]:
        """Those that still fit: an answer ends at `max_tokens`, and its tokens lie in the blocks that it has."""
        seat = self.seats.get(request.number)
        # Drafts stand behind one exact token: a request that went on without them has none.
        if seat is None or self.lengths[seat] != len(request.tokens):
            return []
        return self.tokens[seat][: request.draft_slots]


class RowMemory:
    """Dense rows, whose cache also has the heads' blocks."""

    graphs = None  # every step is computed as any other

    def __init__(self, decoder: Decoder, settings: EngineSettings) -> None:
        weight = decoder.lm_head.weight
        self.decoder = decoder
        self.cache = KeyValueCache(decoder.config, settings, weight.device, weight.dtype)

    def mixed(self, requests: Sequence[Request], starts: Sequence[int], counts: Sequence[int]) -> _MixedRows:
        rows = [request.row for request in requests]
        flat_rows = [row for row, count in zip(rows, counts, strict=True) for _ in range(count)]
        positions = [start + i for start, n in zip(starts, counts, strict=True) for i in range(n)]
        device = self.decoder.lm_head.weight.device
        positions_T, rows_T = torch.tensor((positions, flat_rows), device=device)
        attend = CachedAttend(self.cache, rows_T, positions_T, spans(rows, starts, counts))
        return _MixedRows(self, attend, positions_T, rows_T, max(positions) + 1)


@dataclass(frozen=True)
class _MixedRows:
    """Prompts in pieces, last tokens and drafts, in any number."""

    memory: RowMemory
    attend: CachedAttend
    positions_T: Tensor
    rows_T: Tensor
    longest: int

    def hidden(self, tokens_T: Tensor) -> Tensor:
        cache, routing = self.memory.cache, Routing() if self.memory.cache.routes else None
        out: Tensor = self.memory.decoder(tokens_T, self.positions_T, self.attend, self.longest, routing)
        if routing is not None:
            cache.row_routes_RSEC[self.rows_T, self.positions_T] = routing.chosen_TBK.to(torch.int16)
        return out

    def ahead(self, depth: int, hidden_TD: Tensor, next_T: Tensor) -> Tensor:
        return self.memory.decoder.mtp_hidden(depth, hidden_TD, next_T, self.positions_T, self.attend, self.longest)

    def logits(self, hidden_TD: Tensor) -> Tensor:
        return self.memory.decoder.logits(hidden_TD)


class SpeculatingRunner:
    """Any step, read when it is computed; on pages, graphs ones as a graph, each launched before the last is read."""

    def __init__(
        self, decoder: Decoder, settings: EngineSettings, memory: RowMemory | PageMemory | None = None
    ) -> None:
        heads = decoder.config.num_nextn_predict_layers
        if settings.speculate > heads:
            raise EtudeError(
                f"engine.speculate is {settings.speculate}, but the model has {heads} heads that predict further "
                "ahead; train them (etude mtp), or lower the setting"
            )
        weight = decoder.lm_head.weight
        self.decoder, self.device, self.most = decoder, weight.device, settings.speculate
        self.block_tokens = settings.block_tokens
        self.memory = memory or RowMemory(decoder, settings)
        self.cache = self.memory.cache
        self.graphs = self.memory.graphs
        # recorded steps are launched one ahead; all others are read before the next
        self.depth = int(self.graphs is not None)
        self.drafted = [0] * self.most  # by depth, since the engine started
        self.accepted = [0] * self.most
        self._drafts = _Drafts({}, [], [], torch.zeros(0, self.most, decoder.config.vocab_size, device=weight.device))

    def facts(self) -> dict[str, int]:
        drafted = {f"drafted.{d + 1}": count for d, count in enumerate(self.drafted)}
        return drafted | {f"accepted.{d + 1}": count for d, count in enumerate(self.accepted)}

    def overlaps(self, chunks: Sequence[Chunk]) -> bool:
        """Whether the device knows all that the next step begins with; otherwise the last one must be read first."""
        return self.graphs is not None and self.graphs.holds([chunk.request for chunk in chunks])

    def launch(self, chunks: Sequence[Chunk], ready: Sequence[Request]) -> Read:
        if self.graphs is not None:
            requests = [chunk.request for chunk in chunks]
            # Requests of the graph that was launched last: the device has their tokens and drafts, the host neither.
            if self.graphs.holds(requests):
                return self._replay(self.graphs, requests, [])
            drafts = [self._room(request) for request in requests]
            if all(self._plain(chunk, mine) for chunk, mine in zip(chunks, drafts, strict=True)):
                seats_R = torch.tensor([self._drafts.seats.get(r.number, 0) for r in requests], device=self.device)
                if len(self._drafts.beliefs_RKV):
                    self.graphs.beliefs[: len(requests)] = self._drafts.beliefs_RKV[seats_R]
                return self._replay(self.graphs, requests, drafts)
            # A mixed step is read at once, and then what the last graph left is not where these requests stand.
            self.graphs.forget()
        return self._mixed(chunks, ready)

    def _mixed(self, chunks: Sequence[Chunk], ready: Sequence[Request]) -> Read:
        drafts = {request.number: self._room(request) for request in ready}
        step = _Step(self, chunks, drafts)
        answers = step.verify(ready, drafts, self._drafts) if ready else []
        for request, answer in zip(ready, answers, strict=True):
            self._count(len(drafts[request.number]), len(answer) - 1)
        self._drafts = step.draft(ready, answers)
        # Before the next plan, so that the scheduler has blocks for the drafts.
        for request, answer in zip(ready, answers, strict=True):
            request.draft_slots = self._reserve(request, len(answer))
        tokens = [token for answer in answers for token, _, _ in answer]
        logprobs = [logprob for answer in answers for _, logprob, _ in answer]
        tops = {i: top for i, (_, _, top) in enumerate(one for answer in answers for one in answer) if top is not None}
        sampled = Sampled(tokens, logprobs, tops, [len(answer) for answer in answers])
        return lambda: sampled

    def _replay(self, graphs: DraftGraphs, requests: list[Request], drafts: Sequence[Sequence[int]]) -> Read:
        answers_of = graphs.launch(requests, drafts)
        for request in requests:
            request.draft_slots = self._reserve(request, 1 + request.ahead)

        def read() -> Sampled:
            tokens, logprobs, counts, lengths, more = [], [], [], [], []
            for request, answer in zip(requests, answers_of(), strict=True):
                count = len(answer.tokens)
                tokens += answer.tokens
                logprobs += answer.logprobs
                counts.append(count)
                lengths.append(len(request.tokens) + count)
                more.append(answer.drafts[: self.wanted(request, answer.tokens)])
                # One that ended before this step was read was computed once too often: its drafts say nothing.
                if not request.finished:
                    self._count(self.wanted(request, ()), count - 1)
                    request.draft_slots = self._reserve(request, count + request.ahead - 1)
            seats = {request.number: seat for seat, request in enumerate(requests)}
            self._drafts = _Drafts(seats, lengths, more, graphs.beliefs)
            return Sampled(tokens, logprobs, {}, counts)

        return read

    def wanted(self, request: Request, new: Sequence[int]) -> int:
        """How many drafts are of use behind the new tokens: with all of them accepted there is one token more."""
        # Nothing is sampled behind a stop id.
        if any(token in request.sampling.stop_ids for token in new):
            return 0
        left = request.sampling.max_tokens - len(request.logprobs) - len(new)
        return max(0, min(self.most, left - 1))

    def _reserve(self, request: Request, new: int) -> int:
        """Places for drafts behind the new tokens: of the next step, and of one whose outcome is not known by then."""
        left = request.sampling.max_tokens - len(request.logprobs) - new
        # With a step under way, two rounds of drafts may be accepted before the host hears of the first.
        return max(0, min((1 + self.depth) * self.most, left - 1))

    def _count(self, drafted: int, kept: int) -> None:
        for depth in range(drafted):
            self.drafted[depth] += 1
            self.accepted[depth] += depth < kept

    def _room(self, request: Request) -> list[int]:
        """The request's drafts, as far as its blocks hold them."""
        found = self._drafts.of(request)
        return found[: len(request.table) * self.block_tokens - len(request.tokens)]

    def _plain(self, chunk: Chunk, drafts: Sequence[int]) -> bool:
        """Whether this is a request in the middle of its answer with nothing out of the ordinary."""
        sampling = chunk.request.sampling
        # A recorded step samples from whole distributions only.
        limited = sampling.top_k or sampling.top_p < 1 or sampling.top_logprobs
        return chunk.count == 1 and len(drafts) == self.wanted(chunk.request, ()) and not limited


Answer = list[tuple[int, float, Top | None]]  # tokens with their log-probabilities, and alternatives if asked for


class _Step:
    """One forward of the model over chunks and drafts, and of the heads behind it."""

    def __init__(self, runner: SpeculatingRunner, chunks: Sequence[Chunk], drafts: dict[int, list[int]]) -> None:
        self.runner, self.decoder, self.device = runner, runner.decoder, runner.device
        self.chunks = chunks
        tokens = list[int]()
        self.starts, self.counts = list[int](), list[int]()
        self.last: dict[int, int] = {}  # number of a request that samples -> place of its last own token
        for chunk in chunks:
            request, start, stop = chunk.request, chunk.request.computed, chunk.request.computed + chunk.count
            fresh = request.tokens[start:stop]
            if chunk.samples:
                self.last[request.number] = len(tokens) + len(fresh) - 1
                fresh = fresh + drafts[request.number]
            self.starts.append(start)
            self.counts.append(len(fresh))
            tokens += fresh
        self.view = runner.memory.mixed([chunk.request for chunk in chunks], self.starts, self.counts)
        self.hidden_TD = self.view.hidden(self._put(tokens))

    def verify(self, ready: Sequence[Request], drafts: dict[int, list[int]], made: _Drafts) -> list[Answer]:
        """What each request that samples gets: the drafts that it keeps, and one token more."""
        asked = [drafts[request.number] for request in ready]
        most = max(map(len, asked))
        ends = [(self.last[request.number], len(mine)) for request, mine in zip(ready, asked, strict=True)]
        # All requests get as many places as the one with most drafts; the surplus ones are not `drafted`.
        places = [[last + min(j, many) for j in range(most + 1)] for last, many in ends]
        logits_NV = self.view.logits(self.hidden_TD[self._put(places).flatten()])
        found = distributions(logits_NV, [request.sampling for request in ready for _ in range(most + 1)])
        drafts_RK = self._put([d + [0] * (most - len(d)) for d in asked]).view(len(ready), most)
        drafted_RK = self._put([[j < len(d) for j in range(most)] for d in asked]).view(len(ready), most).bool()
        q_RKV = self._believed(ready, most, made, logits_NV.shape[1])
        counters = [len(request.logprobs) for request in ready]
        kept_R, token_R = verify(
            found.chances_NV.view(len(ready), most + 1, -1),
            q_RKV,
            drafts_RK,
            drafted_RK,
            self._uniforms(ready, counters, most, ACCEPTING),
            self._uniforms(ready, counters, most + 1),
        )
        ids_RJ = torch.nn.functional.pad(drafts_RK, (0, 1)).scatter(1, kept_R[:, None], token_R[:, None])
        logprobs = found.logprobs(ids_RJ.flatten()).view(len(ready), -1).tolist()
        answers: list[Answer] = []
        for row, (request, kept, ids) in enumerate(zip(ready, kept_R.tolist(), ids_RJ.tolist(), strict=True)):
            count = request.sampling.top_logprobs
            tops = [found.top(row * (most + 1) + j, count) if count else None for j in range(kept + 1)]
            answers.append(list(zip(ids, logprobs[row], tops, strict=False)))
        return answers

    def _believed(self, ready: Sequence[Request], most: int, made: _Drafts, vocabulary: int) -> Tensor:
        """The distributions that the drafts were drawn from."""
        if not most:
            return torch.zeros(len(ready), 0, vocabulary, device=self.device)
        seats_R = self._put([made.seats.get(request.number, 0) for request in ready])
        beliefs_NV = made.beliefs_RKV[seats_R, :most].flatten(0, 1)
        found = distributions(beliefs_NV, [request.sampling for request in ready for _ in range(most)])
        return found.chances_NV.view(len(ready), most, -1)

    def draft(self, ready: Sequence[Request], answers: Sequence[Answer]) -> _Drafts:
        """The heads over all that was computed, so that their cache is whole; and what they draft from its ends."""
        new = {r.number: [token for token, _, _ in answer] for r, answer in zip(ready, answers, strict=True)}
        known = [chunk.request.tokens + new.get(chunk.request.number, []) for chunk in self.chunks]
        wanted = [self.runner.wanted(request, new[request.number]) for request in ready]
        seats = {request.number: seat for seat, request in enumerate(ready)}
        ends = [self.last[request.number] + len(new[request.number]) - 1 for request in ready]
        drafts: list[list[int]] = [[] for _ in ready]
        vocabulary = self.decoder.config.vocab_size
        beliefs_RKV = torch.zeros(len(ready), self.runner.most, vocabulary, device=self.device)
        hidden_TD = self.hidden_TD
        for depth in range(1, self.runner.most + 1):
            ahead: list[int] = []
            for chunk, start, count, tokens in zip(self.chunks, self.starts, self.counts, known, strict=True):
                seat = seats.get(chunk.request.number)
                text = tokens + drafts[seat] if seat is not None else tokens
                # behind the drafts that were not kept there is nothing: what is computed there is written over
                part = text[start + depth : start + depth + count]
                ahead += part + [0] * (count - len(part))
            hidden_TD = self.view.ahead(depth, hidden_TD, self._put(ahead))
            drawing = [seat for seat, many in enumerate(wanted) if many >= depth]
            # No `break`: the deeper heads have to run as well, or their cache would have holes.
            if not drawing:
                continue
            asking = [ready[seat] for seat in drawing]
            logits_NV = self.view.logits(hidden_TD[self._put([ends[seat] for seat in drawing])])
            q_NV = distributions(logits_NV, [request.sampling for request in asking]).chances_NV
            counters = [len(request.logprobs) + len(new[request.number]) + depth - 1 for request in asking]
            token_N1, _ = pick(q_NV, self._uniforms(asking, counters, 1, DRAFTING))
            beliefs_RKV[self._put(drawing), depth - 1] = logits_NV.float()
            for seat, token in zip(drawing, token_N1[:, 0].tolist(), strict=True):
                drafts[seat].append(token)
        return _Drafts(seats, [len(r.tokens) + len(new[r.number]) for r in ready], drafts, beliefs_RKV)

    def _uniforms(self, requests: Sequence[Request], counters: Sequence[int], many: int, stream: int = 0) -> Tensor:
        """A number for each request and each of `many` tokens from its counter on."""
        seeds = [request.sampling.seed ^ stream for request in requests for _ in range(many)]
        numbers = uniforms(seeds, [counter + j for counter in counters for j in range(many)])
        return torch.from_numpy(numbers.reshape(len(requests), many)).to(self.device)

    def _put(self, values: Sequence[object]) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=np.int64)).to(self.device)
