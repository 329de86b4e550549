"""Training users that an earlier release left out of the arrays of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crossbatch.errors import DataError

if TYPE_CHECKING:
    from crossbatch.data.dataset.memory_mapped import Dataset


def with_short_users(
    dataset: Dataset, stored_users: np.ndarray, stored_ends: np.ndarray, left_out: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return training users and the ends of their training parts, short ones included.

    Earlier releases left out the users with up to `prepared_min_history` items; the sequences are
    split again to find them.
    """
    from crossbatch.data.prepare.splits import (  # which imports this package
        SPLITS,
        Sequences,
        SplitOptions,
    )

    options, first_valid = dataset.manifest["options"], len(stored_users) + left_out
    try:
        if not 0 < first_valid <= dataset.num_users:
            raise ValueError(f"{first_valid} training users of {dataset.num_users}")
        sequences = Sequences(dataset.offsets, dataset.times, (first_valid, first_valid))
        shares = SplitOptions(options["valid_share"], options["test_share"])
        split = SPLITS[options["split"]](sequences, shares)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{dataset.path} has a broken manifest ({error}): prepare it again"
        ) from None
    lengths = split.train_ends - dataset.offsets[split.train_users]
    known = lengths > dataset.prepared_min_history
    users, ends = split.train_users, split.train_ends
    if not (
        np.array_equal(users[known], stored_users) and np.array_equal(ends[known], stored_ends)
    ):
        raise DataError(
            f"{dataset.path} leaves out users with up to {dataset.prepared_min_history} items, and "
            "its arrays do not say which: prepare it again"
        )
    return users[lengths > 1], ends[lengths > 1]
