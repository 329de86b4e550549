import json

from crossbatch.training.journal import Journal


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_events_are_lines_and_readable_at_once(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write("train", 5, loss=1.5)
    assert lines(tmp_path / "journal.jsonl") == [{"event": "train", "step": 5, "loss": 1.5}]
    journal.close()


def test_not_a_number_becomes_null(tmp_path):
    journal = Journal(tmp_path / "j")
    journal.write("train", 1, loss=float("nan"), diagnostics={"a": float("inf"), "b": 2.0})
    journal.close()
    assert lines(tmp_path / "j")[0]["diagnostics"] == {"a": None, "b": 2.0}


def test_a_resumed_journal_drops_what_came_after_the_checkpoint(tmp_path):
    path = tmp_path / "j"
    journal = Journal(path)
    journal.write("train", 1)
    length = journal.length()
    journal.write("train", 2)
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"event": "tra')  # killed in the middle of a line
    resumed = Journal(path, length)
    resumed.write("resume", 1)
    resumed.close()
    assert [line["event"] for line in lines(path)] == ["train", "resume"]
