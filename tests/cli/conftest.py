"""The command in this process: importing torch anew takes seconds."""

import subprocess
import sys

import pytest

from crossbatch.cli import main


@pytest.fixture
def crossbatch(monkeypatch, capfd, tmp_path):
    """The command as `main` runs it: one line or several words, in an empty folder or `cwd`."""

    def run(*words, cwd=tmp_path):
        if len(words) == 1:
            words = words[0].split()
        monkeypatch.chdir(cwd)
        monkeypatch.setenv("COLUMNS", "120")
        monkeypatch.setattr(sys, "argv", ["crossbatch", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        output, errors = capfd.readouterr()
        return subprocess.CompletedProcess(words, code, output, errors)

    return run
