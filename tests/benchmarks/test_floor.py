"""Operations counted by the lower bound, compared with torch's counter and sums by hand."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from crossbatch.kernels import switched_off
from crossbatch.models import SASRec
from crossbatch.models.history import History
from measure.floor import USER_TOWERS, Shape, Speed, Work, columns, work
from peers.samples import BATCH_SIZE, DIM, Samples
from peers.two_tower import TwoTower

SHAPE = Shape()
POSITIONS = 1_000


def samples():
    rng = np.random.default_rng(0)
    items = rng.integers(1, 51, size=BATCH_SIZE)
    history = rng.integers(1, 51, size=(BATCH_SIZE, 4))
    return Samples(history, items, np.arange(51) % 7)


def counted(negatives):
    """Products that autograd makes for YouTube DNN and so many more encoded columns."""
    data = samples()
    model = TwoTower(data, sparse=False)
    ids = torch.from_numpy(data.items)
    with FlopCounterMode(display=False) as counter:
        v = model.items(torch.cat([ids, torch.ones(negatives, dtype=torch.int64)]))
        u = model.users(torch.from_numpy(data.history))
        torch.logsumexp(u @ v.T, dim=1).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(("sampler", "negatives"), [("in_batch", 0), ("mixed", 1152)])
def test_products_are_those_of_autograd(sampler, negatives):
    flop = work("youtube_dnn", sampler, SHAPE, POSITIONS, rows=1).flop
    pooling = 4 * POSITIONS * 2 * DIM  # sums, no products
    assert sum(flop.values()) - pooling == counted(negatives)


def test_cached_columns_need_no_gradient_of_their_own():
    in_batch = work("youtube_dnn", "in_batch", SHAPE, POSITIONS, rows=1).flop
    cross_batch = work("youtube_dnn", "cross_batch", SHAPE, POSITIONS, rows=1).flop
    more = {name: cross_batch[name] - in_batch[name] for name in in_batch}
    products = 2 * 128 * 2432 * 64
    assert more.pop("logits") == more.pop("user gradient") == products
    assert not any(more.values())


def test_uniform_scores_its_own_columns_and_encodes_the_positives_too():
    assert columns("uniform", SHAPE).encoded == 1280 + 128
    assert columns("uniform", SHAPE).total == columns("uniform", SHAPE).live == 1280


def test_gru_by_hand():
    """Three gates of input and state, thrice each; the first state of each row is zero."""
    flop = work("gru4rec", "in_batch", SHAPE, POSITIONS, rows=1).flop["user tower"]
    assert flop == 3 * 2 * (1_000 * 128 + (1_000 - 128) * 64) * 192


def test_mind_grows_with_interests_and_rounds():
    def flop(**sizes):
        return work("mind", "in_batch", Shape(**sizes), POSITIONS, rows=1).flop["user tower"]

    assert flop(K=2) < flop(K=4) < flop(K=8)
    # One more round: a sum and an agreement for each interest and position; the map is made once.
    assert flop(iterations=4) - flop(iterations=3) == 2 * 2 * 4 * POSITIONS * 64


@pytest.mark.parametrize("blocks", [1, 3])
def test_dense_products_of_sasrec_are_those_of_its_layers(blocks):
    """What autograd makes of the tower's linear layers; attention by hand, of every visible pair.

    Its first layer has inputs that need a gradient, as the rows of a table do.
    """
    B, n, d, w = 3, 4, 6, 12
    tower = SASRec(d, input_dim=w, blocks=blocks, dropout=0.0)
    items = torch.randn(B * n, w, requires_grad=True)
    history = History(lambda: items, torch.arange(1, B + 1) * n)
    with switched_off(), FlopCounterMode(display=False) as counter:
        tower(history).sum().backward()
    squares = (blocks - 1) * n * n + n  # torch multiplies with what is not visible, too
    pairs = (blocks - 1) * n * (n + 1) / 2 + n
    attention = 3 * 2 * 2 * d * B
    shape = Shape(B=B, d=d, blocks=blocks)
    flop = work("sasrec", "in_batch", shape, B * n, rows=1).flop["user tower"]
    assert flop - attention * pairs == counter.get_total_flops() - attention * squares


def test_sasrec_counts_at_least_the_pairs_of_equal_histories():
    flop, exponentials = USER_TOWERS["sasrec"](Shape(B=2, d=1, blocks=2), 10)
    assert exponentials == 2 * 15 + 10
    assert flop == 3 * 2 * (10 * 2 + 8 * 10 + 4 * 2 + 2 * 40)


def test_recency_pooling_adds_the_gradient_of_its_weights():
    flop, exponentials = USER_TOWERS["recency"](SHAPE, POSITIONS)
    assert flop - USER_TOWERS["youtube_dnn"](SHAPE, POSITIONS)[0] == 2 * POSITIONS * SHAPE.w
    assert exponentials == POSITIONS


def test_exponentials_are_logits_gates_and_routing_weights():
    def exponentials(model):
        return work(model, "in_batch", SHAPE, POSITIONS, rows=1).exponentials

    assert exponentials("youtube_dnn") == 128 * 128
    assert exponentials("gru4rec") == 128 * 128 + 3 * 64 * POSITIONS
    assert exponentials("mind") == 128 * 128 + 3 * 4 * POSITIONS


def test_the_lower_bound_is_the_sum_of_its_parts():
    least = Work({"a": 3e9, "b": 1e9}, rows=1_000, d=64, exponentials=1e6)
    seconds = least.seconds(
        Speed(flop_per_second=1e9, bytes_per_second=1.536e6, seconds_per_exp=1e-6)
    )
    assert seconds == pytest.approx(
        {"matrix products": 4.0, "rows": 1.0, "exponentials": 1.0, "floor": 6.0}
    )
