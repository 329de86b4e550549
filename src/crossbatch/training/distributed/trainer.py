"""`RankTrainer`: the step of one of R ranks, which together take the step of one process.

Every rank is given the whole batch and encodes its share of it. Item vectors are gathered with
gradient, so that every row meets the columns of all ranks (spatial) and of the bank (temporal);
a rank computes the losses of its own rows. Ids and log q need no message: they are in the batch.
All ranks enqueue the same gathered vectors, so their banks are one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from crossbatch.data import Batch
from crossbatch.models import TwoTower
from crossbatch.negatives import Candidates, Queries
from crossbatch.queries import feature_rows
from crossbatch.training.distributed.gradients import GradientSums, ReadExchange
from crossbatch.training.distributed.ranks import Gathering, Ranks
from crossbatch.training.step import Trainer, TrainingBatch, squared_length

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


NOISE_STRIDE = 1 << 32  # more than any run has steps


@dataclass(slots=True)
class RankTrainer(Trainer):
    """A trainer whose gradients, losses and banks are those of the whole batch.

    Attributes:
        ranks: This process among the others.
        seed: Of the random numbers that each rank draws for itself.
    """

    ranks: Ranks = field(default_factory=lambda: Ranks(0, 1))
    seed: int = 0
    _stop_wanted: Callable[[], bool] = lambda: False
    _stop_agreed: bool = False
    _sums: GradientSums | None = None
    _reads: ReadExchange | None = None

    def forward(
        self, batch: TrainingBatch
    ) -> tuple[Tensor | Queries, Candidates, Candidates, Tensor]:
        """This rank's user vectors `[b, d]` and loss; positives and negatives of the whole batch.

        The loss is the sum over this rank's rows divided by the rows of all ranks.
        """
        total, ids, mine = batch.item_ids.shape[0], batch.item_ids, self._share(batch)
        own = self.ranks.share(total)
        seed = self.seed * NOISE_STRIDE + self.step
        self._fetch(torch.cat([mine.history.flatten(), mine.item_ids]))
        with self._precision(ids.device):
            with self.ranks.own_noise(total, seed, ids.device):
                u, v, gathering = self._encode_both(mine, total)  # [b, d]
            log_q = self.sampler.log_q(ids)
            gathered = gathering.wait()
            positives = Candidates(gathered, ids, log_q, first_row=own.start)
            negatives = self.sampler.draw(u, positives, self.ranks.sharing(self._encode))
        loss = self.loss(u, Candidates(v, ids[own], log_q[own]), negatives, mine)
        return u, positives, negatives, loss * (len(u) / total)

    def backward(self, u: Tensor | Queries, positives: Candidates, loss: Tensor) -> None:
        """Leave gradients for `update`; what the ranks have to add up leaves as it is there."""
        total = len(positives)
        self.optimizer.before_backward()
        if (self.step + 1) % self.accumulate == 0:
            stop = torch.full_like(loss, self._stop_wanted(), requires_grad=False)
            self._sums = GradientSums(self._layers(), [loss.detach().clone(), stop])
            self._exchange().announce()
        if self.l2:
            v = positives.embeddings[self.ranks.share(total)]
            loss = loss + self.l2 * squared_length(u, v) / total
        torch.autograd.backward(loss / self.accumulate if self.accumulate > 1 else loss)

    def update(self, loss: Tensor) -> tuple[Tensor, float]:
        """Add up losses, requests to stop and gradients of all ranks, then move the weights."""
        if self._sums is None:
            loss = loss.clone()
            self.ranks.sum_([loss])
            return loss, 0.0
        loss, stop = self.add_up()
        self._stop_agreed = bool(stop)
        return loss, self.optimizer.step()

    def add_up(self) -> tuple[Tensor, Tensor]:
        """Wait for the gradients of all ranks: their loss, and how many were asked to stop."""
        assert self._sums is not None
        loss, stop = self._sums.finish()
        self._sums = None
        self._exchange().finish()
        return loss, stop

    def agree_to_stop(self, wanted: Callable[[], bool]) -> Callable[[], bool]:
        """Whether any rank was asked to stop by the end of its last step, as `wanted` says here."""
        self._stop_wanted = wanted
        return lambda: self._stop_agreed

    def whole(self, rows: Tensor | Queries) -> Tensor | Queries:
        """The rows of all ranks, of which `rows` are this one's."""
        sizes = [int(size) for size in self.ranks.collect(torch.tensor(len(rows)))]
        if not isinstance(rows, Queries):
            return self.ranks.gather(rows, sum(sizes))
        # Ranks may have padded their queries to different numbers.
        widths = self.ranks.collect(torch.tensor(rows.vectors.shape[1]))
        missing = max(int(width) for width in widths) - rows.vectors.shape[1]
        vectors = torch.nn.functional.pad(rows.vectors, (0, 0, 0, missing))
        log_weights = torch.nn.functional.pad(rows.log_weights, (0, missing), value=-math.inf)
        return Queries(
            self.ranks.gather(vectors, sum(sizes)), self.ranks.gather(log_weights, sum(sizes))
        )

    def _encode_both(self, batch: Batch, total: int) -> tuple[Tensor | Queries, Tensor, Gathering]:
        """This rank's vectors u and v `[b, d]`, and the item vectors of all ranks on their way.

        They leave before the histories are read, if the model says when it has them.
        """
        gathering: Gathering | None = None

        def send(v: Tensor) -> None:
            nonlocal gathering
            # The backward pass adds these up over the ranks, which 16 bits are too few for.
            v = v.to(torch.promote_types(v.dtype, torch.float32))
            gathering = Gathering(v, total, self.ranks.size)

        model: Any = self.model
        early = {"on_items": send} if isinstance(model, TwoTower) else {}
        u, v = model(batch.history, batch.item_ids, *feature_rows(model, batch), **early)
        if gathering is None:
            send(v)
        assert gathering is not None
        return u, v, gathering

    def _layers(self) -> list[torch.nn.Parameter]:
        """What is not updated by rows, in the order of the forward pass."""
        model: Any = self.model
        wanted = {id(parameter): parameter for parameter in self.optimizer.parameters()}
        own = [wanted.pop(id(p)) for p in model.parameters() if id(p) in wanted]
        return own + list(wanted.values())  # the temperature comes last

    def _exchange(self) -> ReadExchange:
        if self._reads is None:
            self._reads = ReadExchange(self.ranks, list(self.optimizer.tables.values()))
        return self._reads

    def _fetch(self, item_ids: Tensor) -> None:
        for table in self.optimizer.sharded.values():
            table.fetch(item_ids)

    def _encode(self, item_ids: Tensor) -> Tensor:
        self._fetch(item_ids)
        return self.model.items(item_ids)

    def _share(self, batch: TrainingBatch) -> Batch:
        own = self.ranks.share(batch.item_ids.shape[0])
        later = batch.later
        if later is not None:
            offsets = later[1][own.start : own.stop + 1]
            later = later[0][int(offsets[0]) : int(offsets[-1])], offsets - offsets[0]
        events = getattr(batch, "event_ids", None)
        events = None if events is None else events[own]
        return Batch(batch.user_ids[own], batch.history[own], batch.item_ids[own], later, events)
