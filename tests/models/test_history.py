import pytest
import torch

from crossbatch.kernels.ragged import real_entries
from crossbatch.models.history import drop_items


def test_dropped_items_are_blanked_and_never_all_of_them(make_history):
    torch.manual_seed(0)
    history = make_history(B=200, L=9)
    dropped = drop_items(history, 0.6)
    assert dropped.shape == history.shape
    for before, after in zip(history.tolist(), dropped.tolist(), strict=True):
        assert all(item in (0, earlier) for item, earlier in zip(after, before, strict=True))
        assert any(after) == any(before)


def test_real_items_end_to_end():
    history = torch.tensor([[3, 0, 5], [0, 0, 0], [1, 2, 0]])
    items, stops = real_entries(history)
    assert items.tolist() == [3, 5, 1, 2]
    assert stops.tolist() == [2, 2, 4]


def test_share_that_is_dropped():
    torch.manual_seed(0)
    history = torch.ones(2000, 50, dtype=torch.long)
    share = (drop_items(history, 0.3) == 0).float().mean().item()
    assert share == pytest.approx(0.3, abs=0.01)


def test_every_position_is_as_likely_to_stay():
    torch.manual_seed(0)
    history = torch.arange(1, 5).expand(20_000, 4)
    dropped = drop_items(history, 0.9)
    stays = torch.bincount(dropped.flatten(), minlength=5)[1:] / 20_000
    # One survivor at least: 1 - P(all dropped) stay as drawn, else the largest draw does.
    expected = 0.1 + 0.9**4 / 4
    assert stays.tolist() == pytest.approx([expected] * 4, abs=0.01)
