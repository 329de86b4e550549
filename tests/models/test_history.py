import pytest
import torch

from crossbatch.models.history import drop_positions


def test_dropped_histories_are_ordered_subsets_padded_on_the_right(make_history):
    torch.manual_seed(0)
    history = make_history(B=200, L=9)
    dropped = drop_positions(history, 0.6)
    assert dropped.shape == history.shape
    for before, after in zip(history.tolist(), dropped.tolist(), strict=True):
        items = [item for item in after if item]
        assert after == items + [0] * (9 - len(items))
        assert bool(items) == any(before)  # never all of them
        remaining = iter(before)
        assert all(item in remaining for item in items)  # a subsequence


def test_share_that_is_dropped():
    torch.manual_seed(0)
    history = torch.ones(2000, 50, dtype=torch.long)
    share = (drop_positions(history, 0.3) == 0).float().mean().item()
    assert share == pytest.approx(0.3, abs=0.01)


def test_every_position_is_as_likely_to_stay():
    torch.manual_seed(0)
    history = torch.arange(1, 5).expand(20_000, 4)
    dropped = drop_positions(history, 0.9)
    stays = torch.bincount(dropped.flatten(), minlength=5)[1:] / 20_000
    # One survivor at least: 1 - P(all dropped) stay as drawn, else the largest draw does.
    expected = 0.1 + 0.9**4 / 4
    assert stays.tolist() == pytest.approx([expected] * 4, abs=0.01)
