"""Datasets, runs and bundles: whole ones are healthy, and each damage is found with a remedy."""

import fcntl
import json
from pathlib import Path

import pytest

from crossbatch.cli.doctor import examine


def found(subject, folder):
    return [
        (each.check, str(each.level), each.message) for each in examine({subject: folder})[subject]
    ]


def problems(subject, folder):
    return [each for each in examine({subject: folder})[subject] if each.level == "problem"]


def flip_last_byte(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("subject", "name"),
    [("data", "data"), ("run", "run"), ("run", "killed"), ("bundle", "bundle")],
)
def test_whole_folders_have_no_problem(workplace, subject, name):
    assert problems(subject, workplace / name) == []


@pytest.mark.parametrize(
    ("subject", "name", "file"),
    [
        ("data", "data", "items.npy"),
        ("data", "data", "features/items/01.npy"),
        ("run", "run", "best/tensors.safetensors"),
        ("run", "run", "per_user/test_recall@50.npy"),
        ("run", "killed", "checkpoints/step-000000020/tensors.safetensors"),
        ("bundle", "bundle", "item_vectors.npy"),
        ("bundle", "bundle", "bundle.json"),
    ],
)
def test_one_flipped_byte_is_found(damaged, subject, name, file):
    folder = damaged(name)
    flip_last_byte(folder / file)
    (trouble,) = problems(subject, folder)
    assert Path(file).parts[-1] in trouble.message or Path(file).parent.name in trouble.message
    assert trouble.remedy


@pytest.mark.parametrize("subject", ["data", "run", "bundle"])
def test_a_folder_that_is_not_there_is_a_problem(tmp_path, subject):
    assert problems(subject, tmp_path / "nothing")


def test_another_format_version_is_a_problem(damaged):
    folder = damaged("data")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"format_version": 99}))
    (trouble,) = problems("data", folder)
    assert "format version 99" in trouble.message


def test_a_broken_newest_checkpoint_leaves_the_one_before(damaged):
    folder = damaged("killed")
    flip_last_byte(folder / "checkpoints/step-000000020/tensors.safetensors")
    (trouble,) = problems("run", folder)
    assert "--resume uses the one before" in trouble.remedy
    assert ("checkpoint", "ok", "of step 10, as written") in found("run", folder)


def test_a_killed_run_says_how_to_continue(workplace):
    states = [
        each for each in examine({"run": workplace / "killed"})["run"] if each.check == "state"
    ]
    assert [each.message for each in states] == ["not finished"]
    assert "--resume" in states[0].remedy


def test_a_run_in_use_is_noticed(workplace):
    with (workplace / "run" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ("lock", "note", "a process is training in it now") in found(
            "run", workplace / "run"
        )
    assert ("lock", "ok", "free") in found("run", workplace / "run")


def test_a_loss_that_was_not_finite_is_a_problem(damaged):
    folder = damaged("killed")
    with (folder / "journal.jsonl").open("a") as file:
        file.write('{"event": "stop", "step": 26, "reason": "nan"}\n')
    (trouble,) = problems("run", folder)
    assert "step 26" in trouble.message


def test_half_a_journal_line_is_only_noted(damaged):
    folder = damaged("killed")
    with (folder / "journal.jsonl").open("a") as file:
        file.write('{"event": "train", "st')
    assert problems("run", folder) == []
    assert any(check == "journal" and level == "note" for check, level, _ in found("run", folder))


def test_bug_a_journal_line_that_is_no_event_ended_in_a_traceback(damaged):
    folder = damaged("killed")
    with (folder / "journal.jsonl").open("a") as file:
        file.write("3\n[]\n")
    assert ("journal", "note", "2 lines are not those of a journal") in found("run", folder)


def test_another_dataset_in_its_place_is_a_problem(damaged):
    folder = damaged("killed")
    config = json.loads((folder / "config.json").read_text())
    config["dataset"]["checksum"] = "0" * 64
    (folder / "config.json").write_text(json.dumps(config))
    (trouble,) = problems("run", folder)
    assert trouble.check == "dataset"
    config["dataset"]["path"] = str(folder / "gone")
    (folder / "config.json").write_text(json.dumps(config))
    assert problems("run", folder) == []  # it may have moved: a note
    config["dataset"]["path"] = "s3://shop/data"
    (folder / "config.json").write_text(json.dumps(config))
    said = "s3://shop/data, which is compared when it is opened"
    assert ("dataset", "ok", said) in found("run", folder)  # nothing is fetched


def test_leftovers_of_killed_processes_are_named(damaged):
    run, data = damaged("killed"), damaged("data")
    (run / "checkpoints" / ".step-000000030.partial").mkdir()
    (data.parent / ".data.partial-abc").mkdir()
    for subject, folder, name in (
        ("run", run, ".step-000000030.partial"),
        ("data", data, ".data.partial-abc"),
    ):
        (trouble,) = [e for e in examine({subject: folder})[subject] if e.check == "leftovers"]
        assert trouble.level == "note"
        assert name in trouble.remedy


def test_a_kill_between_two_renames_is_told_apart(damaged):
    """The earlier dataset was moved aside and the new one never came: it is not lost."""
    data = damaged("data")
    aside = data.parent / ".data.aside"
    data.rename(aside)
    remedies = [each.remedy for each in problems("data", data)]
    assert f"mv {aside} {data}" in remedies


def test_a_dataset_gets_advice_on_negatives(workplace):
    findings = examine({"data": workplace / "data"})["data"]
    advice = next(each for each in findings if each.check == "negatives")
    assert advice.level == "ok"
    assert advice.message.startswith("negatives chosen: ")
