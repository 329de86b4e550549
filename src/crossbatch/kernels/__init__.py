"""What functions compiled by numba share. They are optional: `available` says if there are any."""

from functools import cache
from importlib.util import find_spec

HAS_NUMBA = find_spec("numba") is not None


@cache
def available() -> bool:
    """Whether numba is installed and compiled functions can reach torch's matrix products."""
    if not HAS_NUMBA:
        return False
    from crossbatch.kernels.products import found

    return found()
