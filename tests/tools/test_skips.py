"""The table of skipped tests: what ran somewhere is not in it, and a new skip is an error."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("skips", Path(__file__).parents[2] / "tools/skips.py")
assert SPEC
assert SPEC.loader
skips = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(skips)
MAIN = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_one"/>
<testcase classname="tests.a" name="test_spark"><skipped message="no Spark"/></testcase>
<testcase classname="tests.a" name="test_cuda[1]"><skipped message="needs CUDA"/></testcase>
<testcase classname="" name="tests.page"><skipped message="collection skipped"
>('/x/page.py', 3, 'Skipped: no Chromium')</skipped></testcase>
<testcase classname="tests.docs" name="test_block"><properties>
<property name="not run" value="README.md:3: installs packages: pip"/></properties></testcase>
</testsuite></testsuites>"""
CLUSTER = """<testsuites><testsuite><testcase classname="tests.a" name="test_spark"/>
<testcase classname="tests.a" name="test_one"><skipped message="not here"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def reports(tmp_path: Path) -> list[str]:
    paths = [tmp_path / "main.xml", tmp_path / "cluster.xml"]
    for path, text in zip(paths, (MAIN, CLUSTER), strict=True):
        path.write_text(text)
    return [str(path) for path in paths]


def judged(
    reports: list[str], allowed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> int:
    path = tmp_path / "allowed.toml"
    path.write_text(allowed)
    monkeypatch.setattr(skips, "ALLOWED", path)
    code: int = skips.main(reports)
    return code


def test_what_one_environment_ran_is_not_listed(
    reports: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    allowed = '"tests.a::test_cuda*" = "a GPU"\n"tests.page*" = "Chromium"\n'
    assert judged(reports, allowed, tmp_path, monkeypatch) == 0
    out = capsys.readouterr().out
    assert "README.md:3  installs packages: pip\n" in out
    assert "2 tests were skipped in every environment" in out
    assert "    1  tests.a     needs CUDA\n" in out
    assert "    1  tests.page  no Chromium\n" in out
    assert "Spark" not in out
    assert "to run them: Chromium\n  to run them: a GPU\n" in out


def test_a_skip_that_is_not_listed_is_an_error(
    reports: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert judged(reports, '"tests.page*" = "Chromium"\n', tmp_path, monkeypatch) == 1
    assert capsys.readouterr().err.startswith("tests.a::test_cuda[1] is skipped (needs CUDA)")


def test_without_reports_nothing_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert skips.main([]) == 2
    assert "name pytest's reports" in capsys.readouterr().err
