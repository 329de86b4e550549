"""`Ranks`: the processes that train together, and the messages between them.

A batch of B rows is divided in order: rank r of R has the c = ⌈B/R⌉ rows from r·c on, the last
rank what is left. So the parts, one after the other, are the batch, and no rank has to know more
than its number.

Messages travel while a rank works on: started in one place, waited for in another.

    gathering = Gathering(v, total=128, size=2)     # the vectors leave
    u = user_tower(history)                         # meanwhile
    columns = gathering.wait()                      # [128, d], with gradient
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from crossbatch.errors import ConfigError
from crossbatch.models.history import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from crossbatch.negatives import ItemEncoder


class LostContactError(RuntimeError):
    """A message to the other ranks failed: one of them was killed, or hangs."""


@contextmanager
def contact() -> Iterator[None]:
    """Inside, what goes wrong is a lost rank."""
    try:
        yield
    except RuntimeError as error:
        raise LostContactError(str(error)) from error


class Message:
    """A collective call of `torch.distributed` that is under way.

    All ranks must start the same messages in the same order.
    """

    def __init__(self, send: Callable[..., Any], *arguments: Any) -> None:
        with contact():
            self._work = send(*arguments, async_op=True)

    def wait(self) -> None:
        """Return when it has arrived."""
        with contact():
            self._work.wait()


class Gathering:
    """All `total` rows `[total, …]`, of which `rows` are this rank's share, on their way.

    With gradient: a row's is the sum of what all ranks have for it. The backward pass is the mirror
    image of the forward pass. Autograd goes through operations from the last to the first, so what
    came between the start and `wait` (a user tower) has its backward pass between the sending of
    the gradients and the place where they are needed.
    """

    def __init__(self, rows: Tensor, total: int, size: int) -> None:
        self.total, self.size, self.each = total, size, -(-total // size)
        self._arriving: Tensor
        self._message: Message
        # Carries no numbers: it ties the two ends together in autograd's graph.
        self._token: Tensor = _Start.apply(rows, self)  # type: ignore[no-untyped-call]

    def wait(self) -> Tensor:
        """The rows; to be called once."""
        rows: Tensor = _Finish.apply(self._token, self)  # type: ignore[no-untyped-call]
        return rows

    def send(self, rows: Tensor) -> None:
        """Start the message with the rows of this rank, at most `each`."""
        own = _padded(rows.detach(), self.each)
        self._arriving = own.new_empty(self.size, *own.shape)
        self._message = Message(dist.all_gather, list(self._arriving.unbind()), own)

    def send_gradients(self, gradients: Tensor) -> None:
        """Start the message with what this rank has for the rows of every rank."""
        pieces = _padded(gradients, self.each * self.size)
        arriving = torch.empty_like(pieces)
        self._message = Message(dist.all_to_all_single, arriving, pieces)
        self._arriving = arriving.view(self.size, self.each, *arriving.shape[1:])

    def received(self) -> Tensor:
        """What the ranks have sent `[R, each, …]`."""
        self._message.wait()
        return self._arriving

    def token(self, like: Tensor) -> Tensor:
        """Zeros `[each, …]` that take no memory."""
        return like.new_zeros(()).expand(self.each, *like.shape[1:])


class _Start(torch.autograd.Function):
    """From a rank's rows to a token; the backward pass waits for their gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, gathering: Gathering) -> Tensor:
        ctx.gathering, ctx.own = gathering, rows.shape[0]
        gathering.send(rows)
        return gathering.token(rows)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        gradients = ctx.gathering.received().sum(dim=0)
        return gradients[: ctx.own], None


class _Finish(torch.autograd.Function):
    """From the token to the rows of all ranks; the backward pass sends their gradients."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, gathering: Gathering) -> Tensor:
        ctx.gathering = gathering
        return gathering.received().flatten(0, 1)[: gathering.total]

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None]:
        ctx.gathering.send_gradients(gradients)
        return ctx.gathering.token(gradients), None


def _padded(rows: Tensor, length: int) -> Tensor:
    """`rows` followed by zeros up to `length`."""
    if rows.shape[0] == length:
        return rows.contiguous()
    padded = rows.new_zeros(length, *rows.shape[1:])
    padded[: rows.shape[0]] = rows
    return padded


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
