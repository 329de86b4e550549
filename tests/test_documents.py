import contextlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossbatch.documents import (
    CHECKSUMS,
    MAX_BYTES,
    document_checksum,
    file_checksum,
    read_document,
    seal_is_broken,
    sealed,
    verify_checksums,
)
from crossbatch.errors import DataError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
SLOW_DISK = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60
)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"a": 1}x',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"n": ' + b"9" * 5_000 + b"}",
        b" " * (MAX_BYTES + 1),
    ],
    ids=lambda content: f"{content[:6]!r}-{len(content)}",
)
def test_whatever_is_wrong_is_one_sentence(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.json .*: write it again") as caught:
        read_document(tmp_path / "x.json", "write it again")
    assert len(str(caught.value)) < 400


def test_missing_files_and_folders_are_told(tmp_path):
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(DataError, match="cannot be read"):
            read_document(path, "write it")


@SLOW_DISK
@given(content=st.binary(max_size=60))
def test_random_bytes_are_an_object_or_an_error(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with contextlib.suppress(DataError):
        assert read_document(path, "") == json.loads(content)


@given(document=st.dictionaries(st.text(), JSON))
def test_a_seal_survives_the_file_and_no_change(document):
    document.pop("seal", None)
    again = json.loads(json.dumps(sealed(document), indent=3))
    assert not seal_is_broken(again)
    assert not seal_is_broken(document)
    assert seal_is_broken(again | {"another": 1})
    for key in document:
        assert seal_is_broken({k: v for k, v in again.items() if k != key})


def test_the_checksum_is_of_the_meaning_not_of_the_layout():
    assert document_checksum({"a": 1, "b": [2]}) == document_checksum({"b": [2], "a": 1})
    assert document_checksum({"a": 1}) != document_checksum({"a": 2})


def test_a_folder_is_compared_with_its_list(tmp_path):
    verify_checksums(tmp_path)  # nothing is listed
    (tmp_path / "a").write_text("x")
    (tmp_path / CHECKSUMS).write_text(json.dumps({"a": file_checksum(tmp_path / "a")}))
    verify_checksums(tmp_path)
    (tmp_path / "a").write_text("y")
    with pytest.raises(DataError, match="was changed"):
        verify_checksums(tmp_path)
    (tmp_path / "a").unlink()
    with pytest.raises(DataError, match="missing"):
        verify_checksums(tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/../../secret"])
def test_a_list_cannot_point_elsewhere(tmp_path, name):
    (tmp_path / "secret").write_text("x")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / CHECKSUMS).write_text(json.dumps({name: "0"}))
    with pytest.raises(DataError, match="not in the folder"):
        verify_checksums(folder)


@pytest.mark.parametrize("name", ["loop", "a\0b", "\ud800", "x" * 5000, "loop/a"])
def test_bug_a_list_with_names_that_are_none(tmp_path, name):
    """A link to itself, a null byte, a name too long: each once ended in a traceback."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / CHECKSUMS).write_text(json.dumps({name: "0"}))
    with pytest.raises(DataError):
        verify_checksums(tmp_path)
