"""Gradients exchanged between ranks: of layers, and of embedding rows that were read.

Gradients of layers are added up while the backward pass is still running (`GradientSums`). Of
tables only what the ranks have read is exchanged, never a table (`ReadExchange`): a rank adds up
the gradients of each distinct row before it sends them, because a batch reads popular rows many
times. Bags of rows that were averaged leave as they are, with one gradient for all rows of a bag.
Every rank then applies the reads of all ranks, in the ranks' order, to its copy.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from crossbatch.kernels import usable
from crossbatch.kernels.distinct_ids import distinct_ids
from crossbatch.kernels.row_gradients import RowRead, RowSums, sum_gradients
from crossbatch.training.distributed.ranks import Message, Ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from crossbatch.training.optimizers.row_optimizer import RowOptimizer

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


WHOLE = {torch.float32: torch.int32, torch.float64: torch.int64}  # numbers of the same length


class ReadExchange:
    """Gives every table the reads of all ranks, in two messages.

    The first tells the length of the second. It is sent before the backward pass, and has arrived
    when the gradients are there.

    Args:
        ranks: This process among the others.
        tables: Whose reads to exchange; their order is the same on all ranks.
    """

    def __init__(self, ranks: Ranks, tables: Sequence[RowOptimizer]) -> None:
        self._ranks, self._tables = ranks, list(tables)
        types = [table.table.weight.dtype for table in self._tables]
        self._dtype = reduce(torch.promote_types, types, torch.float32)
        self._sums: dict[RowOptimizer, RowSums] = {}  # need NumPy, which the plain form does not
        self._lengths: Tensor  # [R, 1]
        self._announced: Message | None = None

    def announce(self) -> None:
        """Tell the other ranks how many numbers this one will send at most."""
        if self._tables:
            device = self._tables[0].table.weight.device
            own = torch.tensor([sum(map(_length, self._tables))], device=device)
            self._lengths = own.new_empty(self._ranks.size, 1)
            self._announced = Message(dist.all_gather, list(self._lengths.unbind()), own)

    def finish(self) -> None:
        """Replace the tables' reads, whose gradients are there, by those of all ranks."""
        if self._announced is None:
            return
        self._announced.wait()
        self._announced = None
        own = self._packed(int(self._lengths.max()))
        received = own.new_empty(self._ranks.size, len(own))
        Message(dist.all_gather, list(received.unbind()), own).wait()
        reads = [self._unpacked(numbers) for numbers in received]
        for table, of_ranks in zip(self._tables, zip(*reads, strict=True), strict=True):
            table.replace_reads([read for of_rank in of_ranks for read in of_rank])

    def _packed(self, length: int) -> Tensor:
        """How much there is of each table; then, table by table, ids, sizes and gradients."""
        counts, parts = [], []
        for table in self._tables:
            # Those that nothing in the backward pass depended on have no gradient.
            reads = [read for read in table.reads if read.leaf.grad is not None]
            rows, totals = self._totals(table, [read for read in reads if read.sizes is None])
            bags = [read for read in reads if read.sizes is not None]
            ids = [read.ids for read in bags]
            sizes = [read.sizes for read in bags if read.sizes is not None]
            counts += [len(rows), sum(map(len, ids)), sum(map(len, sizes))]
            parts += [self._as_floats(whole) for whole in (rows, *ids, *sizes)]
            parts += [totals, *(bag.gradient for bag in bags if bag.gradient is not None)]
        header = self._as_floats(torch.tensor(counts, device=self._lengths.device))
        numbers = header.new_empty(length)
        parts = [part.reshape(-1) for part in (header, *parts)]
        torch.cat(parts, out=numbers[: sum(map(len, parts))])
        return numbers

    def _unpacked(self, numbers: Tensor) -> list[list[RowRead]]:
        """The reads of each table that another rank has packed: of rows, and of bags."""
        start = 3 * len(self._tables)
        lengths = []
        for (rows, ids, bags), table in zip(
            self._as_integers(numbers[:start]).view(-1, 3).tolist(), self._tables, strict=True
        ):
            lengths += [rows, ids, bags, rows * table.table.dim, bags * table.table.dim]
        parts = iter(numbers[start : start + sum(lengths)].split(lengths))
        reads = []
        for table in self._tables:
            rows, ids, sizes = (self._as_integers(next(parts)) for _ in range(3))
            found = [_read(table, rows, next(parts)), _read(table, ids, next(parts), sizes)]
            reads.append([read for read in found if len(read.ids)])
        return reads

    def _as_floats(self, whole: Tensor) -> Tensor:
        """Whole numbers as floating-point ones with the same bits, to travel among others."""
        return whole.to(WHOLE[self._dtype]).view(self._dtype)

    def _as_integers(self, floats: Tensor) -> Tensor:
        return floats.view(WHOLE[self._dtype]).long()

    def _totals(self, table: RowOptimizer, reads: list[RowRead]) -> tuple[Tensor, Tensor]:
        """Distinct rows `[n]` of reads, and the sums of their gradients `[n, d]`."""
        weight, padding = table.table.weight, table.table.padding_row
        if not reads:
            return weight.new_empty(0), weight.new_empty(0, weight.shape[1])
        if not usable(weight, *(read.leaf.detach() for read in reads)):
            return sum_gradients(reads, padding)
        if table not in self._sums:
            self._sums[table] = RowSums(padding)
        return self._sums[table].totals(reads, *weight.shape)


def _length(table: RowOptimizer) -> int:
    """How many numbers tell of the reads of a table, if all of them get a gradient."""
    bags = [read for read in table.reads if read.sizes is not None]
    num_rows = sum(len(bag.sizes) for bag in bags if bag.sizes is not None)
    single = [read.ids for read in table.reads if read.sizes is None]
    if single:
        rows = distinct_ids(torch.cat(single), len(table.table.weight) - 1)
        num_rows += len(rows)  # padding among them is not sent
    return 3 + num_rows * (1 + table.table.dim) + sum(len(bag.ids) for bag in bags)


def _read(
    table: RowOptimizer, ids: Tensor, gradient: Tensor, sizes: Tensor | None = None
) -> RowRead:
    weight = table.table.weight
    gradient = gradient.view(-1, weight.shape[1]).to(weight.dtype)
    leaf = torch.empty_like(gradient).requires_grad_()  # for its gradient alone
    leaf.grad = gradient
    return RowRead(ids, leaf, sizes)
