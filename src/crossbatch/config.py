"""Recipes: TOML files that say what to train, with every key checked.

    recipe = Recipe.load("demo", overrides=["train.seed=1"])   # a name, or the path of a file

Sections whose `name` picks a class (`[sampler]`, `[model]`) hand their other keys to its
constructor: its keyword arguments are the schema, so an option is declared once.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from crossbatch.errors import ConfigError, check_choice
from crossbatch.recipes import recipe_path

T = TypeVar("T")
DOTS = re.compile(r'\.(?=(?:[^"]*"[^"]*")*[^"]*$)')  # between the keys of a path, not in quotes


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """`[model]`: which towers; `[model.tower]` and `[model.item]` hold their own options.

    Attributes:
        name: A key of `MODELS`, or `"auto"`: chosen by a race of candidates, whose options are then
            those of `tower`; see `training.auto_model`.
        user_tower: Import path `package.module:Class` of a user tower of your own; it takes the
            place of `name`.
        item_tower: Import path of an item tower, or a key of `ITEM_TOWERS`; empty for `ItemTower`.
        model: Import path of a whole two-tower model, in the place of both towers.
        dim: Dimension d of all vectors.
        init: `"cooccurrence"`: normalised id vectors begin near those of items that stand near
            them in the training sequences, see `training.cooccurrence`; or `"random"`.
        history: `"item_tower"`, `"id"` (tied id table) or `"content"`; see `TwoTower`.
        normalize: Whether vectors are L2-normalised.
        history_dropout: Share of history items dropped at random in training.
        item_features: Names of the content features to use; `["*"]` for all that the data has.
        user_features: Likewise for users.
        context: Likewise for the context of requests.
        context_dropout: Share of the values of context, and of user features beside it, hidden at
            random in training, so that requests may leave some out.
        tower: Options of the user tower.
        item: Options of the item tower.
        options: Options of a whole `model`.
    """

    name: str = "auto"
    user_tower: str = ""
    item_tower: str = ""
    model: str = ""
    dim: int = 256
    init: str = "cooccurrence"
    history: str = "item_tower"
    normalize: bool = True
    history_dropout: float = 0.3
    item_features: tuple[str, ...] = ("*",)
    user_features: tuple[str, ...] = ("*",)
    context: tuple[str, ...] = ("*",)
    context_dropout: float = 0.05
    tower: dict[str, Any] = field(default_factory=dict)
    item: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("model.init", self.init, ("cooccurrence", "random"))
        if self.model and (self.user_tower or self.item_tower):
            raise ConfigError(
                "model.model is a whole model: leave model.user_tower and model.item_tower out"
            )
        if self.options and not self.model:
            raise ConfigError(
                "model.options are those of model.model; options of towers are model.tower and "
                "model.item"
            )
        if self.model and (self.tower or self.item):
            raise ConfigError(
                "model.tower and model.item are options of towers; those of model.model are "
                "model.options"
            )
        for key in ("user_tower", "model"):
            path = getattr(self, key)
            if path and ":" not in path:
                raise ConfigError(
                    f"model.{key} must be an import path package.module:Class, got {path!r}"
                )
            if path and self.name not in ("auto", path):
                raise ConfigError(
                    f"model.name is {self.name!r} and model.{key} is {path!r}: leave one out"
                )
            if path:
                object.__setattr__(self, "name", path)

    @property
    def own_code(self) -> str:
        """The import paths that the section names, for messages; empty if there is none."""
        return ", ".join(dict.fromkeys(p for p in (self.name, self.item_tower) if ":" in p))


@dataclass(frozen=True, slots=True)
class LossConfig:
    """`[loss]`: the softmax over the sampler's candidates.

    Attributes:
        temperature: Divides the scores.
        learn_temperature: Whether the temperature is a parameter that starts there.
        q: Sampling distribution for log q: `"sampler_law"` (the exact distribution of
            in-batch positives), `"frequency"` (raw item counts) or `"none"`.
        q_power: Power of q in the correction, `log q^power`. Below 1 a part of the popularity is
            not corrected for, and rare items get higher scores.
        mask: `"both"`, `"batch"` or `"none"`; see `sampled_softmax_loss`.
        mask_history: Whether items of a row's own history are masked as negatives.
        mask_later: Whether later items of a row's own sequence are masked as negatives.
        impressions: Whether items that were shown with a row's positive are negatives of the row,
            of a dataset that has them.
        l2: Weight of the mean squared length of the batch's user and item vectors.
        chunk_size: Columns per block of the softmax; 0 for all at once.
    """

    temperature: float = 0.1
    learn_temperature: bool = False
    q: str = "sampler_law"
    q_power: float = 1.0
    mask: str = "both"
    mask_history: bool = False
    mask_later: bool = False
    impressions: bool = True
    l2: float = 0.0
    chunk_size: int = 0

    def __post_init__(self) -> None:
        _positive("loss.temperature", self.temperature)
        check_choice("loss.q", self.q, ("sampler_law", "frequency", "none"))
        if not 0 < self.q_power <= 1:
            raise ConfigError(f"loss.q_power must be above 0 and at most 1, got {self.q_power}")
        check_choice("loss.mask", self.mask, ("both", "batch", "none"))
        _not_negative("loss.l2", self.l2)
        _not_negative("loss.chunk_size", self.chunk_size)


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """`[train]`: optimiser, length, evaluation, early stopping.

    Attributes:
        batch_size: Rows per batch B.
        history_length: Most recent items that describe a user, L.
        min_history: Items that a sample has before its target, at least.
        histories: What a history has: `"all"` items before a target, or those of its `"session"`.
        sample_by: `"user"` draws users uniformly, then one of each user's targets; `"interaction"`
            draws all targets alike, so that a user counts by the number of its interactions.
        newest_days: Only items of so many days before the last training interaction are targets;
            0 for all.
        lr: Learning rate.
        lr_of: Learning rates of single parts by the beginning of their weights' names, such as
            `"item_tower.encoder" = 2e-5`.
        schedule: `"constant"`, `"cosine"` or `"exponential"` over `max_steps`.
        warmup_steps: Batches over which the rates rise linearly to those of the schedule.
        clip_norm: Largest norm of the gradient of all weights together; 0 for any.
        adam: `"dense"` moves every row at every step, as `torch.optim.Adam` does; `"lazy"` moves
            only the rows of the batch. Both cost the rows of the batch.
        tables: Optimiser of embedding tables: `"adam"`; `"adagrad"`, row-wise with one number of
            state per row; or `"sharded"`, the same with the id table sharded by TorchRec.
        table_lr: Learning rate of row-wise Adagrad.
        weight_decay: Decoupled decay of the parameters that the batch uses.
        moments: What becomes of the optimiser's moments: `"anew"` starts from zero and leaves none;
            `"save"` starts from zero and stores those of the best model beside it, three times the
            disk space; `"keep"` also starts from those that the run of `--from` stored.
        accumulate: Batches per optimiser step.
        precision: `"float32"`, or `"bfloat16"` for autocast.
        max_steps: Longest training, in batches; 0 for five passes over the training samples.
        eval_every: Batches between evaluations on the validation users.
        eval_users: Validation users per evaluation during training, always the same random choice;
            0 for all. The final result always uses all users.
        patience: Evaluations without improvement before stopping.
        patience_from_warmup: Whether misses count only after the sampler's warm-up.
        metric: Validation metric that selects the best model.
        exclude_seen: Whether that metric leaves out items that the user has had: `"yes"`, `"no"`,
            or `"auto"` for yes where less than 1 % of the validation targets repeat such an item.
        seed: Seed of initialisation, batches and sampling.
        log_every: Batches between journal lines with diagnostics.
        keep_checkpoints: Newest checkpoints kept for `--resume`.
        threads: CPU threads; 0 measures at the start whether more than one speeds up steps, and
            evaluates with all.
        device: `"auto"`, `"cpu"` or `"cuda"`.
    """

    batch_size: int = 256
    history_length: int = 20
    min_history: int = 1
    histories: str = "all"
    sample_by: str = "interaction"
    newest_days: float = 0.0
    lr: float = 0.002
    lr_of: dict[str, float] = field(default_factory=dict)
    schedule: str = "cosine"
    warmup_steps: int = 0
    clip_norm: float = 0.0
    adam: str = "lazy"
    tables: str = "adam"
    table_lr: float = 0.05
    weight_decay: float = 0.0
    moments: str = "anew"
    accumulate: int = 1
    precision: str = "float32"
    max_steps: int = 0
    eval_every: int = 1000
    eval_users: int = 1_000
    patience: int = 20
    patience_from_warmup: bool = True
    metric: str = "recall@50"
    exclude_seen: str = "auto"
    seed: int = 0
    log_every: int = 100
    keep_checkpoints: int = 2
    threads: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("batch_size", "history_length", "accumulate", "eval_every"):
            _positive(f"train.{name}", getattr(self, name))
        for name in ("log_every", "keep_checkpoints", "lr", "table_lr"):
            _positive(f"train.{name}", getattr(self, name))
        for name in ("weight_decay", "max_steps", "eval_users", "patience", "threads", "seed"):
            _not_negative(f"train.{name}", getattr(self, name))
        for name in ("newest_days", "warmup_steps", "clip_norm"):
            _not_negative(f"train.{name}", getattr(self, name))
        for part, rate in self.lr_of.items():
            _positive(f'train.lr_of."{part}"', rate)
        if self.min_history < 1:
            raise ConfigError(
                f"train.min_history must be at least 1, got {self.min_history}: a target needs an "
                "item before it"
            )
        if self.eval_every % self.accumulate:
            raise ConfigError(
                f"train.eval_every must be a multiple of train.accumulate={self.accumulate}, "
                f"got {self.eval_every}"
            )
        check_choice("train.sample_by", self.sample_by, ("user", "interaction"))
        check_choice("train.histories", self.histories, ("all", "session"))
        check_choice("train.exclude_seen", self.exclude_seen, ("auto", "yes", "no"))
        check_choice("train.schedule", self.schedule, ("constant", "cosine", "exponential"))
        check_choice("train.adam", self.adam, ("dense", "lazy"))
        check_choice("train.tables", self.tables, ("adam", "adagrad", "sharded"))
        check_choice("train.moments", self.moments, ("anew", "save", "keep"))
        for key, needed, why in (
            ("moments", "anew", "stores no moments for a later run"),
            ("accumulate", 1, "learns in the backward pass"),
            ("clip_norm", 0, "learns in the backward pass"),
        ):
            if self.tables == "sharded" and getattr(self, key) != needed:
                raise ConfigError(
                    f'train.tables="sharded" {why} and needs train.{key}={json.dumps(needed)}, '
                    f"got {getattr(self, key)!r}"
                )
        check_choice("train.precision", self.precision, ("float32", "bfloat16"))
        check_choice("train.device", self.device, ("auto", "cpu", "cuda"))


# The settings of the paper (and of ComiRec's code), for its tables; defaults are better ones.
PAPER: dict[str, dict[str, Any]] = {
    "model": {
        "name": "youtube_dnn",
        "dim": 64,
        "init": "random",
        "history": "id",
        "normalize": False,
        "history_dropout": 0.0,
        "item_features": [],
        "user_features": [],
        "context": [],
    },
    "loss": {"temperature": 1.0},
    "train": {
        "batch_size": 128,
        "history_length": 20,
        "min_history": 4,
        "sample_by": "user",
        "lr": 0.001,
        "schedule": "constant",
        "adam": "dense",
        "max_steps": 1_000_000,
        "eval_users": 5_000,
        "exclude_seen": "no",
    },
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """The configuration of a run, without its data.

    Attributes:
        model: `[model]`.
        sampler: `[sampler]`: `name` and the options of the sampler that it names.
        loss: `[loss]`.
        train: `[train]`.
        written: The document that the recipe was read from, before defaults were filled in.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    sampler: dict[str, Any] = field(default_factory=lambda: {"name": "auto"})
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    written: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(
        cls, recipe: str | Path | None = None, overrides: list[str] | tuple[str, ...] = ()
    ) -> Recipe:
        """Read a TOML file and apply `section.key=value` overrides.

        Args:
            recipe: A file, or the name of a recipe of the package, such as `"strong"`; None for the
                defaults.
            overrides: Keys to change, as `--set` has them.
        """
        document = {} if recipe is None else read_toml(recipe_path(recipe), "recipe")
        for override in overrides:
            _apply_override(document, override)
        return cls.from_dict(document)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Recipe:
        """Build from plain dictionaries, as TOML or `config.json` gives them."""
        known = {f.name for f in dataclasses.fields(cls) if f.name != "written"}
        for section, content in document.items():
            if section not in known:
                raise ConfigError(f"unknown section [{section}]{_nearest(section, known)}")
            if not isinstance(content, Mapping):
                raise ConfigError(f"[{section}] must be a table of keys, got {content!r}")
        sampler = dict(document.get("sampler", {"name": "auto"}))
        if not isinstance(sampler.get("name"), str):
            raise ConfigError('[sampler] needs a name, such as name = "auto"')
        return cls(
            model=_section(ModelConfig, "model", document),
            sampler=sampler,
            loss=_section(LossConfig, "loss", document),
            train=_section(TrainConfig, "train", document),
            written=copy.deepcopy(dict(document)),
        )

    def changed(self, overrides: list[str] | tuple[str, ...]) -> Recipe:
        """Return the recipe with `section.key=value` overrides applied."""
        document, written = self.to_dict(), copy.deepcopy(dict(self.written))
        for override in overrides:
            _apply_override(document, override)
            _apply_override(written, override)
        return dataclasses.replace(self.from_dict(document), written=written)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries with every default filled in."""
        document = dataclasses.asdict(self)
        del document["written"]
        return document

    def says(self, section: str, key: str) -> bool:
        """Whether the author of the recipe set a key: wrote it, or changed it from the default."""
        own, default = (getattr(getattr(each, section), key) for each in (self, Recipe()))
        return key in self.written.get(section, {}) or own != default


def read_toml(path: Path, kind: str) -> dict[str, Any]:
    """Return the content of a TOML file; `kind` says in errors what it was read as."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{kind} {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{kind} {path} is not TOML: {error}") from None


def build(
    table: Mapping[str, Callable[..., T]], section: str, options: Mapping[str, Any], *context: Any
) -> T:
    """Build the class that `options["name"]` names in `table`, with the other keys as arguments."""
    name = options.get("name", "")
    if name not in table:
        raise ConfigError(f"unknown {section}.name {name!r}{_nearest(str(name), table)}")
    arguments = {key: value for key, value in options.items() if key != "name"}
    check_options(table[name], section, arguments)
    try:
        return table[name](*context, **arguments)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"[{section}] {error}") from error


def filled(make: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` with the defaults of `make`'s keywords filled in."""
    parameters = inspect.signature(make).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    return defaults | dict(options)


def check_options(make: Callable[..., Any], section: str, options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a key that `make` has no keyword for."""
    parameters = inspect.signature(make).parameters.values()
    known = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    for key in options:
        if key not in known:
            raise ConfigError(f"unknown key {section}.{key}{_nearest(key, known)}")


def _section(kind: type[T], name: str, document: Mapping[str, Any]) -> T:
    content = dict(document.get(name, {}))
    hints = get_type_hints(kind)
    for key, value in content.items():
        if key not in hints:
            raise ConfigError(f"unknown key {name}.{key}{_nearest(key, hints)}")
        content[key] = _converted(f"{name}.{key}", value, hints[key])
    return kind(**content)


def _converted(key: str, value: Any, hint: Any) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if get_args(hint) == (str, ...):
        if not isinstance(value, list | tuple) or not all(isinstance(e, str) for e in value):
            raise ConfigError(f"{key} must be a list of strings, got {value!r}")
        return tuple(value)
    if get_args(hint) == (str, float):
        plain_numbers = isinstance(value, Mapping) and {*map(type, value.values())} <= {int, float}
        if not plain_numbers:
            raise ConfigError(f"{key} must be a table of numbers, got {value!r}")
        return {name: float(number) for name, number in value.items()}
    plain = dict if get_args(hint)[-1:] == (Any,) else hint
    if not isinstance(value, plain) or (plain is not bool and isinstance(value, bool)):
        raise ConfigError(f"{key} must be of type {plain.__name__}, got {value!r}")
    return value


def _apply_override(document: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    keys = [key.strip('"') for key in DOTS.split(path.strip())]
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text  # a bare word is a string
    if not separator or (len(keys) < 2 and not isinstance(value, dict)):
        raise ConfigError(
            f"--set needs section.key=value, or section={{...}} for a whole section, "
            f"got {override!r}"
        )
    for key in keys[:-1]:
        document = document.setdefault(key, {})
        if not isinstance(document, dict):
            raise ConfigError(f"--set {override!r}: {key!r} is not a section")
    document[keys[-1]] = value


def _nearest(word: str, known: Any) -> str:
    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(known))}"


def _positive(key: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{key} must be positive, got {value}")


def _not_negative(key: str, value: float) -> None:
    if not value >= 0:
        raise ConfigError(f"{key} must be 0 or more, got {value}")
