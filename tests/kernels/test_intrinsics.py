"""What compiled functions are built from, against float64: products and exponentials."""

from functools import cache

import numpy as np
import pytest

from crossbatch import kernels

intrinsics = pytest.importorskip("crossbatch.kernels.intrinsics", reason="needs numba")
pytestmark = pytest.mark.skipif(not kernels.available(), reason="torch hides its products")

SHAPES = [(1, 1, 1), (5, 3, 2), (64, 7, 33), (128, 64, 130)]


def numbers(rows, columns, *, wide=0):
    """A view of float32 whose rows are `wide` numbers longer than its columns."""
    rng = np.random.default_rng(rows * 1000 + columns)
    return rng.standard_normal((rows, columns + wide)).astype(np.float32)[:, :columns]


@cache
def compiled(name):
    """A product as a function that can be called from here."""
    from numba import njit

    function = getattr(intrinsics, name)
    return njit(lambda a, b, out, keep: function(a, b, out, keep))


def multiplied(name, a, b, out, keep):
    """Write a product to `out`."""
    compiled(name)(a, b, out, keep)


@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
@pytest.mark.parametrize("wide", [0, 3])
@pytest.mark.parametrize("keep", [0, 1])
def test_products_are_those_of_float64(m, k, n, wide, keep):
    before = numbers(m, n, wide=wide)
    cases = {
        "product": (numbers(m, k, wide=wide), numbers(k, n, wide=wide), lambda a, b: a @ b),
        "product_t": (numbers(m, k, wide=wide), numbers(n, k, wide=wide), lambda a, b: a @ b.T),
        "t_product": (numbers(k, m, wide=wide), numbers(k, n, wide=wide), lambda a, b: a.T @ b),
    }
    for name, (a, b, truth) in cases.items():
        out = np.zeros((m, n + wide), dtype=np.float32)[:, :n]
        out[:] = before
        multiplied(name, a, b, out, keep)
        expected = truth(a.astype(np.float64), b.astype(np.float64)) + keep * before
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4, err_msg=name)


def test_what_was_there_is_not_read_unless_kept():
    out = np.full((2, 2), np.nan, dtype=np.float32)
    a = np.eye(2, dtype=np.float32)
    multiplied("product", a, a, out, 0)
    np.testing.assert_array_equal(out, np.eye(2))


def test_columns_beyond_a_view_are_left_alone():
    wide = np.full((4, 6), 7, dtype=np.float32)
    multiplied("product", numbers(4, 3), numbers(3, 2), wide[:, 1:3], 0)
    assert (wide[:, 0] == 7).all()
    assert (wide[:, 3:] == 7).all()


def test_nothing_times_something_is_nothing():
    out = np.zeros((0, 4), dtype=np.float32)
    multiplied("product", numbers(0, 3), numbers(3, 4), out, 0)
    assert out.shape == (0, 4)


def over(function):
    """The function of arrays; warnings of branches that are not taken are silenced."""
    from numba import vectorize

    return np.errstate(all="ignore")(vectorize(["float32(float32)"])(lambda x: function(x)))


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("exponential", np.exp),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("tanh", np.tanh),
    ],
)
def test_functions_are_those_of_float64(name, truth):
    small = np.geomspace(1e-6, 1, 500)
    x = np.concatenate([np.linspace(-86, 86, 4001), -small, small, [0.0]]).astype(np.float32)
    np.testing.assert_allclose(
        over(getattr(intrinsics, name))(x), truth(x.astype(np.float64)), rtol=1e-6, atol=1e-37
    )


def test_far_out():
    assert over(intrinsics.exponential)(np.float32(-np.inf)) == 0
    far = np.array([-1e30, -200, 200, 1e30], dtype=np.float32)
    np.testing.assert_allclose(over(intrinsics.sigmoid)(far), [0, 0, 1, 1], atol=1e-37)
    np.testing.assert_array_equal(over(intrinsics.tanh)(far), [-1, -1, 1, 1])


@pytest.mark.parametrize("name", ["exponential", "sigmoid", "tanh"])
def test_nan_stays_nan(name):
    assert np.isnan(over(getattr(intrinsics, name))(np.float32(np.nan)))


def test_parts_of_arrays_are_their_slices():
    from numba import njit

    a, row = numbers(6, 5, wide=2), numbers(1, 24)[0].copy()
    part_of, matrix_of, floats_of = intrinsics.part_of, intrinsics.matrix_of, intrinsics.floats_of
    found = njit(lambda a, row: (part_of(a, 1, 2, 3, 2) * 1, matrix_of(row, 4, 3, 5) * 1))(a, row)
    np.testing.assert_array_equal(found[0], a[1:4, 2:4])
    np.testing.assert_array_equal(found[1], row[4:19].reshape(3, 5))
    np.testing.assert_array_equal(njit(lambda row: floats_of(row, 7, 9) * 1)(row), row[7:16])


def test_what_is_written_to_a_part_is_in_the_array():
    from numba import njit

    part_of, floats_of = intrinsics.part_of, intrinsics.floats_of

    @njit
    def fill(a, row):
        part, some = part_of(a, 1, 2, 2, 2), floats_of(row, 3, 2)
        for i in range(2):
            some[i] = 1
            for j in range(2):
                part[i, j] = 1

    a, row = np.zeros((4, 6), dtype=np.float32), np.zeros(8, dtype=np.float32)
    fill(a[:, :5], row)
    expected = np.zeros_like(a)
    expected[1:3, 2:4] = 1
    np.testing.assert_array_equal(a, expected)
    np.testing.assert_array_equal(row, [0, 0, 0, 1, 1, 0, 0, 0])


def test_ranks_are_in_the_order_of_the_floats():
    from numba import vectorize

    rank, of_rank = intrinsics.rank, intrinsics.of_rank
    x = np.array([-np.inf, -3e38, -1.5, -1e-30, -0.0, 0.0, 1e-30, 2.0, np.inf], dtype=np.float32)
    ranks = vectorize(["int32(float32)"])(lambda value: rank(value))(x)
    assert (np.diff(ranks.astype(np.int64)) > 0).all()
    np.testing.assert_array_equal(vectorize(["float32(int32)"])(lambda r: of_rank(r))(ranks), x)
