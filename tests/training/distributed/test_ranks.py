"""How the rows of a batch are divided among ranks."""

from hypothesis import given
from hypothesis import strategies as st

from crossbatch.training.distributed.ranks import Ranks


@given(total=st.integers(0, 500), size=st.integers(1, 40))
def test_shares_in_order_are_the_whole(total, size):
    rows = list(range(total))
    shares = [rows[Ranks(rank, size).share(total)] for rank in range(size)]
    assert [row for share in shares for row in share] == rows
    longest = -(-total // size)
    full = [share for share in shares if share]
    assert all(len(share) == longest for share in full[:-1])
