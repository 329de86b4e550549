"""Untrusted text on a terminal: nothing but what rich draws moves the cursor."""

import io
import json
import re
from pathlib import Path

import polars as pl
import pytest
from rich.table import Table
from rich.text import Text

from crossbatch.printing import PrintableStream, console, printable

SOURCE = Path(__file__).parent.parent / "src" / "crossbatch"
# A title of the window, a cleared screen (C1), a turned line, markup of rich, a return to column 1.
HOSTILE = "\x1b]0;owned\x07\x9b2J\u202etxt.exe\u2066[/b][link=x]:smile:\r\x7f\ud800"
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def test_unsafe_characters_become_escapes_that_json_reads_back():
    assert printable("a\tb\nç七 ✓") == "a\tb\nç七 ✓"
    assert printable("\x1b[2J\u202e") == "\\u001b[2J\\u202e"
    text = json.dumps({"title": HOSTILE, "other": "\x85"}, ensure_ascii=False)
    assert not UNSAFE.search(printable(text))
    assert json.loads(printable(text)) == {"title": HOSTILE, "other": "\x85"}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_stream_writes_what_the_terminal_has(encoding):
    raw = io.BytesIO()
    stream = PrintableStream(io.TextIOWrapper(raw, encoding=encoding))
    assert stream.write(f"七{HOSTILE}") == len(f"七{HOSTILE}")
    stream.writelines(["a", HOSTILE])
    stream.flush()
    assert not UNSAFE.search(raw.getvalue().decode(encoding))


def test_a_console_draws_styles_and_no_controls_of_its_text():
    out = io.StringIO()
    screen = console(file=out, force_terminal=True, width=200, color_system="standard")
    table = Table("a", title=HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE, "red"))
    screen.print(table)
    screen.print(f"plain {HOSTILE}")
    drawn = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())  # styles
    assert "\x1b[31m" in out.getvalue()
    assert not UNSAFE.search(drawn)
    assert drawn.count("owned") == 4
    assert "[/b][link=x]:smile:" in drawn  # no markup, no emoji


def test_all_consoles_are_printable():
    """Others would pass on what titles hold."""
    found = [path for path in SOURCE.rglob("*.py") if "rich.console" in path.read_text()]
    assert found == [SOURCE / "printing.py"]


def test_commands_print_nothing_of_a_hostile_log(monkeypatch, capfd, tmp_path):
    from crossbatch.cli import main

    def run(*words):
        monkeypatch.setattr("sys.argv", ["crossbatch", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        output = "".join(capfd.readouterr())
        assert not UNSAFE.search(output)
        return end.value.code, output

    monkeypatch.setenv("COLUMNS", "200")
    name = HOSTILE.replace("\ud800", "")
    pairs = [(f"u{user}", f"i{item}{name}") for user in range(20) for item in range(6)]
    log = pl.DataFrame(pairs, schema=["user", "item"], orient="row")
    log.with_columns(time=pl.int_range(1, 121)).write_parquet(tmp_path / "log.parquet")
    items = pl.DataFrame({"item": sorted({item for _, item in pairs}), name: [1, 2, 3, 4, 5, 6]})
    items.write_parquet(tmp_path / "items.parquet")
    content, out = ("--items", tmp_path / "items.parquet"), ("--out", tmp_path / "out")
    assert run("prepare", tmp_path / "log.parquet", *content, *out)[0] == 0
    code, output = run("data", "describe", tmp_path / "out")
    assert code == 0
    assert "owned" in output
    code, output = run("prepare", tmp_path / "log.parquet", *out, "--user", HOSTILE[:-1])
    assert code == 2
    code, output = run("train", "--data", tmp_path / f"no\x9b{name[:20]}", "--out", tmp_path / "r")
    assert code == 2
