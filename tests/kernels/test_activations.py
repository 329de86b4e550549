"""Exponential functions of compiled loops against float64."""

import numpy as np
import pytest

pytest.importorskip("numba")

from numba import vectorize

from crossbatch.kernels import activations


def over(function):
    """The function of arrays; which branch was worked out in vain does not matter."""
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
        over(getattr(activations, name))(x), truth(x.astype(np.float64)), rtol=1e-6, atol=1e-37
    )


def test_far_out():
    assert over(activations.exponential)(np.float32(-np.inf)) == 0
    far = np.array([-1e30, -200, 200, 1e30], dtype=np.float32)
    np.testing.assert_allclose(over(activations.sigmoid)(far), [0, 0, 1, 1], atol=1e-37)
    np.testing.assert_array_equal(over(activations.tanh)(far), [-1, -1, 1, 1])


@pytest.mark.parametrize("name", ["exponential", "sigmoid", "tanh"])
def test_what_is_no_number_stays_none(name):
    assert np.isnan(over(getattr(activations, name))(np.float32(np.nan)))
