"""Which items stand near each other in sequences, and how much more often than by chance."""

from __future__ import annotations

from math import exp, log
from typing import TYPE_CHECKING, Any, NamedTuple

from crossbatch.kernels.compiler import Array, compiled, np, usable

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW = 10  # places to either side that are near
DECAY = 0.2  # a pair counts e^(−DECAY) times as much with each place between its items
DOUBT = 1.0  # pairs of this weight count half: what was seen once may be chance
ONE = 1 << 24  # weight 1: sums of integers are the same in any order
WEIGHTS = tuple(round(ONE * exp(-DECAY * between)) for between in range(WINDOW))
PAIRS = 1 << 20  # items or pairs that NumPy handles at once: bounds the memory at some 50 MB
WORTH_COMPILING = 1 << 18  # items in sequences


class Nearest(NamedTuple):
    """The pairs that are among the first of an item, rows in CSR form.

    The weight of a pair is its positive pointwise mutual information, less where it is rare. Equals
    stand in ascending order of the other item. The columns of a row are in any order.
    """

    ends: Array  # int64 [n]
    columns: Array  # int32
    values: Array  # float32
    least: Array  # float32 [n] weight of an item's last pair, 0 where all are kept
    last: Array  # int32 [n] the other item of that pair


def nearest(offsets: Array, items: Array, n: int, most: int) -> Nearest:
    """The first `most` pairs of each item, those of positive information.

    Args:
        offsets: `[U + 1]`; user u's sequence is `items[offsets[u]:offsets[u + 1]]`.
        items: Item ids of all sequences, oldest first, below n.
        n: Number of ids.
        most: Pairs of an item.
    """
    if len(items) < WORTH_COMPILING or not usable():
        return definition(offsets, items, n, most)
    if not (int(items.min()) >= 0 and int(items.max()) < n and _ascend(offsets, len(items))):
        raise ValueError(f"items must be ids below {n}, and offsets must split them")
    starts = np.concatenate([[0], np.cumsum(np.bincount(items, minlength=n))])
    kept = np.empty(n * most, np.int32), np.empty(n * most, np.float32)
    ends, least, last = np.empty(n, np.int64), np.zeros(n, np.float32), np.zeros(n, np.int32)
    whole = np.int32 if len(items) < 2**31 else np.int64
    near = _near(offsets, items, starts, np.empty(len(items), whole), np.array(WEIGHTS))
    _fill(items, starts, *near, np.array(WEIGHTS), most, ends, *kept, least, last)
    columns, values = (part[: ends[-1]] for part in kept)
    return Nearest(ends, columns, values, least, last)


def _ascend(offsets: Array, total: int) -> bool:
    return bool(offsets[0] == 0 and offsets[-1] == total and (np.diff(offsets) >= 0).all())


@compiled
def _near(offsets: Array, items: Array, starts: Array, places: Array, weights: Array) -> Any:
    """Where each item stands; how many items are near before and after a place; sums of weights."""
    window = weights.shape[0]
    degrees, next_place = np.zeros(starts.shape[0] - 1, np.int64), starts.copy()
    before, after = np.empty(items.shape[0], np.uint8), np.empty(items.shape[0], np.uint8)
    for user in range(offsets.shape[0] - 1):
        for place in range(offsets[user], offsets[user + 1]):
            item = items[place]
            places[next_place[item]] = place
            next_place[item] += 1
            before[place] = min(window, place - offsets[user])
            after[place] = min(window, offsets[user + 1] - 1 - place)
            for distance in range(1, before[place] + 1):
                other = items[place - distance]
                if other != item:
                    degrees[item] += weights[distance - 1]
                    degrees[other] += weights[distance - 1]
    return places, before, after, degrees


@compiled
def _fill(
    items: Array,
    starts: Array,
    places: Array,
    before: Array,
    after: Array,
    degrees: Array,
    weights: Array,
    most: int,
    ends: Array,
    columns: Array,
    values: Array,
    least: Array,
    last: Array,
) -> None:
    """Count the pairs of one item after the other, and keep the first `most` of each."""
    n, count, total = ends.shape[0], 0, 0.0
    for item in range(n):
        total += degrees[item]
    sums, others = np.zeros(n, np.int64), np.empty(n, np.int32)
    for item in range(n):
        distinct, start = 0, count
        for p in range(starts[item], starts[item + 1]):
            place = np.int64(places[p])
            for distance in range(-np.int64(before[place]), np.int64(after[place]) + 1):
                other = items[place + distance]
                if other != item:
                    if sums[other] == 0:
                        others[distinct] = other
                        distinct += 1
                    sums[other] += weights[abs(distance) - 1]
        for position in range(distinct):
            other = others[position]
            common = sums[other] / ONE
            sums[other] = 0
            chance = (degrees[item] / ONE) * (degrees[other] / ONE)
            value = np.float32(log(common * (total / ONE) / chance) * common / (common + DOUBT))
            if value <= 0:
                continue
            if count < start + most:
                columns[count], values[count] = other, value
                count += 1
                if count == start + most:
                    for node in range(most // 2 - 1, -1, -1):
                        _sink(columns, values, start, most, node)
            elif value > values[start] or (value == values[start] and other < columns[start]):
                columns[start], values[start] = other, value
                _sink(columns, values, start, most, 0)
        ends[item] = count
        if count == start + most:
            least[item], last[item] = values[start], columns[start]


@compiled
def _sink(columns: Array, values: Array, start: int, size: int, node: int) -> None:
    """Restore the heap below a node; the last pair is at its top."""
    column, value = columns[start + node], values[start + node]
    while 2 * node + 1 < size:
        child = 2 * node + 1
        here = start + child
        if child + 1 < size and (
            values[here + 1] < values[here]
            or (values[here + 1] == values[here] and columns[here + 1] > columns[here])
        ):
            child, here = child + 1, here + 1
        if value < values[here] or (value == values[here] and column > columns[here]):
            break
        columns[start + node], values[start + node] = columns[here], values[here]
        node = child
    columns[start + node], values[start + node] = column, value


def definition(offsets: Array, items: Array, n: int, most: int) -> Nearest:
    """As `nearest`, by NumPy."""
    bounds = np.asarray(offsets, np.int64)
    degrees = _degrees(bounds, items, n) / ONE
    total, count = degrees.sum(), 0
    columns, values = np.empty(n * most, np.int32), np.empty(n * most, np.float32)
    counts, last = np.zeros(n, np.int64), np.zeros(n, np.int32)
    for row, other, sums in _counted(bounds, items, n):
        common = sums / ONE
        information = np.log(common * total / (degrees[row] * degrees[other]))
        information = (information * common / (common + DOUBT)).astype(np.float32)
        kept = np.flatnonzero(information > 0)
        row, other, information = row[kept], other[kept], information[kept]
        # Rows ascend: the sort stays within them.
        order = np.lexsort((other, -information, row))
        order = order[np.arange(len(row)) - np.searchsorted(row, row) < most]
        new, row = slice(count, count + len(order)), row[order]
        columns[new], values[new], count = other[order], information[order], new.stop
        counts[row] = np.searchsorted(row, row, side="right") - np.searchsorted(row, row)
        last[row] = columns[new]
    ends, full = np.cumsum(counts), counts == most
    least = np.where(full, values[ends - 1], np.float32(0))
    return Nearest(ends, columns[:count], values[:count], least, np.where(full, last, 0))


def _degrees(offsets: Array, items: Array, n: int) -> Array:
    """`[n]` weights of all pairs that each item is in."""
    degrees, start = np.zeros(n, np.int64), 0
    while start < len(offsets) - 1:  # a run of whole sequences
        until = int(np.searchsorted(offsets, offsets[start] + PAIRS, side="right")) - 1
        ends = offsets[start : max(until, start + 1) + 1]
        some = items[ends[0] : ends[-1]].astype(np.int64)
        last = np.repeat(ends[1:] - ends[0], np.diff(ends))
        for distance, weight in enumerate(WEIGHTS, start=1):
            near = np.flatnonzero(np.arange(len(some)) + distance < last)
            a, b = some[near], some[near + distance]
            differ = a != b
            degrees += weight * np.bincount(a[differ], minlength=n)
            degrees += weight * np.bincount(b[differ], minlength=n)
        start += len(ends) - 1
    return degrees


def _counted(offsets: Array, items: Array, n: int) -> Iterator[tuple[Array, Array, Array]]:
    """Yield, for runs of items, pairs of them and other items, ascending, and their weights."""
    lengths, weights = np.diff(offsets), np.array(WEIGHTS)
    first, last = np.repeat(offsets[:-1], lengths), np.repeat(offsets[1:], lengths)
    order = np.argsort(items, kind="stable")
    by_item = np.concatenate([[0], np.cumsum(np.bincount(items, minlength=n))])
    distances = np.concatenate([np.arange(-WINDOW, 0), np.arange(1, WINDOW + 1)])
    item = 0
    while item < n:
        until = np.searchsorted(by_item, by_item[item] + PAIRS // len(distances), side="right") - 1
        until = min(max(int(until), item + 1), n)
        places = order[by_item[item] : by_item[until]]
        others = places[:, None] + distances
        inside = (others >= first[places, None]) & (others < last[places, None])
        row, which = np.nonzero(inside)
        own, other = (items[at].astype(np.int64) for at in (places[row], others[inside]))
        distance = np.abs(distances[which]) - 1
        differ = own != other
        # As one number, which sorts faster.
        keys = (own[differ] * n + other[differ]) * WINDOW + distance[differ]
        keys, distance = np.divmod(np.sort(keys), WINDOW)
        begins = np.flatnonzero(np.diff(keys, prepend=-1))
        if len(begins):
            yield *np.divmod(keys[begins], n), np.add.reduceat(weights[distance], begins)
        item = until
