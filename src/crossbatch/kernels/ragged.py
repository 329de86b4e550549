"""Histories without padding: rows `[P, w]` end to end, and `stops` `[B]` where each ends."""

from __future__ import annotations

import torch
from torch import Tensor

from crossbatch.kernels.compiler import Array, array, check_ids, compiled, usable


def real_entries(padded: Tensor) -> tuple[Tensor, Tensor]:
    """Entries of `padded` `[B, L]` int64 other than 0, end to end `[P]`, and `stops` `[B]`."""
    if padded.dim() == 2 and usable(ids=[padded]):
        entries, stops = padded.new_empty(padded.numel()), padded.new_empty(padded.shape[0])
        count = _real_entries(array(padded), entries.numpy(), stops.numpy())
        return entries[:count], stops
    mask = padded != 0
    return padded[mask], mask.sum(dim=1).cumsum(dim=0)


def lengths(stops: Tensor) -> Tensor:
    """`[B]` rows of each history."""
    return stops.diff(prepend=stops.new_zeros(1))


def pad(rows: Tensor, stops: Tensor) -> tuple[Tensor, Tensor]:
    """Rows `[B, L, w]` with zeros behind each history, and a mask `[B, L]` of the real ones."""
    check_stops(stops, rows.shape[0])
    sizes = lengths(stops)
    longest = max(int(sizes.max()), 1) if len(sizes) else 1
    mask = torch.arange(longest, device=stops.device) < sizes.unsqueeze(1)
    real = mask.flatten().nonzero().squeeze(1)  # [P]
    blank = rows.new_zeros(mask.numel(), rows.shape[1])
    return blank.index_copy_(0, real, rows).view(*mask.shape, rows.shape[1]), mask


def check_stops(stops: Tensor, num_rows: int) -> None:
    """Raise `ValueError` unless `stops` cut `num_rows` rows into histories."""
    check_ids(stops=stops)
    end = int(stops[-1]) if len(stops) else 0
    if end != num_rows or bool((lengths(stops) < 0).any()):
        raise ValueError(f"stops must rise from 0 and end at {num_rows}, the number of rows")


@compiled
def _real_entries(padded: Array, entries: Array, stops: Array) -> int:
    """Write the entries other than 0 of rows `[B, L]` and where each row's end; their number."""
    P = 0
    for b in range(padded.shape[0]):
        for t in range(padded.shape[1]):
            if padded[b, t] != 0:
                entries[P] = padded[b, t]
                P += 1
        stops[b] = P
    return P


@compiled
def are_stops(stops: Array, num_rows: int) -> bool:
    """`check_stops` for compiled functions, as an answer."""
    previous = 0
    for b in range(stops.shape[0]):
        if stops[b] < previous:
            return False
        previous = stops[b]
    return bool(previous == num_rows)
