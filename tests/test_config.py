import pytest

from crossbatch.config import PAPER, ModelConfig, Recipe, build
from crossbatch.errors import ConfigError
from crossbatch.training import auto_model
from crossbatch.training.build import AUTO


def load(tmp_path, text, *overrides):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return Recipe.load(path, list(overrides))


def test_defaults_let_the_data_choose_and_use_every_interaction(tmp_path):
    recipe = load(tmp_path, "")
    assert recipe.sampler == {"name": "auto"}
    assert (recipe.model.name, recipe.model.dim) == ("auto", 256)
    assert (recipe.train.min_history, recipe.train.sample_by) == (1, "interaction")


def test_the_papers_settings_are_written_out():
    recipe = Recipe.from_dict(PAPER)
    assert (recipe.model.name, recipe.model.dim, recipe.model.normalize) == (
        "youtube_dnn",
        64,
        False,
    )
    assert (recipe.train.batch_size, recipe.train.lr, recipe.train.adam) == (128, 0.001, "dense")
    assert (recipe.train.min_history, recipe.train.sample_by) == (4, "user")
    assert (recipe.loss.temperature, recipe.train.exclude_seen) == (1.0, "no")


def test_round_trip_through_plain_dictionaries(tmp_path):
    recipe = load(tmp_path, '[model]\nitem_features = ["a"]\n[model.tower]\ninterests = 2\n')
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    assert recipe.model.item_features == ("a",)
    assert recipe.model.tower == {"interests": 2}


def test_a_recipe_knows_what_its_author_wrote(tmp_path):
    recipe = load(tmp_path, "[train]\nhistory_length = 20\n", "model.history_dropout=0")
    said = [("train", "history_length"), ("model", "history_dropout")]
    unsaid = [("train", "lr"), ("model", "dim")]
    assert recipe.train.history_length == Recipe().train.history_length  # the default, but written
    assert all(recipe.says(*key) for key in said)
    assert not any(recipe.says(*key) for key in unsaid)
    # Changed, by overrides of a key or of a whole section, or in Python.
    assert recipe.changed(["train.lr=0.001"]).says("train", "lr")
    assert not recipe.changed(["train.lr=0.001"]).says("model", "dim")
    assert recipe.changed(["model={dim=64}"]).says("model", "dim")
    assert not recipe.says("model", "dim")
    in_python = Recipe(model=ModelConfig(dim=8))
    assert in_python.says("model", "dim")
    assert not in_python.says("train", "history_length")


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("train.lr=0.5", "train", "lr", 0.5),
        ("train.lr=1", "train", "lr", 1.0),
        ("model.name=mind", "model", "name", "mind"),
        ("model.normalize=true", "model", "normalize", True),
        ("train.seed = 7", "train", "seed", 7),
    ],
)
def test_overrides(tmp_path, override, section, key, value):
    recipe = load(tmp_path, "[train]\nlr = 0.1\n", override)
    assert getattr(getattr(recipe, section), key) == value


def test_a_whole_section_can_be_replaced(tmp_path):
    text = '[sampler]\nname = "cross_batch"\ncapacity = 9\n'
    assert load(tmp_path, text, 'sampler={name="in_batch"}').sampler == {"name": "in_batch"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[written]\n", r"unknown section \[written\]"),
        ("[trian]\n", r"unknown section \[trian\]; did you mean 'train'"),
        ("[train]\nbatchsize = 4\n", r"train\.batchsize; did you mean 'batch_size'"),
        ("[train]\nlr = -1\n", r"train\.lr must be positive, got -1"),
        ('[train]\nlr = "fast"\n', r"train\.lr must be of type float, got 'fast'"),
        ("[train]\nseed = true\n", r"train\.seed must be of type int, got True"),
        ("[train]\nseed = 1.5\n", r"train\.seed must be of type int, got 1\.5"),
        ('[train]\nadam = "lzy"\n', r"train\.adam must be one of dense, lazy, got 'lzy'"),
        ("[train]\nmin_history = 0\n", r"train\.min_history must be at least 1, got 0: a target"),
        ("[train]\nmin_history = -4\n", r"train\.min_history must be at least 1, got -4"),
        (
            '[train]\nsample_by = "item"\n',
            r"sample_by must be one of user, interaction, got 'item'",
        ),
        ("[loss]\ntemperature = 0\n", r"loss\.temperature must be positive, got 0"),
        ("[sampler]\ncapacity = 4\n", r"\[sampler\] needs a name"),
        ("train = 3\n", r"\[train\] must be a table"),
        ("[train\n", "is not TOML"),
        ("[train]\naccumulate = 3\neval_every = 10\n", "multiple of train.accumulate=3"),
        ("[model]\nitem_features = [1]\n", "list of strings"),
    ],
)
def test_mistakes_are_one_sentence_with_the_remedy(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value).strip() or "TOML" in message


def test_override_without_a_section_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--set needs section\.key=value"):
        load(tmp_path, "", "lr=3")


def test_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        Recipe.load(tmp_path / "none.toml")


def make(context: int, *, size: int = 1) -> tuple[int, int]:
    if size < 0:
        raise ValueError(f"size must be 0 or more, got {size}")
    return context, size


def test_build_hands_the_other_keys_to_the_constructor():
    assert build({"make": make}, "sampler", {"name": "make", "size": 3}, 5) == (5, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "mke"}, r"unknown sampler\.name 'mke'; did you mean 'make'"),
        ({"name": "make", "siz": 1}, r"unknown key sampler\.siz; did you mean 'size'"),
        ({"name": "make", "size": -1}, r"\[sampler\] size must be 0 or more, got -1"),
    ],
)
def test_build_names_what_is_wrong(options, message):
    with pytest.raises(ConfigError, match=message):
        build({"make": make}, "sampler", options, 5)


def test_a_changed_recipe_is_another_one():
    recipe = Recipe.from_dict({"model": {"item_features": ["genres"]}, "train": {"seed": 3}})
    other = recipe.changed(["train.lr=0.5", 'sampler={name="in_batch"}', "model.tower.interests=2"])
    assert (other.train.lr, other.train.seed) == (0.5, 3)
    assert other.sampler == {"name": "in_batch"}
    assert other.model.tower == {"interests": 2}
    assert other.model.item_features == ("genres",)
    assert (recipe.train.lr, recipe.model.tower) == (0.002, {})
    with pytest.raises(ConfigError, match="did you mean 'lr'"):
        recipe.changed(["train.lrr=1"])


def test_the_strong_recipe_writes_the_defaults_out():
    strong, defaults = Recipe.load("strong").to_dict(), Recipe().to_dict()
    assert strong["model"].pop("tower") == auto_model.AUTO
    assert strong["sampler"] == AUTO
    del defaults["model"]["tower"], strong["sampler"], defaults["sampler"]
    assert strong == defaults


def test_rates_of_parts_are_a_table_of_numbers(tmp_path):
    recipe = Recipe.load(
        None, ['train.lr_of."item_tower.encoder"=2e-5', "train.lr_of.user_tower=1"]
    )
    assert recipe.train.lr_of == {"item_tower.encoder": 2e-5, "user_tower": 1.0}
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    for text, message in (
        ('{x="fast"}', "must be a table of numbers"),
        ("{x=0}", r'train\.lr_of\."x" must be positive'),
    ):
        with pytest.raises(ConfigError, match=message):
            Recipe.load(None, [f"train.lr_of={text}"])
    with pytest.raises(ConfigError, match=r"needs train\.clip_norm=0"):
        Recipe.load(None, ["train.tables=sharded", "train.clip_norm=1"])
