"""The compiled scan of a tile of scores against its torch definition, and what it refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.kernels import topk_scan
from crossbatch.kernels.topk_scan import definition, scores_above


@settings(deadline=None, max_examples=60)
@given(
    groups=st.integers(0, 6),
    group=st.sampled_from([1, 4, 16]),
    K=st.integers(1, 4),
    B=st.sampled_from([0, 1, 15, 16, 40]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    strided=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_the_compiled_scan_finds_what_the_definition_finds(
    groups, group, K, B, dtype, strided, seed
):
    generator = torch.Generator().manual_seed(seed)
    n = groups * group
    shape = (B, K, n) if strided else (n, K, B)
    tile = torch.randint(6, shape, generator=generator).to(dtype)
    tile[torch.rand(shape, generator=generator) < 0.1] = -torch.inf
    tile = tile.permute(2, 1, 0) if strided else tile
    threshold = torch.randint(-1, 6, (2 * B,), generator=generator).to(dtype)[::2]
    found, expected = scores_above(tile, group, threshold), definition(tile, group, threshold)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    users, items, scores = found
    best = tile.amax(dim=1)  # [n, B]
    assert len(users) == int((best > threshold).sum())
    assert torch.equal(scores, best[items, users])


def test_more_than_there_is_room_for_is_found_too(monkeypatch):
    monkeypatch.setattr(topk_scan, "MAX_FOUND", 8)
    users, _, _ = scores_above(torch.ones(32, 1, 20), 4, torch.zeros(20))
    assert len(users) == 640


@pytest.mark.parametrize(
    ("tile", "group", "threshold"),
    [
        (torch.zeros(8, 20), 4, torch.zeros(20)),
        (torch.zeros(8, 1, 20, dtype=torch.int64), 4, torch.zeros(20)),
        (torch.zeros(8, 0, 20), 4, torch.zeros(20)),
        (torch.zeros(9, 1, 20), 4, torch.zeros(20)),
        (torch.zeros(8, 1, 20), 0, torch.zeros(20)),
        (torch.zeros(8, 1, 20), 4, torch.zeros(19)),
        (torch.zeros(8, 1, 20), 4, torch.zeros(20, dtype=torch.float64)),
    ],
)
def test_what_does_not_fit_is_refused(tile, group, threshold):
    with pytest.raises(ValueError, match=r"tile|threshold"):
        scores_above(tile, group, threshold)
