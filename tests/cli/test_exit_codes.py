"""Exit codes mean the same for every command: 0 done, 1 failed, 2 a mistake, 130 interrupted."""

import importlib
import subprocess
import sys

import pytest
import typer

from crossbatch.cli import app

# Arguments that name what is not there, and the function that then begins the work.
COMMANDS = {
    "prepare": ("nothing --out new", "crossbatch.data.readers.open_source"),
    "synth": ("--out new --seed -1", "crossbatch.data.prepare.prepare"),
    "data describe": ("nothing", "crossbatch.data.open_dataset"),
    "train": ("nothing.toml --data nothing --out new", "crossbatch.config.Recipe"),
    "tune": ("nothing.toml --data nothing --out new", "crossbatch.config.Recipe"),
    "evaluate": ("nothing", "crossbatch.evaluation.runs.evaluate_runs"),
    "export": ("nothing --out new", "crossbatch.serving.bundle.export.export_bundle"),
    "items add": ("nothing new.csv --out new", "crossbatch.serving.tables.scanned_table"),
    "items set": ("nothing new.csv --out new", "crossbatch.serving.tables.scanned_table"),
    "items remove": ("nothing --items i1 --out new", "crossbatch.serving.open_bundle"),
    "vectors": ("nothing --out new.parquet", "crossbatch.serving.from_run.open_recommender"),
    "recommend": ("nothing --history i1", "crossbatch.serving.from_run.open_recommender"),
    "serve": ("nothing", "crossbatch.serving.server.run.serve"),
    "reproduce": ("table1 --data nothing --out new", "crossbatch.data.open_dataset"),
    "report": ("nothing", "crossbatch.reports.runs.read_runs"),
    "cache": ("--json=yes", "crossbatch.cache.entries"),
    "doctor": ("--json=yes", "crossbatch.cli.doctor.examine"),
    "demo": ("--json=yes", "crossbatch.data.synthetic.write_raw"),
    "init": ("nowhere/new.toml", "crossbatch.files.write_file"),
}
# What makes the arguments a mistake; without it the work begins.
MISTAKES = ("--json=yes", "--seed -1", "nowhere/")


def leaves(group, prefix=""):
    """Every command of a click group by its full name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}"


def test_the_table_has_every_command():
    assert set(COMMANDS) == set(leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("command", [*COMMANDS, "nonsense", "train --nonsense", "data"])
def test_a_mistake_is_exit_code_two_without_a_traceback(crossbatch, tmp_path, command):
    arguments, _ = COMMANDS.get(command, ("", ""))
    done = crossbatch(f"{command} {arguments}")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("new*"))


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_is_exit_code_130(crossbatch, monkeypatch, command):
    arguments, worker = COMMANDS[command]
    home, name = worker.rsplit(".", 1)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    interrupted.load = interrupted  # of Recipe
    monkeypatch.setattr(importlib.import_module(home), name, interrupted)
    for mistake in MISTAKES:
        arguments = arguments.replace(mistake, "")
    done = crossbatch(f"{command} {arguments}")
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("line", ["--help", "synth --help", "--show-completion"])
def test_what_is_asked_for_is_exit_code_zero(crossbatch, line, monkeypatch):
    # Otherwise the answer would depend on the shell that the tests were started from.
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: ("bash", "/bin/bash"))
    assert crossbatch(line).returncode == 0


def test_an_unexpected_error_keeps_its_traceback():
    """Python itself then ends with 1: a bug must not look like a mistake of the user."""
    code = (
        "import crossbatch.cli.doctor as doctor\n"
        "def bug(_): raise RuntimeError('a bug')\n"
        "doctor.examine = bug\n"
        "from crossbatch.cli import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "RuntimeError: a bug" in done.stderr
