from __future__ import annotations

from crossbatch.reports.runs import read_runs
from crossbatch.reports.variants import (
    ADDED_CHOICES,
    choices,
    differing_keys,
    group_runs,
    reference_of,
)

from .conftest import MakeRun, run_config


def test_seeds_of_one_configuration_are_one_variant(make_run: MakeRun) -> None:
    paths = [make_run(f"s{seed}", seed=seed) for seed in (2, 0, 1)]
    variants = group_runs(read_runs(paths))
    assert [[run.seed for run in variant.runs] for variant in variants] == [[2, 0, 1]]
    assert variants[0].label == "MIND · In-batch"


def test_machine_and_paths_do_not_split_a_variant(make_run: MakeRun) -> None:
    settings = run_config("mind", {"name": "in_batch"}, 1, version="9", environment={"cpu": "x"})
    settings["dataset"] = {"path": "/elsewhere/toy", "checksum": "c0ffee"}
    settings["train"]["threads"] = 8
    runs = read_runs([make_run("a"), make_run("b", config=settings, seed=1)])
    assert len(group_runs(runs)) == 1


def test_published_and_repaired_gradients_never_share_a_name(make_run: MakeRun) -> None:
    paths = [
        make_run(kind, sampler="cross_batch", options={"item_gradient": kind})
        for kind in ("paper", "balanced", "split")
    ]
    names = [variant.sampler_name for variant in group_runs(read_runs(paths))]
    assert sorted(names) == [
        "Cross-batch, as published",
        "Cross-batch, balanced",
        "Cross-batch, split",
    ]
    lone = group_runs(read_runs(paths[:1]))[0]
    assert lone.sampler_name == "Cross-batch, as published"


def test_variants_of_one_name_are_labelled_by_what_differs(make_run: MakeRun) -> None:
    paths = [
        make_run(f"m{size}", sampler="cross_batch", options={"capacity": size, "warmup_steps": 5})
        for size in (2432, 128, 10112)
    ]
    names = [variant.sampler_name for variant in group_runs(read_runs(paths))]
    assert names == [f"Cross-batch, capacity {size}" for size in (128, 2432, 10112)]


def test_samplers_stand_in_the_order_of_the_paper_and_newcomers_last(make_run: MakeRun) -> None:
    order = ["aaa_new", "cross_batch", "mixed", "in_batch", "uniform"]
    paths = [make_run(name, sampler=name) for name in order]
    found = [variant.first.sampler for variant in group_runs(read_runs(paths))]
    assert found == ["uniform", "in_batch", "mixed", "cross_batch", "aaa_new"]


def test_reference_is_the_most_similar_in_batch_run_of_the_same_model(make_run: MakeRun) -> None:
    def config(sampler: str, lr: float, model: str = "mind") -> dict[str, object]:
        settings = run_config(model, {"name": sampler}, 0)
        settings["train"]["lr"] = lr
        return settings

    paths = [
        make_run("slow", config=config("in_batch", 0.1)),
        make_run("fast", config=config("in_batch", 0.2)),
        make_run("other", model="gru4rec", config=config("in_batch", 0.2, "gru4rec")),
        make_run("ours", sampler="mixed", config=config("mixed", 0.2)),
    ]
    variants = group_runs(read_runs(paths))
    ours = next(variant for variant in variants if variant.first.name == "ours")
    reference = reference_of(ours, variants)
    assert reference is not None
    assert reference.first.name == "fast"


def test_no_reference_across_data_sets(make_run: MakeRun) -> None:
    settings = run_config("mind", {"name": "in_batch"}, 0)
    settings["dataset"] = {"path": "data/other", "checksum": "beef"}
    paths = [make_run("a", config=settings), make_run("b", sampler="mixed")]
    variants = group_runs(read_runs(paths))
    ours = next(variant for variant in variants if variant.first.name == "b")
    assert reference_of(ours, variants) is None


def test_no_reference_across_batch_sizes(make_run: MakeRun) -> None:
    settings = run_config("mind", {"name": "in_batch"}, 0)
    settings["train"]["batch_size"] = 2 * int(settings["train"].get("batch_size", 16))
    paths = [make_run("larger", config=settings), make_run("ours", sampler="mixed")]
    variants = group_runs(read_runs(paths))
    ours = next(variant for variant in variants if variant.first.name == "ours")
    assert reference_of(ours, variants) is None


def test_choices_have_dotted_keys_and_no_seeds() -> None:
    found = choices({"train": {"seed": 1, "betas": [0.9, 0.999], "amp": None}, "seed": 2})
    assert found == ADDED_CHOICES | {"train.betas": "[0.9, 0.999]", "train.amp": "null"}


def test_a_missing_key_differs() -> None:
    assert differing_keys([{"a": "1", "b": "2"}, {"a": "1"}]) == ["b"]


def test_what_an_earlier_version_could_not_choose_does_not_split_a_variant(
    make_run: MakeRun,
) -> None:
    paths = [make_run("earlier", seed=0)]
    for number, spared in enumerate((False, True), start=1):
        settings = run_config("mind", {"name": "in_batch"}, number)
        settings["loss"] = {**settings.get("loss", {}), "mask_later": spared}
        paths.append(make_run(f"later-{number}", config=settings, seed=number))
    variants = group_runs(read_runs(paths))
    assert sorted([run.seed for run in variant.runs] for variant in variants) == [[0, 1], [2]]


def test_in_batch_that_spares_later_items_is_compared_with_the_plain_one(
    make_run: MakeRun,
) -> None:
    settings = run_config("mind", {"name": "in_batch"}, 0)
    settings["loss"] = {**settings.get("loss", {}), "mask_later": True}
    paths = [make_run("plain"), make_run("spared", config=settings)]
    variants = group_runs(read_runs(paths))
    plain, spared = sorted(variants, key=lambda v: v.options["loss.mask_later"])
    assert reference_of(spared, variants) is plain
    assert reference_of(plain, variants) is plain
