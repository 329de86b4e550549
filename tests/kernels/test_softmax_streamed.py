"""Many columns without a gradient: the same softmax in float64, for tiles of a few columns."""

import pytest
import torch

from crossbatch import kernels
from crossbatch.kernels import parallel, softmax_streamed
from crossbatch.kernels.sampled_softmax import definition, sampled_softmax
from crossbatch.kernels.softmax_blocks import Columns
from crossbatch.training.threads import using

pytestmark = pytest.mark.skipif(not kernels.available(), reason="needs numba")
B, D, BANK, DRAWN = 7, 6, 23, 5


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(softmax_streamed, "FEWEST_COLUMNS", 1)
    monkeypatch.setattr(softmax_streamed, "ROWS", 4)
    monkeypatch.setattr(softmax_streamed, "TILE", 8)
    monkeypatch.setattr(parallel, "LEAST_NUMBERS", 1)


def columns_of(own, exclude):
    """Drawn items, the batch and a bank, of few ids, so that many columns are masked."""
    N = DRAWN + B + BANK
    ids = torch.randint(1, 9, (N,))
    return Columns(
        3 * torch.randn(N),
        torch.randn(B) if own is None else torch.zeros(B),
        ids[DRAWN : DRAWN + B],
        ids,
        torch.rand(B, N) < 0.3 if exclude else None,
        own,
        (1.0, 1.0, 1.0) if own is not None else (1.0, 2.0, 1.0),
    )


def check(columns, queries, log_weights=None, stops=None, *, mean=True, scale=1.0):
    """Losses and gradients against the definition in float64."""
    v, drawn = torch.randn(B, D), torch.randn(DRAWN, D)
    bank = scale * torch.randn(BANK, D)
    leaves = [queries, v, *([] if log_weights is None else [log_weights])]
    found, truth = [], []
    for results, dtype in ((found, torch.float32), (truth, torch.float64)):
        given = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
        u, own, *weights = given
        groups = [drawn.to(dtype), own, bank.to(dtype)]
        arguments = [columns, u, own, groups, weights[0] if weights else None, stops]
        if dtype == torch.float32:
            losses = sampled_softmax(*arguments, mean=mean)
        else:
            losses = definition(*arguments)
            losses = losses.mean() if mean else losses
        weighted = losses * torch.arange(1.0, 1.0 + losses.numel(), dtype=dtype).view_as(losses)
        results += [losses, *torch.autograd.grad(weighted.sum(), given)]
    for ours, theirs in zip(found, truth, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("own", [DRAWN, None])
@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_one_query_a_row(own, exclude, mean, threads):
    with using(threads):
        check(columns_of(own, exclude), torch.randn(B, D), mean=mean)


@pytest.mark.parametrize("own", [DRAWN, None])
@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_several_queries_a_row(own, exclude, threads):
    stops = torch.tensor([1, 3, 9, 10, 12, 13, 15])  # one row has more than a block
    with using(threads):
        check(columns_of(own, exclude), torch.randn(15, D), torch.randn(15), stops)


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_whose_columns_are_all_masked(threads):
    columns = columns_of(None, exclude=True)
    columns.exclude[2] = True
    columns.exclude[4, DRAWN + B :] = True
    columns.exclude[5, DRAWN + B : DRAWN + B + 8] = True  # the first tile
    with using(threads):
        check(columns, torch.randn(B, D))


def test_large_logits():
    check(columns_of(DRAWN, exclude=False), 20 * torch.randn(B, D), scale=5.0)


def test_losses_alone():
    columns, u, v = columns_of(None, exclude=True), torch.randn(B, D), torch.randn(B, D)
    groups = [torch.randn(DRAWN, D), v, torch.randn(BANK, D)]
    truth = definition(columns, u.double(), v.double(), [each.double() for each in groups])
    torch.testing.assert_close(sampled_softmax(columns, u, v, groups).double(), truth)


def test_many_columns_take_this_way(monkeypatch):
    taken = []
    real = softmax_streamed.streamed

    def spy(columns, *arguments, **options):
        taken.append(len(columns.column_keys))
        return real(columns, *arguments, **options)

    monkeypatch.setattr(softmax_streamed, "streamed", spy)
    u, v = (torch.randn(B, D, requires_grad=True) for _ in range(2))
    groups = [torch.randn(DRAWN, D), v, torch.randn(BANK, D)]
    columns = columns_of(DRAWN, exclude=False)
    sampled_softmax(columns, u, v, groups, mean=True)
    monkeypatch.setattr(softmax_streamed, "FEWEST_COLUMNS", DRAWN + BANK + 1)
    sampled_softmax(columns, u, v, groups, mean=True)
    assert taken == [DRAWN + BANK]
