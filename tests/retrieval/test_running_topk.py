"""Streamed top-k lists against a sort, with the compiled scan of tiles and without."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.kernels import topk_scan
from crossbatch.retrieval import running_topk
from crossbatch.retrieval.running_topk import RunningTopK


def streamed(tiles, k, group):
    """Lists and ids after tiles `[n, K, B]`, merged after each but every third."""
    best = RunningTopK(tiles[0].shape[2], k, like=tiles[0])
    seen = 0
    for number, tile in enumerate(tiles):
        best.scan(tile, group, first_id=seen + 1)
        seen += len(tile)
        if number % 3 != 2:
            best.merge(items_seen=seen)
    best.merge(items_seen=seen)
    return best.scores, best.item_ids


@settings(deadline=None, max_examples=60)
@given(
    K=st.integers(1, 4),
    k=st.integers(1, 40),
    group=st.sampled_from([1, 4, 16]),
    values=st.sampled_from([3, 1000]),  # few: most scores are equal
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 10_000),
)
def test_both_scans_are_a_sort(K, k, group, values, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(values, (5 * 32, K, 20), generator=generator).to(dtype)
    scores[torch.rand(scores.shape, generator=generator) < 0.1] = -torch.inf
    tiles = scores.split(32)
    found, ids = streamed(tiles, k, group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_topk, "scores_above", topk_scan.definition)
        plain, plain_ids = streamed(tiles, k, group)
    assert torch.equal(found, plain)
    assert torch.equal(ids, plain_ids)
    best = scores.amax(dim=1).T  # [B, n]
    expected, order = best.sort(dim=1, descending=True, stable=True)
    assert torch.equal(found, expected[:, :k])
    real = expected[:, :k] > -torch.inf
    assert torch.equal(ids[real], order[:, :k][real] + 1)


def test_every_item_beats_the_last():
    tiles = torch.arange(96.0).view(3, 32, 1, 1).expand(3, 32, 1, 20)
    found, ids = streamed([tile.contiguous() for tile in tiles], 5, 4)
    assert torch.equal(ids, torch.arange(96, 91, -1).expand(20, 5))
    assert torch.equal(found, torch.arange(95.0, 90.0, -1).expand(20, 5))
