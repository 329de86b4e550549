from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from crossbatch.cli import app
from crossbatch.data import open_dataset
from crossbatch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pathlib import Path

SMALL = ["--users", "200", "--items", "100", "--interactions", "2000"]


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(
        app, [str(argument) for argument in arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output


def test_synth_writes_a_dataset_and_says_so(tmp_path: Path) -> None:
    output = run("synth", "--out", tmp_path / "dataset", *SMALL)
    assert "200 users, 100 items" in output
    assert "withheld cold items" in output
    assert open_dataset(tmp_path / "dataset").num_items == 100


def test_raw_log_then_prepare_by_detection(tmp_path: Path) -> None:
    run("synth", "--raw", tmp_path / "raw", *SMALL)
    output = run(
        "prepare", tmp_path / "raw", "--out", tmp_path / "dataset", "--split", "leave_last_out"
    )
    assert f"reading {tmp_path / 'raw'} as table" in output
    assert "times read as s since 1970" in output
    dataset = open_dataset(tmp_path / "dataset")
    assert dataset.num_eval_users("test") == 200
    assert set(dataset.item_features) == {"title", "category", "tags", "price"}


def test_a_raw_log_replaces_one_of_its_kind_and_nothing_else(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    for seed in ("1", "2"):
        run("synth", "--raw", raw, "--overwrite", "--seed", seed, *SMALL)
    assert json.loads((raw / ".generated.json").read_text())["seed"] == 2
    own = tmp_path / "own"
    own.mkdir()
    (own / "items.parquet").write_bytes(b"years of work")
    with pytest.raises(DataError, match="--overwrite does not replace it"):
        run("synth", "--raw", own, "--overwrite", *SMALL)
    assert (own / "items.parquet").read_bytes() == b"years of work"


def test_every_flag_reaches_the_manifest(tmp_path: Path) -> None:
    rows = "".join(f"u{u};i{i};{i}\n" for u in range(12) for i in range(8))
    (tmp_path / "log.csv").write_text(
        "who,what,when,stars\n" + rows.replace(";", ",").replace("\n", ",5\n")
    )
    (tmp_path / "things.csv").write_text(
        "what,kind,label\n" + "".join(f"i{i},k;l,L{i}\n" for i in range(8))
    )
    run(
        "prepare", tmp_path / "log.csv", "--out", tmp_path / "out", "--format", "table", "--quiet",
        "--user", "who", "--item", "what", "--time", "when", "--rating", "stars",
        "--time-unit", "order", "--items", tmp_path / "things.csv",
        "--item-feature", "kind:multi_valued:;",
        "--item-feature", "label:text", "--title", "label",
        "--min-item-count", "2", "--min-user-count", "3", "--core", "--split", "user",
        "--valid-share", "0.2", "--test-share", "0.3", "--ties", "item",
        "--cold-items", "0.1", "--min-rating", "4", "--max-bad-lines", "2%", "--seed", "9",
    )  # fmt: skip
    dataset = open_dataset(tmp_path / "out")
    assert dataset.manifest["options"] == {
        "min_item_count": 2, "min_user_count": 3, "core": True, "split": "user",
        "valid_share": 0.2, "test_share": 0.3, "ties": "item",
        "cold_items": 0.1, "min_rating": 4.0, "max_bad_lines": 0.02, "seed": 9,
        "growing": False, "test_day": None,
    }  # fmt: skip
    assert dataset.item_features["kind"].num_values == 3
    assert dataset.item_titles(dataset.item_ids(["i3"])) == ["L3"]


def test_quiet_says_nothing(tmp_path: Path) -> None:
    assert run("synth", "--out", tmp_path / "dataset", "--quiet", *SMALL) == ""


def test_describe_as_table_json_and_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run("synth", "--out", tmp_path / "dataset", *SMALL)
    table = run(
        "data", "describe", tmp_path / "dataset", "--verify", "--picture", tmp_path / "p.png"
    )
    assert "eligible samples" in table
    assert "█" in table
    assert (tmp_path / "p.png").stat().st_size > 5_000
    facts = json.loads(run("data", "describe", tmp_path / "dataset", "--json"))
    assert facts["counts"]["users"] == 200


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["synth"], ConfigError, "--out DATASET"),
        (["synth", "--out", "x", "--interactions", "10"], ConfigError, "at least"),
        (["prepare", "absent", "--out", "x"], DataError, "does not exist"),
        (["data", "describe", "absent"], DataError, "not a dataset"),
        (["prepare", ".", "--out", "x", "--max-bad-lines", "few"], ConfigError, "max-bad-lines"),
        (["prepare", ".", "--out", "x", "--item-feature", "genre"], ConfigError, "NAME:KIND"),
    ],
)
def test_mistakes_are_the_users_own_errors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    error: type[Exception],
    message: str,
) -> None:
    (tmp_path / "log.csv").write_text("user,item,time\na,b,1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert not (tmp_path / "x").exists()


def test_a_dataset_in_shards_is_described(tmp_path: Path) -> None:
    run("synth", "--raw", tmp_path / "raw", *SMALL)
    facts = {}
    for name, more in (("whole", ()), ("parts", ("--shards", "3"))):
        run("prepare", tmp_path / "raw", "--out", tmp_path / name, "--quiet", *more)
        facts[name] = json.loads(run("data", "describe", tmp_path / name, "--json", "--verify"))
    assert facts["parts"] == facts["whole"]
    assert sorted(path.name for path in (tmp_path / "parts/shards").iterdir()) == [
        *("0000", "0001", "0002")
    ]
