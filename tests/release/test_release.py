"""What a release states about itself agrees: version, changelog, citation, lower bounds."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version
from typer.testing import CliRunner

from crossbatch.cli import app

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Extras that `make test-oldest` installs.
OLD_EXTRAS = ("ann", "mlflow", "report", "serve", "tensorboard", "tune")
REQUIREMENTS = [
    Requirement(line)
    for line in (
        *PROJECT["dependencies"],
        *(line for extra in OLD_EXTRAS for line in PROJECT["optional-dependencies"][extra]),
    )
]


def pins(name):
    lines = (ROOT / name).read_text().splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {package.lower().replace("_", "-"): version.strip() for package, version in pairs}


def lower_bound(requirement):
    return next(Version(part.version) for part in requirement.specifier if part.operator == ">=")


def test_all_is_every_extra():
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    assert Requirement(everything).extras == extras.keys() - {"all"}


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda requirement: requirement.name)
def test_oldest_constraints_are_the_declared_lower_bounds(requirement):
    pinned = Version(pins("constraints-oldest.txt")[requirement.name])
    if requirement.name == "torch":  # older ones cannot be had without CUDA; the file says so
        assert pinned >= lower_bound(requirement)
        return
    bound = lower_bound(requirement)
    assert pinned.release[: len(bound.release)] == bound.release


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda requirement: requirement.name)
def test_newest_constraints_are_allowed(requirement):
    assert requirement.specifier.contains(pins("constraints.txt")[requirement.name])


def test_citation_names_this_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()  # what the format requires
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["references"][0]["doi"] == "10.1145/3404835.3463032"


def test_changelog_ends_at_this_version():
    heads = re.findall(r"^## \[(.+?)\](.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == ("Unreleased", "")
    released = [Version(name) for name, _ in heads[1:]]
    assert released == sorted(released, reverse=True)
    assert all(re.fullmatch(r" - \d{4}-\d\d-\d\d", date) for _, date in heads[1:])
    assert not released or released[0] <= Version(PROJECT["version"])


def test_command_says_its_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert re.fullmatch(r"crossbatch \d+\.\d+\.\d+\S*\n", result.output)


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_that_exist(path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    steps = [
        step["run"]
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    called = {target for line in steps for target in re.findall(r"\bmake ([a-z-]+)", line)}
    assert called
    assert called <= targets
