"""The manifest of a bundle: what is compared with it, and what is refused."""

import hashlib
import json

import pytest

from crossbatch.serving.bundle.manifest import (
    MANIFEST,
    BundleError,
    read_manifest,
    verify_files,
    write_manifest,
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b" / "sub").mkdir(parents=True)
    (tmp_path / "b" / "text.json").write_text("{}")
    (tmp_path / "b" / "sub" / "array.npy").write_bytes(b"12345")
    write_manifest(tmp_path / "b", {"name": "x"})
    return tmp_path / "b"


def forge(folder, **changes):
    """Write a manifest that is consistent with itself, as only its maker can."""
    body = json.loads((folder / MANIFEST).read_text()) | changes
    body.pop("checksum")
    text = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps({"checksum": checksum} | body))
    return body


def check(folder, *, everything=True):
    verify_files(folder, read_manifest(folder), everything=everything)


def test_what_is_written_is_what_is_read(folder):
    manifest = read_manifest(folder)
    check(folder)
    assert manifest["name"] == "x"
    assert manifest["files"]["sub/array.npy"] == {
        "bytes": 5,
        "sha256": hashlib.sha256(b"12345").hexdigest(),
    }
    assert set(manifest["files"]) == {"text.json", "sub/array.npy"}


def test_arrays_are_hashed_only_when_asked(folder):
    (folder / "sub" / "array.npy").write_bytes(b"12346")
    check(folder, everything=False)
    with pytest.raises(BundleError, match="altered"):
        check(folder)
    (folder / "sub" / "array.npy").write_bytes(b"1234")
    with pytest.raises(BundleError, match="4 bytes instead of 5"):
        check(folder, everything=False)


def test_parsed_files_are_always_hashed(folder):
    (folder / "text.json").write_text("[]")
    with pytest.raises(BundleError, match="altered"):
        check(folder, everything=False)


def test_missing_and_surplus_files(folder):
    (folder / ".DS_Store").write_text("left by a file browser: harmless")
    check(folder)
    (folder / "more.json").write_text("{}")
    with pytest.raises(BundleError, match=r"more\.json, which its manifest does not list"):
        check(folder)
    (folder / "more.json").unlink()
    (folder / "text.json").unlink()
    with pytest.raises(BundleError, match=r"lacks text\.json"):
        check(folder)


@pytest.mark.parametrize(
    "name",
    ["../outside", "/etc/hostname", "sub/../../outside", "sub\\..\\x", "./text.json", "sub//x", ""],
)
def test_names_must_stay_inside(folder, name):
    (folder.parent / "outside").write_text("secret")
    entry = {"bytes": 6, "sha256": hashlib.sha256(b"secret").hexdigest()}
    listed = json.loads((folder / MANIFEST).read_text())["files"]
    forge(folder, files=listed | {name: entry})
    with pytest.raises(BundleError, match="not a file of the bundle"):
        check(folder)


def test_a_link_out_of_the_folder_is_refused(folder):
    (folder.parent / "outside.json").write_text("{}")
    (folder / "text.json").unlink()
    (folder / "text.json").symlink_to(folder.parent / "outside.json")
    with pytest.raises(BundleError, match="not a file of the bundle"):
        check(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "not a JSON object"),
        ("{}", "not the manifest"),
        ('{"format_version": 1, "files": {}}', "not the manifest"),
        ('{"kind": "crossbatch bundle", "format_version": 99}', "bundle format 99"),
        ('{"kind": "crossbatch bundle", "format_version": 1}', "altered"),
    ],
)
def test_foreign_manifests(folder, text, message):
    (folder / MANIFEST).write_text(text)
    with pytest.raises(BundleError, match=message):
        read_manifest(folder)


def test_a_folder_without_one_says_how_to_make_one(tmp_path):
    with pytest.raises(BundleError, match="crossbatch export RUN"):
        read_manifest(tmp_path)
    with pytest.raises(BundleError, match="is not a bundle"):
        read_manifest(tmp_path / "nowhere")


def test_a_huge_manifest_is_not_read(folder, monkeypatch):
    monkeypatch.setattr("crossbatch.files.MAX_DOCUMENT_BYTES", 100)
    with pytest.raises(BundleError, match="is larger than"):
        read_manifest(folder)
