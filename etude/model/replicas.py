"""One set of weights and a gradient for each lane: micro-batches side by side on the cores of a CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

from etude.model.decoder import Decoder
from etude.model.experts import Router
from etude.model.torch_process import Lanes

Work = TypeVar("Work")
Result = TypeVar("Result")


class Replicas:
    """The decoder and replicas that share its weights, one decoder for each lane."""

    def __init__(self, decoder: Decoder) -> None:
        self.lanes, self.decoders = Lanes(decoder.lm_head.weight.device.type), [decoder]
        for _ in range(self.lanes.count - 1):
            replica = copy.deepcopy(decoder)
            for own, shared in zip(replica.parameters(), decoder.parameters(), strict=True):
                # One memory for the weights of all; gradients stay each replica's own.
                own.data = shared.data
            for mine, router in zip(_routers(replica), _routers(decoder), strict=True):
                if router.config.scoring == "sigmoid":
                    mine.e_score_correction_bias = router.e_score_correction_bias  # the load is each one's own
            self.decoders.append(replica)

    def run(self, work: Callable[[Decoder, Work], Result], shares: Sequence[Work]) -> list[Result]:
        """`work` on each share with a decoder of its own."""
        return self.lanes.run(lambda pair: work(*pair), list(zip(self.decoders, shares, strict=False)))

    def gather(self) -> None:
        """Adds the replicas' gradients and loads to the decoder's, in the same order each time: sums are repeatable."""
        for replica in self.decoders[1:]:
            for total, part in zip(self.decoders[0].parameters(), replica.parameters(), strict=True):
                if part.grad is not None:
                    total.grad = part.grad if total.grad is None else total.grad.add_(part.grad)
                    part.grad = None
            for whole, share in zip(_routers(self.decoders[0]), _routers(replica), strict=True):
                whole.load_E += share.load_E
                share.load_E.zero_()


def _routers(decoder: Decoder) -> list[Router]:
    return [module for module in decoder.modules() if isinstance(module, Router)]
