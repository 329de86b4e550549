"""`model.name = "auto"`: what a run records of the race, and that it trains what was chosen."""

import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from crossbatch.config import ModelConfig, Recipe
from crossbatch.errors import ConfigError, DataError
from crossbatch.evaluation import evaluate
from crossbatch.evaluation.runs import evaluate_runs
from crossbatch.fitting import _validation_metric
from crossbatch.reports.variants import choices
from crossbatch.serving import export_bundle
from crossbatch.training import DivergedError, Interrupted, auto_model, fit
from crossbatch.training.auto_model import (
    CANDIDATES,
    candidates_of,
    choose_model,
    leading,
    level_share,
    settled,
)
from crossbatch.training.build import build_towers, resolve
from crossbatch.training.progress import Progress
from crossbatch.training.race import Measurement
from crossbatch.training.run_folder import RunFolder, open_run

from .conftest import RECIPE
from .test_race import stopped_after

TIMES = ("seconds_per_1000_steps", "cpu_seconds_per_1000_steps", "convergence_minutes", "race")
ROUND = ["10 recent items", "20 recent items", "recency pooling", "GRU4REC"]
DOCUMENT = {
    "model": {"name": "auto", "dim": 8, "normalize": True, "tower": {"first_steps": 3}},
    "sampler": {"name": "in_batch"},
    "loss": {"temperature": 0.1},
    "train": RECIPE.to_dict()["train"] | {"max_steps": 40},
}
del DOCUMENT["train"]["history_length"]
AUTO = Recipe.from_dict(DOCUMENT)


@pytest.fixture(scope="module", autouse=True)
def _four_candidates():
    """More than the library has, so that a half of them is more than one."""
    recent = {"name": "recent_items", "tower": {}}
    pooling = CANDIDATES["recency pooling"]
    before = dict(CANDIDATES)
    CANDIDATES.clear()
    CANDIDATES["10 recent items"] = {"model": recent, "train": {"history_length": 10}}
    CANDIDATES["20 recent items"] = {"model": recent, "train": {"history_length": 20}}
    CANDIDATES["recency pooling"] = pooling
    gru = {"name": "gru4rec", "tower": {}}
    CANDIDATES["GRU4REC"] = {"model": gru, "train": {"history_length": 50}}
    yield
    CANDIDATES.clear()
    CANDIDATES.update(before)


def prefers(*names):
    """A metric that prefers candidates in this order, and where it was asked for what."""
    models = [CANDIDATES[name]["model"]["name"] for name in names]
    asked = []

    def measure(_, recipe):
        asked.append((recipe.model.name, recipe.train.history_length))
        return 0.5 - 0.1 * models.index(recipe.model.name) - 0.001 * recipe.train.history_length

    measure.asked = asked
    return measure


def choose(dataset, path, measure, recipe=AUTO, **options):
    folder = RunFolder(path, resume=True)
    try:
        return choose_model(resolve(recipe, dataset), dataset, folder, measure, **options)
    finally:
        folder.close()


class Listener(Progress):
    def __init__(self):
        self.heard = []

    def say(self, message):
        self.heard.append(message)


@pytest.fixture
def gru_wins(monkeypatch):
    measure = prefers("GRU4REC", "recency pooling", "10 recent items")
    monkeypatch.setattr("crossbatch.fitting._validation_metric", lambda _, *rest: measure(*rest))
    return measure


@pytest.fixture(scope="module")
def finished(dataset, tmp_path_factory):
    """A run that chose by itself."""
    out, progress = tmp_path_factory.mktemp("auto") / "run", Listener()
    return out, fit(dataset, AUTO, out, progress=progress), progress.heard


@pytest.mark.parametrize(
    ("order", "second", "name", "length"),
    [
        (("GRU4REC", "recency pooling", "10 recent items"), ROUND[3:1:-1], "gru4rec", 50),
        (
            ("recency pooling", "10 recent items", "GRU4REC"),
            [ROUND[2], ROUND[0]],
            "youtube_dnn",
            50,
        ),
        (("10 recent items", "GRU4REC", "recency pooling"), ROUND[:2], "recent_items", 10),
    ],
)
def test_the_measure_decides(dataset, tmp_path, order, second, name, length):
    choice = choose(dataset, tmp_path / "run", prefers(*order))
    measured = [(each["candidate"], each["steps"]) for each in choice.measured]
    later = [(each, steps) for steps in (6, 12, 24, 40) for each in second]
    assert measured == [*((each, 3) for each in ROUND), *later]
    recipe = choice.applied_to(AUTO)
    assert (recipe.model.name, recipe.train.history_length) == (name, length)
    assert recipe.model.tower == ({"pooling": "recency"} if name == "youtube_dnn" else {})
    assert (recipe.model.dim, recipe.model.normalize) == (8, True)
    assert choice.candidate == order[0]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"a": 0.20, "b": 0.19}, "a"),
        ({"a": 0.195, "b": 0.20}, "a"),  # 2.5 % below: level, and a is first in order
        ({"a": 0.19, "b": 0.20}, "b"),  # 5 % below
        ({"a": 0.10, "b": 0.196, "c": 0.20}, "b"),
        ({"a": None, "b": 0.1}, "b"),
        ({"a": 0.0, "b": 0.0}, "a"),
    ],
)
def test_of_level_candidates_the_first_wins(values, wanted):
    rows = [Measurement(name, 5, value, 0.0, 0.0, 0.0) for name, value in values.items()]
    ranked = sorted(rows, key=lambda row: -1.0 if row.value is None else row.value, reverse=True)
    assert leading(ranked, list(values), 0.03).candidate == wanted


@pytest.mark.parametrize(("interactions", "share"), [(399, 0.03), (400, 0.0)])
def test_candidates_are_level_on_sparse_data_alone(interactions, share):
    assert level_share(SimpleNamespace(num_interactions=interactions, num_items=10)) == share


@pytest.mark.parametrize("exclude", ["yes", "no"])
def test_candidates_are_measured_as_early_stopping_does(dataset, exclude):
    recipe = resolve(RECIPE.changed([f"train.exclude_seen={exclude}"]), dataset)
    towers = build_towers(recipe, dataset).eval()
    batches = dataset.eval_batches("valid", history_length=recipe.train.history_length)
    expected = evaluate(
        towers, batches, item_counts=dataset.item_counts, exclude_history=exclude == "yes"
    ).means()["recall@50"]
    assert _validation_metric(dataset, towers, recipe) == pytest.approx(expected, abs=1e-9)


def test_the_protocols_differ(dataset):
    """Otherwise the test above could not fail."""
    towers = build_towers(resolve(RECIPE, dataset), dataset).eval()
    batches = dataset.eval_batches("valid", history_length=RECIPE.train.history_length)
    found = evaluate(towers, batches, item_counts=dataset.item_counts)
    assert found.means()["recall@50"] != found.unseen.means()["recall@50"]


def test_widths_and_lengths_are_raced_too(dataset, tmp_path):
    recipe = AUTO.changed(["model.tower.widths=[8, 16]", "model.tower.history_lengths=[20]"])
    wanted = {  # each tower's own length and 20, with d = 8 of the recipe and 16
        *(("recent_items", length, d) for length in (10, 20) for d in (8, 16)),
        *(
            (name, length, d)
            for name in ("youtube_dnn", "gru4rec")
            for length in (50, 20)
            for d in (8, 16)
        ),
    }
    candidates = candidates_of(recipe)
    found = [(c.model.name, c.train.history_length, c.model.dim) for c in candidates.values()]
    assert set(found) == wanted
    assert len(found) == len(wanted)
    assert "recency pooling, L = 20, d = 16" in candidates

    def measure(_, candidate):  # the widest with the shortest history
        return candidate.model.dim / 100 - candidate.train.history_length / 1000

    choice = choose(dataset, tmp_path / "run", measure, recipe)
    chosen = choice.applied_to(recipe)
    assert (chosen.model.name, chosen.model.dim) == ("recent_items", 16)
    assert chosen.train.history_length == 10
    assert "dim = 16" in str(choice)


def test_wide_towers_race_narrow_and_train_wide(dataset, tmp_path):
    widths = []

    def measure(model, candidate):
        assert model.items(torch.tensor([1])).shape == (1, candidate.model.dim)
        widths.append(candidate.model.dim)
        return 1 / candidate.train.history_length

    recipe = AUTO.changed(["model.dim=72", "model.tower.race_seconds=1e-9"])
    choice = choose(dataset, tmp_path / "run", measure, recipe)
    assert widths == [64] * 4
    assert choice.applied_to(recipe).model.dim == 72
    assert "after 3 steps with 64 dimensions its recall@50" in str(choice)
    widths.clear()
    wide = recipe.changed(["model.tower.widths=[96]"])  # widths are compared as they are
    assert choose(dataset, tmp_path / "wide", measure, wide).applied_to(wide).model.dim == 72
    assert widths == [72, 96] * 4


def test_the_width_follows_the_number_of_samples(dataset, tmp_path, monkeypatch):
    document = {
        **DOCUMENT,
        "model": {key: v for key, v in DOCUMENT["model"].items() if key != "dim"},
    }
    recipe = Recipe.from_dict(document).changed(["model.tower.race_seconds=1e-9"])

    def width(name, of=recipe):
        measure = prefers("10 recent items", "recency pooling", "GRU4REC")
        choice = choose(dataset, tmp_path / name, measure, of)
        assert choice.asked["model"]["dim"] == (of.model.dim if of.says("model", "dim") else "auto")
        return choice.applied_to(of).model.dim

    assert width("few") == 128
    assert width("said", recipe.changed(["model.dim=256"])) == 256
    monkeypatch.setattr(auto_model, "FEW_SAMPLES", dataset.num_samples(1, 0.0))
    assert width("many") == 256


@pytest.mark.parametrize(
    "override", ["widths=256", "widths=[0]", "widths=[true]", 'history_lengths=["20"]']
)
def test_widths_and_lengths_are_checked(override):
    with pytest.raises(ConfigError, match=r"must be a list of positive integers, such as \[128"):
        candidates_of(AUTO.changed([f"model.tower.{override}"]))


def test_a_history_length_of_the_recipe_stays(dataset, tmp_path):
    measure = prefers("GRU4REC", "recency pooling", "10 recent items")
    for recipe in (
        AUTO.changed(["train.history_length=20"]),  # written, though it is the default
        Recipe.from_dict(DOCUMENT | {"train": DOCUMENT["train"] | {"history_length": 20}}),
        replace(AUTO, train=replace(AUTO.train, history_length=7)),
    ):
        length = recipe.train.history_length
        choice = choose(dataset, tmp_path / f"run-{id(recipe)}", measure, recipe)
        assert choice.settings["train"] == {"history_length": length}
        assert {asked for asked in measure.asked if asked[1] == length} == {
            ("recent_items", length),
            ("youtube_dnn", length),
            ("gru4rec", length),
        }
        assert len(candidates_of(recipe)) == 3  # 10 and 20 recent items are one
        measure.asked.clear()


def test_the_run_is_that_of_a_recipe_that_names_the_winner(dataset, tmp_path, gru_wins):
    chosen = fit(dataset, AUTO, tmp_path / "auto")
    by_hand = AUTO.changed(["model.name=gru4rec", "model.tower={}", "train.history_length=50"])
    plain = fit(dataset, by_hand, tmp_path / "by-hand")
    keys = [key for key in plain if key not in TIMES]
    assert {key: chosen[key] for key in keys} == {key: plain[key] for key in keys}
    configs = [json.loads((tmp_path / n / "config.json").read_text()) for n in ("auto", "by-hand")]
    assert {k: v for k, v in configs[0].items() if k != "race"} == configs[1]
    assert configs[0]["model"]["name"] == "gru4rec"
    # Reports put the two together.
    assert choices(configs[0]) == choices(configs[1])


def test_what_is_said_and_recorded(finished):
    out, result, heard = finished
    config = json.loads((out / "config.json").read_text())
    assert result["race"] | {"seal": config["race"]["seal"]} == config["race"]
    assert result["model"] == config["model"]["name"] == config["race"]["settings"]["model"]["name"]
    assert heard[0] == (
        'model.name is "auto": 4 candidates train for 3 steps each and the better half continues, '
        "within 60 CPU seconds"
    )
    assert re.fullmatch(
        rf"model chosen: {result['model']} \(.*history_length = \d+\), because after 40 steps its "
        r"recall@50 of validation users was \d+\.\d\d %, against \d+\.\d\d % of .*; 4 candidates "
        r"were compared in \d+ CPU seconds",
        heard[1],
    )
    assert heard[-1] == heard[1]
    assert config["race"]["asked"]["model"]["name"] == "auto"
    assert config["race"]["asked"]["train"]["history_length"] == "auto"
    assert not (out / "race.json").exists()


def test_the_metric_is_that_of_early_stopping_on_some_users(dataset, tmp_path, monkeypatch):
    """The values in the record, measured again on a model trained as the candidate was."""
    monkeypatch.setattr("crossbatch.fitting.MOST_USERS", 13)
    recipe = AUTO.changed(["train.metric=ndcg@20"])
    result = fit(dataset, recipe, tmp_path / "run", test=False)
    seen = []

    def measure(model, candidate):
        length = candidate.train.history_length
        batches = dataset.eval_batches("valid", history_length=length, max_users=13)
        seen.append(evaluate(model, batches, item_counts=dataset.item_counts))
        return seen[-1].means()["ndcg@20"]

    again = choose(dataset, tmp_path / "again", measure, recipe)
    races = (result["race"]["measured"], again.measured)
    values = [[each["value"] for each in measured] for measured in races]
    assert values[0] == pytest.approx(values[1])
    assert {each.num_users for each in seen} == {13}


def test_an_interrupted_race_continues_and_chooses_the_same(dataset, tmp_path, monkeypatch):
    order = ("recency pooling", "10 recent items", "GRU4REC")
    whole = choose(dataset, tmp_path / "whole", prefers(*order))
    run, second = tmp_path / "run", prefers(*order)
    for stop in (8, 5):  # in the third candidate; in the second round
        with stopped_after(stop, monkeypatch), pytest.raises(Interrupted, match="--resume"):
            choose(dataset, run, second)
    resumed = choose(dataset, run, second)
    assert resumed.settings == whole.settings
    names = [(each["candidate"], each["steps"]) for each in resumed.measured]
    assert names == [(each["candidate"], each["steps"]) for each in whole.measured]
    assert len(second.asked) == len(names)  # nothing was measured twice


def killed(*_):
    raise RuntimeError("killed")


def never(*_):
    raise AssertionError("a race that was over began again")


def test_a_resumed_run_keeps_its_choice(dataset, tmp_path, gru_wins, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:  # between the race and the first step
        patch.setattr("crossbatch.fitting.train_run", killed)
        with pytest.raises(RuntimeError, match="killed"):
            fit(dataset, AUTO, run)
    monkeypatch.setattr("crossbatch.training.race.Contender.train", never)

    def kill(_, step):
        return killed() if step == 25 else None

    with pytest.raises(RuntimeError, match="killed"):
        fit(dataset, AUTO, run, probe=kill, resume=True)
    result = fit(dataset, AUTO, run, resume=True)
    assert (result["model"], result["steps"]) == ("gru4rec", 40)
    assert fit(dataset, AUTO, run, resume=True) == result  # finished
    # The budget does not change what was learned.
    assert fit(dataset, AUTO.changed(["model.tower.race_seconds=9"]), run, resume=True) == result


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.dim=16", r"model\.dim is 16, but the run .* began with 8"),
        ("train.lr=0.5", r"train\.lr is 0\.5, but the run .* began with 0\.01"),
        ("train.history_length=50", r"train\.history_length is 50, but .* began with 'auto'"),
        ("model.tower.first_steps=4", r"model\.tower\.first_steps is 4, but .* began with 3"),
        ('model={name="mind"}', r"model\.name is 'mind', but the run .* began with '"),
    ],
)
def test_resume_with_another_recipe_is_refused(
    finished, dataset, tmp_path, monkeypatch, override, message
):
    out, _, _ = finished
    with pytest.raises(ConfigError, match=message):
        fit(dataset, AUTO.changed([override]), out, resume=True)
    if "mind" not in override:  # during the race too
        with stopped_after(8, monkeypatch), pytest.raises(Interrupted):
            fit(dataset, AUTO, tmp_path / "run")
        with pytest.raises(ConfigError, match=message):
            fit(dataset, AUTO.changed([override]), tmp_path / "run", resume=True)


def test_a_run_of_a_named_model_is_not_continued_as_auto(dataset, tmp_path):
    named = AUTO.changed(["model.name=gru4rec", "model.tower={}", "train.max_steps=20"])
    fit(dataset, named, tmp_path / "run", test=False)
    with pytest.raises(ConfigError, match=r"model\.name is 'auto', but .* began with 'gru4rec'"):
        fit(dataset, AUTO, tmp_path / "run", resume=True)


def test_a_changed_record_is_refused(dataset, tmp_path, gru_wins):
    run = tmp_path / "run"

    def kill(_, step):
        return killed() if step == 25 else None

    with pytest.raises(RuntimeError, match="killed"):
        fit(dataset, AUTO, run, probe=kill)
    whole = (run / "config.json").read_text()
    document = json.loads(whole)
    race = document["race"]
    other = {"model": {"name": "recent_items", "tower": {}}, "train": {"history_length": 10}}
    unsealed = {key: value for key, value in race.items() if key != "seal"}
    for value in (race | {"settings": other}, race | {"reasom": ""}, unsealed, "x", []):
        (run / "config.json").write_text(json.dumps(document | {"race": value}))
        with pytest.raises(DataError, match=r"config\.json was changed: which model the run chose"):
            fit(dataset, AUTO, run, resume=True)
    # The settings are in the recipe too.
    changed = document | {"train": document["train"] | {"history_length": 10}}
    (run / "config.json").write_text(json.dumps(changed))
    with pytest.raises(ConfigError, match=r"history_length is 50, but .* began with 10"):
        fit(dataset, AUTO, run, resume=True)
    (run / "config.json").write_text(whole)
    fit(dataset, AUTO, run, resume=True)


def test_a_run_that_lost_its_record_takes_no_other_model(dataset, tmp_path, monkeypatch):
    """Of models whose weights have the same shapes."""
    run, preferred = tmp_path / "run", [10]

    def measure(_, __, recipe):
        return float(recipe.train.history_length == preferred[0])

    def kill(_, step):
        return killed() if step == 25 else None

    monkeypatch.setattr("crossbatch.fitting._validation_metric", measure)
    with pytest.raises(RuntimeError, match="killed"):
        fit(dataset, AUTO, run, probe=kill)
    (run / "config.json").unlink()
    shutil.copytree(run, tmp_path / "kept")
    (run / "race.json").unlink()
    preferred[0] = 20
    with pytest.raises(DataError, match=r"config\.json is missing .* chose another model"):
        fit(dataset, AUTO, run, resume=True)
    # The measurements in `race.json` give the same choice again.
    race = fit(dataset, AUTO, tmp_path / "kept", resume=True)["race"]
    assert race["candidate"] == "10 recent items"


def test_changed_measurements_are_refused(dataset, tmp_path, monkeypatch):
    run, measure = tmp_path / "run", prefers("GRU4REC", "recency pooling", "10 recent items")
    with stopped_after(8, monkeypatch), pytest.raises(Interrupted):
        choose(dataset, run, measure)
    document = json.loads((run / "race.json").read_text())
    document["measured"][0]["value"] = 0.99
    (run / "race.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"race\.json was changed: delete it to compare"):
        choose(dataset, run, measure)
    (run / "race.json").unlink()
    assert choose(dataset, run, measure).candidate == "GRU4REC"


def test_measurements_of_other_candidates_are_not_used(dataset, tmp_path, monkeypatch):
    run, measure = tmp_path / "run", prefers("GRU4REC", "recency pooling", "10 recent items")
    with stopped_after(8, monkeypatch), pytest.raises(Interrupted):
        choose(dataset, run, measure)
    monkeypatch.delitem(CANDIDATES, "20 recent items")
    choice = choose(dataset, run, measure)
    assert [each["candidate"] for each in choice.measured[:3]] == [ROUND[0], *ROUND[2:]]


def test_the_budget_ends_the_race(dataset, tmp_path):
    clock = iter(range(10_000))
    recipe = AUTO.changed(["model.tower.race_seconds=1"])
    measure = prefers("GRU4REC", "recency pooling", "10 recent items")
    choice = choose(dataset, tmp_path / "run", measure, recipe, clock=lambda: next(clock))
    assert [each["steps"] for each in choice.measured] == [3] * 4
    assert choice.candidate == "GRU4REC"


def test_the_chosen_towers_can_be_evaluated_and_exported(dataset, tmp_path, gru_wins):
    run = tmp_path / "run"
    result = fit(dataset, AUTO, run)
    table = evaluate_runs([run], "test")
    assert table[str(run)]["model"] == "gru4rec"
    assert table[str(run)]["metrics"]["recall@50"] == pytest.approx(result["test"]["recall@50"])
    assert open_run(run).recipe.train.history_length == 50
    export_bundle(run, tmp_path / "bundle")


def test_ctrl_c_during_the_race(dataset, tmp_path):
    program = f"""
import sys
from crossbatch.training.race import Contender
train = Contender.train
def waiting(self, steps, interrupted):
    if steps == 3:
        print("waiting", flush=True)
        sys.stdin.readline()
    train(self, steps, interrupted)
Contender.train = waiting
from crossbatch.cli import main
sys.argv = ["crossbatch", "train", "recipe.toml", "--data", {str(dataset.path)!r}, "--out", "run"]
main()
"""
    (tmp_path / "recipe.toml").write_text(
        '[model]\nname = "auto"\ndim = 8\n[model.tower]\nfirst_steps = 3\n'
        '[sampler]\nname = "in_batch"\n'
        '[train]\nbatch_size = 32\nmax_steps = 6\nthreads = 1\ndevice = "cpu"\n'
    )
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, text=True, **pipes)
    assert process.stdout.readline() == "waiting\n", process.communicate()[1]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate("\n")
    assert process.returncode == 130, errors
    assert "stopped while candidates for the model were compared" in errors
    assert "--resume" in errors
    assert "Traceback" not in errors
    recipe = Recipe.load(tmp_path / "recipe.toml")
    assert fit(dataset, recipe, tmp_path / "run", resume=True)["race"]["measured"]


@pytest.mark.parametrize(
    ("tower", "message"),
    [
        ({"pooling": "recency"}, r"unknown key model\.tower\.pooling; an auto model knows: race_s"),
        ({"race_seconds": 0}, r"model\.tower\.race_seconds must be a positive number, got 0"),
        ({"race_seconds": "long"}, r"race_seconds must be a positive number, got 'long'"),
        ({"race_seconds": float("nan")}, r"race_seconds must be a positive number, got nan"),
        ({"first_steps": 1.5}, r"model\.tower\.first_steps must be an integer of 1 or more, got 1"),
        ({"first_steps": True}, r"first_steps must be an integer of 1 or more, got True"),
    ],
)
def test_bad_options_are_one_sentence(dataset, tmp_path, tower, message):
    bad = replace(AUTO, model=replace(AUTO.model, tower=tower))
    with pytest.raises(ConfigError, match=message):
        fit(dataset, bad, tmp_path / "run")


def test_a_metric_that_is_not_measured_is_refused_before_the_race(dataset, tmp_path):
    with pytest.raises(ConfigError, match=r"train\.metric must be one of"):
        fit(dataset, AUTO.changed(["train.metric=luck@3"]), tmp_path / "run")


def test_towers_of_the_callers_own_leave_nothing_to_choose(dataset, tmp_path):
    towers = build_towers(RECIPE, dataset)
    with pytest.raises(ConfigError, match=r'model= was passed, but model\.name is "auto"'):
        fit(dataset, AUTO, tmp_path / "run", model=towers)


def test_several_processes_do_not_race(dataset, tmp_path):
    with pytest.raises(ConfigError, match="start the run without torchrun, or name a model"):
        choose(dataset, tmp_path / "run", never, ranks=object())


def test_towers_are_not_built_of_auto(dataset):
    with pytest.raises(ConfigError, match=r'model\.name is "auto", which .* name one of youtube'):
        build_towers(Recipe(model=ModelConfig(name="auto")), dataset)


def test_candidates_that_all_diverge_are_reported(dataset, tmp_path):
    with pytest.raises(DivergedError, match="no candidate has a finite loss and recall@50"):
        choose(dataset, tmp_path / "run", lambda *_: float("nan"))


@pytest.mark.parametrize(
    ("values", "level_share", "over"),
    [
        ((0.200, 0.193), 0.0, True),  # 3.5 % behind
        ((0.200, 0.195), 0.0, False),
        ((0.200, 0.200), 0.0, False),
        ((0.200, 0.195), 0.03, True),  # level
        ((0.200, 0.193), 0.03, True),
        ((0.200, 0.195), None, False),  # not two candidates
        ((0.200, 0.100), None, False),
        ((0.0, 0.0), 0.03, False),
    ],
)
def test_a_race_of_two_is_over_when_one_is_clearly_better_or_they_are_level(
    values, level_share, over
):
    ahead = [
        Measurement(name, 3, value, 0.1, 0.1, 0.4) for name, value in zip("ab", values, strict=True)
    ]
    assert settled(ahead, level_share) is over


def test_the_clock_does_not_decide_a_race_that_is_settled(dataset, tmp_path, monkeypatch):
    two = ("10 recent items", "recency pooling")
    monkeypatch.setattr(auto_model, "CANDIDATES", {name: CANDIDATES[name] for name in two})
    recipe = AUTO.changed(["model.tower.race_seconds=1e9"])
    lead = prefers("10 recent items", "recency pooling", "GRU4REC")
    measured = choose(dataset, tmp_path / "run", lead, recipe).measured
    assert [each["steps"] for each in measured] == [3, 3]
