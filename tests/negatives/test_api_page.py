"""Every Python block of the library's page runs, in order, as a reader would paste them."""

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "negatives-api.md"


def test_every_block_of_the_page_runs():
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for block in blocks:
            exec(compile(block, PAGE.name, "exec"), names)
    assert 0.0 < float(printed.getvalue()) < 1.0  # the share of the bank that the page prints
