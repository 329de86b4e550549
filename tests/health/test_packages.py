from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from crossbatch.health import packages
from crossbatch.health.packages import Requirement, required, requirements, within

HERE = Path()
RELEASES = st.lists(st.integers(0, 30), min_size=1, max_size=3).map(
    lambda parts: ".".join(map(str, parts))
)


@settings(deadline=None)
@given(
    installed=RELEASES,
    bounds=st.lists(st.tuples(st.sampled_from([">=", "<", "<=", ">", "=="]), RELEASES), max_size=2),
)
@example(installed="2.13.0+cpu", bounds=[(">=", "2.10"), ("<", "3")])
@example(installed="2.9.1", bounds=[(">=", "2.10")])
def test_ranges_mean_what_packaging_says(installed, bounds):
    text = ",".join(sign + version for sign, version in bounds)
    assert within(installed, text) == SpecifierSet(text).contains(installed.split("+")[0])


def test_requirements_are_those_of_the_installed_package():
    found = requirements()
    assert Requirement("torch", "<3,>=2.10", "") in found
    assert {r.extra for r in found} >= {"fast", "track", "dev"}
    assert all(r.name and ";" not in r.bounds for r in found)


def test_an_old_package_is_a_problem(monkeypatch):
    versions = {"torch": "2.9.1"}
    monkeypatch.setattr(packages, "_installed", lambda name: versions.get(name, "99.0"))
    troubles = {f.check: f for f in required(HERE) if f.level == "problem"}
    assert troubles["torch"].message == "2.9.1 is not <3,>=2.10"
    assert troubles["torch"].remedy == "pip install 'torch<3,>=2.10'"
    assert "99.0 is not" in troubles["numpy"].message


def test_a_missing_package_is_a_problem_and_a_missing_extra_a_note(monkeypatch):
    monkeypatch.setattr(packages, "_installed", lambda name: None)
    assert all(
        f.level == "problem" for f in required(HERE) if f.check not in ("python", "crossbatch")
    )
    extras = list(packages.extras(HERE))
    assert {str(f.level) for f in extras} == {"note"}
    assert "pip install 'crossbatch[fast]'" in {f.remedy for f in extras}
    assert not any("dev" in f.check for f in extras)


def test_a_package_that_does_not_load_is_a_problem(monkeypatch):
    def broken(name):
        raise ImportError(f"{name}: undefined symbol\nmore")

    monkeypatch.setattr(packages, "import_module", broken)
    troubles = [f for f in required(HERE) if f.level == "problem"]
    assert {f.check for f in troubles} == set(packages.COMPILED)
    assert (
        "does not load: torch: undefined symbol"
        in {f.check: f.message for f in troubles}["torch"].split(" ", 1)[1]
    )


@pytest.mark.parametrize("remedy", ["", "do it"])
def test_every_problem_has_a_remedy(remedy):
    from crossbatch.health.finding import problem

    if remedy:
        assert problem("x", "y", remedy).remedy == remedy
    else:
        with pytest.raises(AssertionError):
            problem("x", "y", remedy)
