"""What the first call of a compiled function leaves behind."""

import gc

import pytest

from crossbatch import kernels
from crossbatch.kernels import compiler

pytestmark = pytest.mark.skipif(not kernels.available(), reason="needs numba")


def shifted(number):
    """Compiled below."""
    return number + 1


@pytest.fixture
def searching():
    """Garbage is searched for again after the test."""
    yield
    gc.enable()


@pytest.mark.parametrize("on", [True, False])
def test_python_searches_for_garbage_as_before(searching, on):
    (gc.enable if on else gc.disable)()
    function = compiler.compiled(shifted)
    assert function(1) == 2
    assert gc.isenabled() == on
    assert function(2) == 3


def test_what_the_user_froze_stays_frozen():
    gc.freeze()
    try:
        assert compiler.compiled(shifted)(1) == 2
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_an_error_of_the_compiler_is_raised_at_every_call(searching):
    function = compiler.compiled(shifted)
    for _ in range(2):
        with pytest.raises(Exception, match="No implementation"):
            function("text")
    assert gc.isenabled()
    assert function(1) == 2
