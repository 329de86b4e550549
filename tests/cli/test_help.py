"""Help: every command shows an example, at once, and a shell can complete its name."""

import os
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from crossbatch.cli import app

ROOT = typer.main.get_command(app)


def commands(group=ROOT, words=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


ALL = dict(commands())


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_shows_an_example_that_parses(words):
    """The example is checked too: its words must be a command that exists, with such options."""
    command = ALL[words]
    (example,) = re.findall(r"Examples?:\s+crossbatch (.*?)(?:;|$)", command.help, re.DOTALL)
    given = example.split()
    assert tuple(given[: len(words)]) == words
    context = command.make_context(" ".join(words), given[len(words) :])  # raises if it is wrong
    assert context.params
    shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"})
    assert "Example" in shown.output


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_option_says_what_it_does(words):
    for parameter in ALL[words].params:
        assert parameter.name == "help" or parameter.help, f"{parameter.name} of {words}"


@pytest.mark.parametrize(("typed", "offered"), [("tr", "train"), ("dat", "data"), ("do", "doctor")])
def test_a_shell_completes_commands(typed, offered):
    environment = os.environ | {
        "_CROSSBATCH_COMPLETE": "complete_bash",
        "COMP_WORDS": f"crossbatch {typed}",
        "COMP_CWORD": "1",
    }
    code = "from crossbatch.cli import app; app(prog_name='crossbatch')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [offered]


def test_help_and_completion_import_nothing_heavy():
    heavy = "{'torch', 'polars', 'numpy', 'numba', 'fastapi', 'optuna', 'rich.progress'}"
    code = (
        f"import sys, crossbatch.cli; found = {heavy} & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
