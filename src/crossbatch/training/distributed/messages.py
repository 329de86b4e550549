"""Messages that travel while a rank works on: started in one place, waited for in another.

gathering = Gathering(v, total=128, size=2)     # the vectors leave
u = user_tower(history)                         # meanwhile
columns = gathering.wait()                      # [128, d], with gradient
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
