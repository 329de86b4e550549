"""Every code block of the documentation runs, page by page, in order, on small data.

A block that cannot run has a comment with the reason, `<!-- not run: … -->`; `make test` lists them
at its end.
"""

import re
import tomllib

import pytest
from pages import PAGES, ROOT, RUN, SHELL, read
from runner import Runner
from sample_files import SampleFiles, copy_recipes

from crossbatch import recipes
from crossbatch.training import auto_model

BLOCKS = {page: read(page) for page in PAGES}
NOT_RUN = [block for blocks in BLOCKS.values() for block in blocks if block.not_run is not None]
COMMAND = re.compile(r"^(\$ |crossbatch [a-z]|make |pip install|python )", re.MULTILINE)


def page_parameters():
    """Pages with code; those with commands or sample files are slow."""
    for page, blocks in BLOCKS.items():
        kinds = {block.language for block in blocks if block.not_run is None}
        if kinds & RUN:
            marks = [pytest.mark.slow] if kinds & (SHELL | {"given"}) else []
            yield pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    return SampleFiles(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("page", list(page_parameters()))
def test_page_runs(page, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy_recipes(tmp_path)
    monkeypatch.setattr(recipes, "FOLDER", tmp_path / "recipes")
    monkeypatch.setitem(auto_model.AUTO, "race_seconds", 1.0)
    monkeypatch.setitem(auto_model.AUTO, "first_steps", 20)
    runner = Runner(files, monkeypatch)
    try:
        for block in BLOCKS[page]:
            runner.run(block, tmp_path)
    finally:
        runner.close()


@pytest.mark.parametrize("block", NOT_RUN, ids=lambda block: block.name)
def test_blocks_that_are_not_run_have_a_reason(block, record_property):
    assert len(block.not_run.split()) >= 2, f"{block.name}: give a reason"
    assert block.language in RUN, f"{block.name}: {block.language!r} is never run"
    record_property("not run", f"{block.name}: {block.not_run}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_name_their_language(page):
    for block in BLOCKS[page]:
        assert block.language, f"{block.name}: name the language of this block, or `text`"
        if block.language == "text":
            assert not COMMAND.search(block.code), f"{block.name}: commands are `sh` or `console`"
        if block.language == "toml":
            tomllib.loads(block.code)
