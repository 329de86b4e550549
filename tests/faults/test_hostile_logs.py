"""Raw logs that mean harm: a dataset or one clear sentence; no crash, no hang, no code run."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
import warnings
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from crossbatch.data import PrepareOptions, open_dataset, open_source, prepare
from crossbatch.data.readers import READERS, text_tables
from crossbatch.errors import ConfigError, DataError

from . import hostile
from .conftest import FAULTS

if TYPE_CHECKING:
    from pathlib import Path

LENIENT = PrepareOptions(min_item_count=1, min_user_count=1, max_bad_lines=0.5)
FUZZ = settings(
    max_examples=max(40, FAULTS),
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # an example is simple enough; making it simpler may take minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def attempt(path: Path, format_name: str | None, out: Path) -> dict[str, Any] | None:
    """Prepare a source; None if it was refused. Nothing else may happen, and nothing be left."""
    try:
        return prepare(open_source(path, format_name), out, LENIENT, overwrite=True)
    except (ConfigError, DataError):
        assert not [path for path in out.parent.iterdir() if "partial" in path.name]
        return None


@pytest.mark.parametrize("name", hostile.WHOLE)
def test_whole_sources_are_read(tmp_path: Path, name: str) -> None:
    format_name, files = hostile.WHOLE[name]
    manifest = attempt(hostile.write(tmp_path / "in", files), format_name, tmp_path / "out")
    assert manifest is not None
    assert manifest["counts"]["items"] == 6


def test_every_format_is_attacked() -> None:
    assert {format_name for format_name, _ in hostile.WHOLE.values()} == set(READERS)


@pytest.mark.parametrize("bug", hostile.BUGS)
def test_bug(tmp_path: Path, bug: str) -> None:
    format_name, files = hostile.BUGS[bug]
    attempt(hostile.write(tmp_path / "in", files), format_name, tmp_path / "out")


@FUZZ
@given(data=st.data())
def test_mutated_sources(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes replaced, inserted, removed or repeated at random places of a random file."""
    format_name, files = hostile.WHOLE[data.draw(st.sampled_from(sorted(hostile.WHOLE)))]
    name = data.draw(st.sampled_from(sorted(files)))
    content = bytearray(files[name])
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        stop = start + data.draw(st.integers(0, 20))
        piece = data.draw(st.binary(max_size=20) | st.sampled_from(NASTY))
        content[start:stop] = piece
    source = hostile.write(tmp_path / "in", {**files, name: bytes(content)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # zipfile's, of names that come twice
        attempt(source, format_name, tmp_path / "out")
    for path in (tmp_path / "in").iterdir():
        path.unlink()


NASTY = [
    b"\0", b"\r", b'"', b"\n\n", b"\xff\xfe", b"\xed\xa0\x80", b"NaN", b"1e999", b"-1", b"[" * 5000,
    b"9" * 5000, b",,,,,,,,,", b"::::", b"\t\t\t", b"PK\x03\x04", b"PAR1", b"\x1f\x8b", b"null",
]  # fmt: skip


@FUZZ
@given(content=st.binary(max_size=300), suffix=st.sampled_from(["csv", "jsonl", "parquet", "zip"]))
def test_random_bytes_of_any_format(tmp_path: Path, content: bytes, suffix: str) -> None:
    source = hostile.write(tmp_path / "in", {f"log.{suffix}": content})
    for format_name in (None, *READERS):
        assert attempt(source, format_name, tmp_path / "out") is None
    source.unlink()


def test_python_literals_are_parsed_and_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    meta = f"{{'asin': 'i1', 'title': open({str(mark)!r}, 'w')}}\n".encode()
    files = {"reviews_X.json": hostile.REVIEWS, "meta_X.json": meta}
    assert attempt(hostile.write(tmp_path / "in", files), "amazon", tmp_path / "out") is None
    assert not mark.exists()


def test_members_of_a_zip_cannot_leave_their_folder(tmp_path: Path) -> None:
    """Wherever the log pretends to lie in the archive, it is unpacked into a folder of our own."""
    outside = f"../../../../../../../..{tmp_path}/ratings.dat"
    members = {outside: hostile.MOVIELENS["ml/ratings.dat"]}
    members |= {f"/etc/{name[3:]}": hostile.MOVIELENS[name] for name in list(hostile.MOVIELENS)[1:]}
    source = hostile.write(tmp_path / "in", {"ml.zip": hostile.zipped(members)})
    assert attempt(source, "movielens", tmp_path / "out") is not None
    assert not (tmp_path / "ratings.dat").exists()


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_tables, "ALWAYS_ALLOWED", 1 << 20)
    bomb = hostile.MOVIELENS | {"ml/ratings.dat": bytes(8 << 20)}
    source = hostile.write(tmp_path / "in", {"ml.zip": hostile.zipped(bomb)})
    monkeypatch.setattr(zipfile.ZipFile, "extract", None)
    with pytest.raises(DataError, match="like a bomb"):
        prepare(open_source(source, "movielens"), tmp_path / "out", LENIENT)


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_tables, "ALWAYS_ALLOWED", 1 << 20)
    monkeypatch.setattr(text_tables, "BLOCK_BYTES", 1 << 16)
    content = gzip.compress(hostile.CSV + b"u,i,\n" * (2 << 20))
    source = hostile.write(tmp_path / "in", {"log.csv.gz": content})
    with pytest.raises(DataError, match="like a bomb"):
        prepare(open_source(source, "table"), tmp_path / "out", LENIENT)


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl"])
@pytest.mark.parametrize("begin", [b"", hostile.CSV])
def test_a_line_without_end_is_not_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, begin: bytes
) -> None:
    monkeypatch.setattr(text_tables, "MAX_LINE_BYTES", 1 << 16)
    monkeypatch.setattr(text_tables, "BLOCK_BYTES", 1 << 14)
    source = hostile.write(tmp_path / "in", {name: begin + b"x" * (1 << 20)})
    assert attempt(source, "table", tmp_path / "out") is None


def test_absurd_prices_count_as_missing(tmp_path: Path) -> None:
    """They once made the mean overflow, and every item's price NaN."""
    items = b"item,price\ni0,1e308\ni1,-1e308\ni2,1\ni3,2\ni4,3\ni5,\n"
    files = {"interactions.csv": hostile.CSV, "items.csv": items}
    assert attempt(hostile.write(tmp_path / "in", files), "table", tmp_path / "out") is not None
    dataset = open_dataset(tmp_path / "out")
    values = np.array(dataset.item_features["price"].values)
    assert np.isfinite(values).all()
    known = values[dataset.item_ids(["i2", "i3", "i4"]), 0]
    np.testing.assert_allclose(known, [-np.sqrt(1.5), 0, np.sqrt(1.5)], rtol=1e-6)
    missing = dataset.item_ids(["i0", "i1", "i5"])
    np.testing.assert_array_equal(values[missing], [[0, 1]] * 3)


@pytest.mark.parametrize("kind", [pl.List(pl.Int64), pl.Struct({"a": pl.Int64}), pl.Binary])
def test_ids_of_other_types_are_refused(tmp_path: Path, kind: pl.DataType) -> None:
    value = {"List": [1], "Struct": {"a": 1}, "Binary": b"\xff"}[kind.base_type().__name__]
    users = pl.Series("user", [value], dtype=kind)
    pl.DataFrame([users]).with_columns(item=1, time=1).write_parquet(tmp_path / "log.parquet")
    with pytest.raises(DataError, match="user"):
        prepare(open_source(tmp_path / "log.parquet"), tmp_path / "out", LENIENT)


BOUNDED = """
import resource, sys
from pathlib import Path
from crossbatch.data import open_source, prepare
from crossbatch.errors import DataError
import polars as pl
pl.Series([1, 2]).sum()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    prepare(open_source(Path(sys.argv[1]), "table"), Path(sys.argv[2]))
except DataError as error:
    print("refused", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_a_real_bomb_takes_bounded_memory_and_time(tmp_path: Path) -> None:
    """A gigabyte of zeros in a megabyte, with the limits as they are."""
    path = tmp_path / "log.csv.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(hostile.CSV)
        for _ in range(64):
            file.write(bytes(1 << 24))
    began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, str(path), str(tmp_path / "out")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    word, megabytes = done.stdout.split()
    assert word == "refused"
    assert int(megabytes) < 512
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began < 60
