"""`MemoryBank`: the FIFO bank M of item vectors from recent batches (section 3.3.2).

    bank = MemoryBank(capacity=2432, dim=64)
    negatives = positives + bank.read()        # before the loss
    bank.enqueue(positives)                    # after it

`DriftGauge` measures how fast item vectors move, and so how many cached rows are worth reading.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from crossbatch.negatives.candidates import Candidates

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_STEPS = 1 << 62  # counted on, they stay within int64
STORAGE_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


# Of all banks: a lock of each module could be neither copied nor pickled, and is held for
# microseconds.
_ONE_AT_A_TIME = threading.RLock()


class MemoryBank(nn.Module):
    """First in, first out, for batches of any size; only written rows are read.

    Rows live in a window that slides over a buffer of twice the capacity. A row is written once and
    never overwritten in place: when the window reaches the end, its rows move to a fresh buffer
    (amortised: each row is copied once). So `read` hands out views, without a copy, that stay what
    they were whatever is enqueued later.

    All state is in buffers (rows, ids, log q, birth, cursor, fill, step), and the counters are
    replaced, not changed in place: a `state_dict` taken at any moment resumes exactly, even if it
    was not copied and training continued. The three counters stay on the host: reading them never
    waits for a GPU. Several threads may read and enqueue.

    Args:
        capacity: Number of rows M; 0 makes a bank that is always empty.
        dim: Dimension d of the rows.
        dtype: Storage type: `"float32"`, `"bfloat16"` or `"float16"`.
    """

    embeddings: Tensor  # [2M, d]
    item_ids: Tensor  # [2M]
    log_q: Tensor  # [2M]
    birth: Tensor  # [2M] value of `step` when the row was written
    cursor: Tensor  # end of the window
    fill: Tensor  # rows in the window
    step: Tensor  # iterations so far

    ROW_BUFFERS: tuple[str, ...] = ("embeddings", "item_ids", "log_q", "birth")
    # module.half() may shrink the rows, but log q = -14.2 in bfloat16 is off by up to 0.06.
    FULL_PRECISION: tuple[str, ...] = ("log_q",)

    def __init__(self, capacity: int, dim: int, *, dtype: str = "float32") -> None:
        super().__init__()
        if not isinstance(capacity, int) or capacity < 0:
            raise ValueError(f"capacity must be 0 (no bank) or more, got {capacity!r}")
        if not isinstance(dim, int) or dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim!r}")
        if not isinstance(dtype, str) or dtype not in STORAGE_DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(STORAGE_DTYPES)}, got {dtype!r}")
        self.capacity = capacity
        self.dim = dim
        rows = 2 * capacity
        self.register_buffer("embeddings", torch.zeros(rows, dim, dtype=STORAGE_DTYPES[dtype]))
        self.register_buffer("item_ids", torch.zeros(rows, dtype=torch.int64))
        self.register_buffer("log_q", torch.zeros(rows))
        self.register_buffer("birth", torch.zeros(rows, dtype=torch.int64))
        for counter in ("cursor", "fill", "step"):
            self.register_buffer(counter, torch.zeros((), dtype=torch.int64, device="cpu"))

    def __len__(self) -> int:
        return int(self.fill)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def read(self, newest: int | None = None) -> Candidates:
        """The written rows, oldest first, as constants; empty before the first `enqueue`.

        Args:
            newest: Read this many of the youngest rows at most.
        """
        with _ONE_AT_A_TIME:
            window = self._window()
            if newest is not None:
                window = slice(max(window.start, window.stop - newest), window.stop)
            return Candidates(
                # .data: the rows behind this view never change, so autograd need not guard them
                # against the enqueue that may come between a forward and its backward.
                self.embeddings.data[window],
                self.item_ids.data[window],
                self.log_q.data[window],
                cached=True,
            )

    def ages(self) -> Tensor:
        """`[len(self)]` iterations since each row was written, oldest first."""
        return self.step.to(self.birth.device) - self.birth[self._window()]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def enqueue(self, items: Candidates) -> None:
        """Append a detached copy of `items`; the oldest rows leave when the bank is full.

        Raises:
            ValueError: If a row is not finite or of another dimension. The bank is unchanged.
        """
        if items.dim != self.dim:
            raise ValueError(
                f"items have dimension {items.dim}, the bank stores {self.dim}; "
                f"build it with dim={items.dim}"
            )
        rows = items.embeddings.detach().to(self.embeddings.dtype)
        ids, log_q = items.item_ids, items.log_q.detach()
        newest = max(0, ids.shape[0] - self.capacity)
        if newest:
            rows, ids, log_q = rows[newest:], ids[newest:], log_q[newest:]
        self._check_finite(rows, log_q)
        with _ONE_AT_A_TIME:
            self.skip()
            if self.capacity:
                self._append(rows, ids, log_q)

    def skip(self) -> None:
        """Count an iteration whose items are not kept."""
        self._count("step", int(self.step) + 1)

    def _count(self, counter: str, value: int) -> None:
        # Not by assignment, which takes a module as long as all of the arithmetic here.
        self._buffers[counter] = torch.scalar_tensor(value, dtype=torch.int64, device="cpu")

    def _check_finite(self, rows: Tensor, log_q: Tensor) -> None:
        total = rows.sum(dtype=torch.float32) + log_q.sum()
        if math.isfinite(float(total)):  # one look at the device; a sum may overflow, hence below
            return
        broken = int((~torch.isfinite(rows).all(dim=1) | ~torch.isfinite(log_q)).sum())
        if broken:
            raise ValueError(
                f"items hold {broken} rows that are not finite as {self.embeddings.dtype}; a bank "
                "of them would poison later losses, so find where training diverged"
            )

    def _append(self, rows: Tensor, item_ids: Tensor, log_q: Tensor) -> None:
        added = rows.shape[0]
        start = self._room_for(added)
        self.embeddings.narrow(0, start, added).copy_(rows)
        self.item_ids.narrow(0, start, added).copy_(item_ids)
        self.log_q.narrow(0, start, added).copy_(log_q)
        self.birth.narrow(0, start, added).fill_(int(self.step))
        self._advance(start, added)

    def _room_for(self, added: int) -> int:
        """Where the next rows go."""
        if int(self.cursor) + added > self.embeddings.shape[0]:
            self._move_to_fresh_buffers()
        return int(self.cursor)

    def _advance(self, start: int, added: int) -> None:
        self._count("cursor", start + added)
        self._count("fill", min(int(self.fill) + added, self.capacity))

    def _move_to_fresh_buffers(self) -> None:
        window = self._window()
        for name in self.ROW_BUFFERS:
            old: Tensor = getattr(self, name)
            fresh = torch.zeros_like(old)
            fresh[: len(self)] = old[window]
            setattr(self, name, fresh)
        self.cursor = self.fill.clone()

    def _window(self) -> slice:
        return slice(int(self.cursor) - int(self.fill), int(self.cursor))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> MemoryBank:
        precise: dict[str, Tensor] = {name: getattr(self, name) for name in self.FULL_PRECISION}
        if fn(torch.empty(0)).is_meta:
            raise ValueError(
                "a bank cannot be on the device meta, which keeps no numbers; leave it on cpu"
            )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for counter in ("cursor", "fill", "step"):
            setattr(self, counter, getattr(self, counter).cpu())
        for name, value in precise.items():
            setattr(self, name, value.to(getattr(self, name).device))
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        with _ONE_AT_A_TIME:
            self._load(state_dict, prefix, *args)

    def _load(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        saved = state_dict.get(prefix + "embeddings")
        if isinstance(saved, Tensor) and saved.dim() == 2 and saved.shape != self.embeddings.shape:
            raise ValueError(
                f"the state holds a bank of capacity {saved.shape[0] // 2} and dim "
                f"{saved.shape[1]}, this one has {self.capacity} and {self.dim}; build it alike, "
                "or leave the bank out of the state to start empty"
            )
        given = {name: state_dict.get(prefix + name) for name in self._buffers}
        self._check_kinds({name: value for name, value in given.items() if value is not None})
        self._check_counters(
            {
                name: value
                for name in ("cursor", "fill", "step")
                if (value := given[name]) is not None
            }
        )
        # Views handed out by read() and earlier state_dicts must survive a load: load into buffers
        # of our own.
        for name, buffer in self.named_buffers(recurse=False):
            setattr(self, name, buffer.clone())
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _check_kinds(self, tensors: dict[str, Any]) -> None:
        """Raise `ValueError` unless these have the types and shapes of this bank's buffers."""
        for name, value in tensors.items():
            own: Tensor = getattr(self, name)
            if not isinstance(value, Tensor) or value.is_meta:
                raise ValueError(f"{name} of the bank must be a tensor; the state was damaged")
            if name in ("cursor", "fill", "step"):
                continue
            if value.is_floating_point() != own.is_floating_point() or value.is_complex():
                raise ValueError(
                    f"{name} of the bank must be {own.dtype}, got {value.dtype}; the state was "
                    "damaged"
                )
            if value.shape != own.shape:
                raise ValueError(
                    f"{name} of the bank must have shape {list(own.shape)}, got "
                    f"{list(value.shape)}; the state was damaged"
                )
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise ValueError(f"{name} of the bank is not finite; the state was damaged")

    def _check_counters(self, counters: dict[str, Tensor]) -> None:
        """Raise `ValueError` unless these can be the counters of a bank of this capacity."""
        for name, value in counters.items():
            one = value.dtype == torch.int64 and value.dim() == 0
            if not one or not 0 <= int(value) < MOST_STEPS:
                raise ValueError(
                    f"{name} of the bank must be one int64 between 0 and 2^62, got {value}; the "
                    "state was damaged"
                )
        fill, cursor = (int(counters.get(name, getattr(self, name))) for name in ("fill", "cursor"))
        if not fill <= self.capacity or not fill <= cursor <= 2 * self.capacity:
            raise ValueError(
                f"a bank of capacity {self.capacity} cannot hold {fill} rows that end at row "
                f"{cursor}; the state was damaged, or belongs to another bank"
            )


MEASURE_EVERY = 10  # iterations; item vectors do not change their speed faster than that
DECAY = 0.8  # weight of earlier measurements after a new one


class DriftGauge(nn.Module):
    """Measures staleness on items that are in the batch and still in the bank: nothing is encoded.

    Such an item has a fresh vector v and a cached one v̂ of known age. The gauge keeps

        speed = Σ ‖v̂ − v‖ / ‖v‖  ÷  Σ age        (relative distance per iteration)

    over recent batches. Vectors that keep their direction of travel are `speed · age` away after
    `age` iterations, others less, so the newest `r` rows, of mean age r / 2B, are on average at
    most `speed · r / 2B` stale. Items that are often in a batch also move often, so the rest of the
    bank is fresher than what is measured: the gauge errs on the side of reading too little.

    State is in buffers: a resumed run reads as many rows as an unbroken one.
    """

    moved: Tensor  # Σ relative distance, older measurements weighted down
    aged: Tensor  # Σ age, likewise

    def __init__(self) -> None:
        super().__init__()
        for name in ("moved", "aged"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def observe(self, bank: MemoryBank, positives: Candidates) -> None:
        """Compare a batch with its items' rows in the bank, before it is enqueued itself."""
        if len(bank) == 0 or int(bank.step) % MEASURE_EVERY:
            return
        rows = bank.read()
        ids, order = positives.item_ids.sort()
        place = torch.searchsorted(ids, rows.item_ids).clamp_(max=len(ids) - 1)
        both = (ids[place] == rows.item_ids).nonzero().squeeze(1)
        fresh = positives.embeddings.detach()[order[place[both]]].float()
        gap = (rows.embeddings[both].float() - fresh).norm(dim=1)
        length = fresh.norm(dim=1).clamp(min=1e-12)
        # The rows of the last iteration have age 0 in the bank's count: one update ago.
        self.moved = DECAY * self.moved + (gap / length).double().sum()
        self.aged = DECAY * self.aged + (bank.ages()[both] + 1).double().sum()

    def readable_rows(self, limit: float, batch_size: int) -> int:
        """The most rows, newest first, that are on average at most `limit` stale.

        Nothing is readable before anything was measured.
        """
        aged, moved = float(self.aged), float(self.moved)
        if aged == 0:
            return 0
        iterations = 2 * limit * aged / max(moved, 1e-12)
        return int(min(iterations * batch_size, 2**31))
