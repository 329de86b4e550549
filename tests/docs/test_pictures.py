"""The drawings in docs/pictures are up to date with the script that makes them."""

import importlib.util

import pytest
from pages import ROOT

PICTURES = ROOT / "docs" / "pictures"
SPEC = importlib.util.spec_from_file_location("draw", PICTURES / "draw.py")
draw = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(draw)


@pytest.mark.parametrize("name", draw.DRAWINGS)
def test_drawing_is_up_to_date(name):
    assert (PICTURES / name).read_text(encoding="utf-8") == draw.DRAWINGS[name]()
