"""Runs the code blocks of a page in order, in one folder, as a reader would paste them."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from pages import SHELL, Block, commands

from crossbatch.cli import main
from crossbatch.cli.doctor import environment

if TYPE_CHECKING:
    from sample_files import SampleFiles

SHELL_ONLY = re.compile(r"[|&;<>$`]")  # a command with one of these needs a shell
SERVER_START = 1800.0  # seconds; long, because tests may run on a busy machine


class Runner:
    """State of one page: its Python names, sample files and running servers."""

    def __init__(self, files: SampleFiles, monkeypatch) -> None:
        self.files = files
        self.monkeypatch = monkeypatch
        self.names: dict[str, object] = {"__name__": "__main__"}
        self.port = _free_port()
        self.servers: list[subprocess.Popen[bytes]] = []
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        monkeypatch.setenv("PATH", path)
        for least in ("MIN_MEMORY", "MIN_DISK"):  # `doctor` must not find that the machine is busy
            monkeypatch.setattr(environment, least, 0)

    def run(self, block: Block, folder: Path) -> None:
        """Run one block, or follow one instruction."""
        if block.not_run is not None:
            return
        if block.language == "given":
            for thing in block.code.split(";"):
                kind, place = thing.split()
                self.files.copy(kind, folder / place)
        elif block.language in {"before", "python"}:
            above = "\n" * block.line  # so that tracebacks name the page's line
            code = compile(above + self._with_port(block.code), str(block.page), "exec")
            exec(code, self.names)
        elif block.language in SHELL:
            for command in commands(block):
                self._command(self._with_port(command), block)

    def close(self) -> None:
        """Stop the servers."""
        for server in self.servers:
            server.terminate()
            server.wait(timeout=SERVER_START)

    def _command(self, command: str, block: Block) -> None:
        if block.background:
            self._serve(shlex.split(command, comments=True))
        elif command.startswith("crossbatch ") and not SHELL_ONLY.search(command):
            self._crossbatch(command, block)
        else:
            done = subprocess.run(["bash", "-euc", command], capture_output=True, text=True)
            assert done.returncode == 0, f"{block.name}: {command}\n{done.stdout}{done.stderr}"

    def _crossbatch(self, command: str, block: Block) -> None:
        """Run the command line in this process, because importing torch again takes seconds."""
        expanded: list[str] = []
        for word in shlex.split(command, comments=True):
            pattern = "*" in word and f"'{word}'" not in command  # quotes keep a pattern as it is
            expanded += sorted(map(str, Path().glob(word))) if pattern else [word]
        self.monkeypatch.setattr(sys, "argv", expanded)
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        assert not code, f"{block.name}: {shlex.join(expanded)} exits with {code}"

    def _serve(self, words: list[str]) -> None:
        assert words[:2] == ["crossbatch", "serve"]
        words = [sys.executable, "-m", "crossbatch", *words[1:], "--port", str(self.port)]
        self.servers.append(subprocess.Popen(words, stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + SERVER_START
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health").close()
            except (urllib.error.URLError, ConnectionError):
                assert self.servers[-1].poll() is None, f"{shlex.join(words)} ended"
                time.sleep(0.1)
            else:
                return
        raise AssertionError(f"{shlex.join(words)} does not answer")

    def _with_port(self, code: str) -> str:
        return re.sub(r"(127\.0\.0\.1|localhost):8000", rf"\1:{self.port}", code)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
