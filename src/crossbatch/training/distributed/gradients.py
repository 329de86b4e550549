"""Gradients of layers, added up over the ranks while the backward pass is still running."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from crossbatch.training.distributed.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

BUCKET = 1 << 18  # numbers of a message, at least: 1 MB, which is long beside a message's latency


class GradientSums:
    """Adds up the gradients of one step over all ranks, and a few further numbers.

    Made before the backward pass, it sends a bucket of gradients as soon as its last one is there.
    Buckets leave in their order on every rank, so that ranks whose backward passes differ (a branch
    that only some rows take) still send the same messages; what is missing at the end leaves
    in `finish`.

    Args:
        parameters: In the order of the forward pass, which the backward pass reverses.
        extra: Numbers that are known already; they travel with the first bucket.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], extra: Sequence[Tensor]) -> None:
        self._extra = list(extra)
        self._buckets = _divided(parameters)
        self._missing = [len(bucket) for bucket in self._buckets]
        self._sent: list[tuple[Tensor, Message]] = []
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, place))
            for place, bucket in enumerate(self._buckets)
            for parameter in bucket
        ]
        self._send_complete()

    def finish(self) -> list[Tensor]:
        """Wait for all sums, which take the place of the gradients; those of the extra numbers.

        A parameter that no rank has a gradient for keeps none: an optimiser leaves it alone.
        """
        for hook in self._hooks:
            hook.remove()
        self._missing = [0] * len(self._buckets)
        self._send_complete()
        extra, found = self._extra, []
        for bucket, (sums, message) in zip(self._buckets, self._sent, strict=True):
            message.wait()
            sizes = [*(each.numel() for each in extra), len(bucket), *(p.numel() for p in bucket)]
            parts = iter(sums.split(sizes))
            found += [next(parts).view_as(number) for number in extra]
            present = next(parts).tolist()
            for parameter, total, has_one in zip(bucket, parts, present, strict=True):
                total = total.view_as(parameter).to(parameter.dtype)
                parameter.grad = total if has_one else None
            extra = []
        return found

    def _arrived(self, place: int, _: Tensor) -> None:
        self._missing[place] -= 1
        self._send_complete()

    def _send_complete(self) -> None:
        """Send the next buckets, as many as have all of their gradients."""
        while len(self._sent) < len(self._buckets) and self._missing[len(self._sent)] <= 0:
            bucket = self._buckets[len(self._sent)]
            device = self._extra[0].device
            present = torch.tensor([float(p.grad is not None) for p in bucket], device=device)
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            extra = [] if self._sent else self._extra
            numbers = torch.cat([each.reshape(-1) for each in (*extra, present, *gradients)])
            self._sent.append((numbers, Message(dist.all_reduce, numbers)))


def _divided(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters from the last to the first in buckets of at least `BUCKET` numbers, but one."""
    buckets: list[list[nn.Parameter]] = [[]]
    room = BUCKET
    for parameter in reversed(parameters):
        if room <= 0:
            buckets.append([])
            room = BUCKET
        buckets[-1].append(parameter)
        room -= parameter.numel()
    return buckets
