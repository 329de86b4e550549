"""A loss with its gradients at once, against the brute force in float64."""

import pytest
import torch

from crossbatch import kernels
from crossbatch.negatives import Candidates
from crossbatch.negatives.cross_batch import with_bank
from crossbatch.negatives.loss import NonFiniteLossError, row_losses

pytest.importorskip("numba")  # and with it NumPy

import numpy as np

from crossbatch.negatives import softmax_kernel
from crossbatch.negatives.direct import loss_and_gradients

pytestmark = pytest.mark.skipif(not kernels.available(), reason="needs numba")


def plain(problem, seed=0, **sizes):
    return problem(seed, dtype=torch.float32, requires_grad=False, **sizes)


def double(array):
    return torch.from_numpy(array).double()


@pytest.mark.parametrize("mask", ["both", "batch", "none"])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradients_are_the_definition(oracle, problem, mask, temperature, seed):
    given = plain(problem, seed)
    B = len(given.users)
    negatives = given.positives + given.cached + given.extra
    found = loss_and_gradients(
        given.users, given.positives, negatives, temperature=temperature, mask=mask
    )
    truth = oracle(
        given.users, given.positives, negatives,
        temperature=temperature, mask=mask, weight=torch.full((B,), 1 / B),
    )  # fmt: skip
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found.loss.double(), truth.losses.mean(), **close)
    torch.testing.assert_close(double(found.users), truth.users, **close)
    batch, extra = truth.negatives[:B], truth.negatives[-len(given.extra) :]
    torch.testing.assert_close(
        double(found.of(given.positives.embeddings)),
        truth.positives + batch,
        **close,
    )
    torch.testing.assert_close(double(found.of(given.extra.embeddings)), extra, **close)
    assert found.of(given.cached.embeddings) is None


def test_positives_that_are_no_negatives_get_their_pull(oracle, problem):
    given = plain(problem)
    B = len(given.users)
    found = loss_and_gradients(given.users, given.positives, given.extra)
    truth = oracle(given.users, given.positives, given.extra, weight=torch.full((B,), 1 / B))
    own = double(found.of(given.positives.embeddings))
    torch.testing.assert_close(own, truth.positives, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("among", [True, False], ids=["batch among negatives", "batch apart"])
@pytest.mark.parametrize("excluding", [False, True], ids=["all", "some"])
def test_many_rows_are_taken_in_blocks(among, excluding):
    """More scores than are kept at once; ids repeat from one block of rows to the next."""
    rng, B, M, d = torch.Generator().manual_seed(0), 301, 9_000, 6
    assert M > softmax_kernel.CACHED // softmax_kernel.FEWEST_ROWS
    assert B > 2 * softmax_kernel.FEWEST_ROWS

    def drawn(rows):
        vectors = torch.randn(rows, d, generator=rng)
        return (
            vectors,
            torch.randint(1, 200, (rows,), generator=rng),
            torch.rand(rows, generator=rng),
        )

    u, positives, extra = drawn(B)[0], Candidates(*drawn(B)), Candidates(*drawn(M))
    negatives = positives + extra if among else extra
    exclude = torch.rand(B, len(negatives), generator=rng) < 0.2 if excluding else None
    found = loss_and_gradients(u, positives, negatives, temperature=0.5, exclude=exclude)
    leaves = [x.double().requires_grad_() for x in (u, positives.embeddings, extra.embeddings)]
    own, others = (
        Candidates(leaf, given.item_ids, given.log_q.double())
        for leaf, given in zip(leaves[1:], (positives, extra), strict=True)
    )
    columns = own + others if among else others
    truth = row_losses(leaves[0] / 0.5, own, columns, exclude=exclude).mean()
    wanted = torch.autograd.grad(truth, leaves)
    torch.testing.assert_close(found.loss.double(), truth, rtol=1e-5, atol=1e-6)
    got = (found.users, found.of(positives.embeddings), found.of(extra.embeddings))
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(double(ours), theirs, rtol=1e-4, atol=1e-7)


def test_balanced_columns_push_harder(problem):
    """Against autograd over the definition, whose own test sums over every batch and bank."""
    given = plain(problem, B=6, M=9)
    u = given.users.clone().requires_grad_()
    v = given.positives.embeddings.clone().requires_grad_()
    positives = Candidates(v, given.positives.item_ids, given.positives.log_q)
    loss = row_losses(u, positives, with_bank(positives, given.cached, "balanced")).mean()
    truth = torch.autograd.grad(loss, (u, v))
    negatives = with_bank(given.positives, given.cached, "balanced")
    found = loss_and_gradients(given.users, given.positives, negatives)
    torch.testing.assert_close(torch.from_numpy(found.users), truth[0], rtol=1e-4, atol=1e-6)
    of_items = torch.from_numpy(found.of(given.positives.embeddings))
    torch.testing.assert_close(of_items, truth[1], rtol=1e-4, atol=1e-6)


def test_shares_of_the_loss_have_shares_of_its_gradients(problem):
    given = plain(problem)
    whole, half = (
        loss_and_gradients(given.users, given.positives, given.negatives) for _ in range(2)
    )
    half.divide_(2)
    np.testing.assert_allclose(half.users, whole.users / 2)
    v = given.positives.embeddings
    np.testing.assert_allclose(half.of(v), whole.of(v) / 2)


def test_what_is_not_finite_is_blamed(problem):
    given = plain(problem)
    given.users[2, 1] = float("nan")
    with pytest.raises(NonFiniteLossError, match="users hold 1 values"):
        loss_and_gradients(given.users, given.positives, given.negatives)
