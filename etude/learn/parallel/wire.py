"""Rows sent to other ranks and back, with a gradient: an all-to-all that is started in one place and waited for in
another, so that what does not need it is computed in between, in the forward and in the backward pass.

In which numbers rows travel is a choice: their own dtype, bfloat16, or 8 bits with a scale for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from etude.model.low_precision.products import EIGHT, quantised

Wire = Literal["same", "bfloat16", "fp8"]

SCALE_BYTES = 4  # a float32 behind the numbers of each row, so that one message carries both


def _numbers(wire: Wire, dtype: torch.dtype) -> torch.dtype:
    return dtype if wire == "same" else torch.bfloat16


def _encoded(x_ND: Tensor, wire: Wire) -> Tensor:
    if wire != "fp8":
        return x_ND.to(_numbers(wire, x_ND.dtype)).contiguous()
    numbers_ND, scale_N1 = quantised(x_ND)
    return torch.cat((numbers_ND.view(torch.uint8), scale_N1.contiguous().view(torch.uint8)), -1)


def _decoded(sent: Tensor, wire: Wire, dtype: torch.dtype) -> Tensor:
    if wire != "fp8":
        return sent.to(dtype)
    numbers_ND, scale_N4 = sent[:, :-SCALE_BYTES], sent[:, -SCALE_BYTES:]
    return (numbers_ND.view(EIGHT).float() * scale_N4.contiguous().view(torch.float32)).to(dtype)


class Exchange:
    """One all-to-all of rows: `sent[r]` of them, in order, go to rank r, `received[r]` come from it, in order.

    Gradients go the way back: in the rows' numbers, but never in 8 bits, which have too few digits for sums of them.
    """

    def __init__(self, group: dist.ProcessGroup, sent: Sequence[int], received: Sequence[int], wire: Wire) -> None:
        self.group, self.sent, self.received, self.wire = group, list(sent), list(received), wire
        self._transfer: tuple[dist.Work, Tensor, Tensor] | None = None

    def start(self, x_ND: Tensor) -> Tensor:
        """Begins to send; what it returns stands for the rows that come and is for `finish` only."""
        self.dtype = x_ND.dtype
        token: Tensor = _Start.apply(x_ND, self)  # type: ignore[no-untyped-call]
        return token

    def finish(self, token: Tensor) -> Tensor:
        rows_MD: Tensor = _Finish.apply(token, self)  # type: ignore[no-untyped-call]
        return rows_MD

    def _send(self, x: Tensor, to: list[int], of: list[int]) -> None:
        out = x.new_empty(sum(of), x.shape[1])
        work = dist.all_to_all_single(out, x, of, to, group=self.group, async_op=True)
        assert work is not None
        self._transfer = work, x, out  # x is read until the transfer ends

    def _wait(self) -> Tensor:
        assert self._transfer is not None
        work, _, out = self._transfer
        work.wait()
        self._transfer = None
        return out


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        exchange._send(_encoded(x_ND, exchange.wire), exchange.sent, exchange.received)
        # Numbers without memory: the shape and dtype of what the gradient will be, which autograd checks.
        numbers = _numbers(exchange.wire, x_ND.dtype)
        return x_ND.new_empty((1, 1), dtype=numbers).expand(sum(exchange.received), x_ND.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange._wait().to(ctx.exchange.dtype), None


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        return _decoded(exchange._wait(), exchange.wire, exchange.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        exchange = ctx.exchange
        numbers = _numbers(exchange.wire, exchange.dtype)
        exchange._send(gradients[0].to(numbers).contiguous(), exchange.received, exchange.sent)
        assert exchange._transfer is not None
        shape = sum(exchange.received), gradients[0].shape[1]
        return gradients[0].new_empty((1, 1), dtype=numbers).expand(shape), None
