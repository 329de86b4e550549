"""`Ranks`: the processes that train together, and the messages between them.

A batch of B rows is divided in order: rank r of R has the c = ⌈B/R⌉ rows from r·c on, the last
rank what is left. So the parts, one after the other, are the batch, and no rank has to know more
than its number.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from crossbatch.errors import ConfigError
from crossbatch.models.row_noise import rows_of
from crossbatch.training.distributed.messages import Gathering, contact

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from crossbatch.negatives import ItemEncoder


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of the default process group.

    Attributes:
        rank: Its number, from 0.
        size: How many there are, R.
    """

    rank: int
    size: int

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes files and prints messages."""
        return self.rank == 0

    def share(self, total: int) -> slice:
        """The rows of `total` that are this rank's."""
        each = -(-total // self.size)
        return slice(min(self.rank * each, total), min((self.rank + 1) * each, total))

    def check_batch(self, batch_size: int) -> None:
        """Raise `ConfigError` if a batch leaves a rank without rows."""
        if self.share(batch_size) == slice(batch_size, batch_size):
            raise ConfigError(
                f"train.batch_size={batch_size} leaves nothing to rank {self.rank} of {self.size}; "
                "it is the batch of all ranks together: raise it, or start fewer ranks"
            )

    def gather(self, rows: Tensor, total: int) -> Tensor:
        """All `total` rows `[total, …]` of which `rows` are this rank's share, with gradient."""
        return Gathering(rows, total, self.size).wait()

    def sharing(self, encode: ItemEncoder) -> ItemEncoder:
        """An item tower that encodes a share of the ids and gathers the vectors of the others."""

        def encode_share(item_ids: Tensor) -> Tensor:
            total = item_ids.shape[0]
            own = self.share(self.size * -(-total // self.size))
            # Every rank encodes equally many: the last id stands in where the ids run out.
            places = torch.arange(own.start, own.stop, device=item_ids.device)
            vectors = encode(item_ids[places.clamp_max(total - 1)])
            return self.gather(vectors, self.size * vectors.shape[0])[:total]

        return encode_share

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the ranks, all in one message."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with contact():
            dist.all_reduce(flat)
        sizes = [tensor.numel() for tensor in tensors]
        for tensor, total in zip(tensors, flat.split(sizes), strict=True):
            tensor.copy_(total.view_as(tensor))

    def collect(self, tensor: Tensor) -> list[Tensor]:
        """The tensor of every rank; all must have the same shape."""
        received = tensor.new_empty(self.size, *tensor.shape)
        with contact():
            dist.all_gather(list(received.unbind()), tensor.contiguous())
        return list(received.unbind())

    def collect_objects(self, value: Any) -> list[Any]:
        """A small plain value of every rank."""
        values: list[Any] = [None] * self.size
        with contact():
            dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Return when every rank has come here."""
        with contact():
            dist.barrier()

    @contextmanager
    def own_noise(self, total: int, seed: int, device: torch.device) -> Iterator[None]:
        """Let towers draw random numbers of this rank's own, except what all ranks must agree on.

        Outside, the random generator is in the same state on every rank, so that samplers draw the
        same items. Inside, dropout must differ between ranks, and may draw different amounts.
        `total` is the rows of the whole batch; `seed` differs for every step of every run.
        """
        generator = torch.default_generator
        if device.type == "cuda":
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
        shared = torch.Generator(device).set_state(generator.get_state())
        generator.manual_seed((seed * self.size + self.rank) % 2**63)
        try:
            with rows_of(self.share(total).start, total, shared):
                yield
        finally:
            generator.set_state(shared.get_state())
