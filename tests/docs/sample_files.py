"""Small versions of the files that pages use: logs, a dataset, a run, a bundle, the recipes."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import zipfile
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from crossbatch import Recipe, fit, open_dataset, recipes
from crossbatch.data import PrepareOptions, prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source, write_raw
from crossbatch.serving import export_bundle

if TYPE_CHECKING:
    from pathlib import Path

SIZE = SynthOptions(users=400, items=200, interactions=8000, seed=0)
SMALLER = {"max_steps": 40, "eval_every": 20, "patience": 2, "warmup_steps": 10, "log_every": 10}


class SampleFiles:
    """Makes each kind of file once, when it is first needed, and copies it into a page's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        copy_recipes(folder)

    def copy(self, kind: str, place: Path) -> None:
        """Copy the file or folder of `kind`, the name of a property below, to `place`."""
        made = getattr(self, kind)
        place.parent.mkdir(parents=True, exist_ok=True)
        if made.is_dir():
            shutil.copytree(made, place)
        else:
            shutil.copy(made, place)

    @cached_property
    def log(self) -> Path:
        write_raw(SIZE, self.folder / "raw")
        return self.folder / "raw"

    @cached_property
    def clicked(self) -> Path:
        """A log whose events name the request that they answered."""
        path, rows = self.folder / "clicked.parquet", self._rows()
        request = pl.format("r{}", pl.int_range(len(rows), eager=True) // 2)
        rows.with_columns(request.alias("request")).write_parquet(path)
        return path

    @cached_property
    def shown(self) -> Path:
        """What was shown in answer to these requests."""
        path, rows = self.folder / "shown.jsonl", self._rows()
        request = pl.format("r{}", pl.int_range(len(rows) // 2, eager=True))
        lists = pl.concat_list(rows["item"], rows["item"].reverse()).head(len(rows) // 2)
        pl.select(request.alias("request"), lists.alias("items")).write_ndjson(path)
        return path

    @cached_property
    def events(self) -> Path:
        """A log with kinds, weights and context of events."""
        path, rows = self.folder / "events.parquet", self._rows()
        number = pl.int_range(len(rows), eager=True)
        kinds = pl.Series(["view", "click", "cart", "buy"])
        devices = pl.Series(["phone", "tablet", None])
        rows.with_columns(
            kind=kinds.gather(number % 4),
            seconds=number % 97 / 10,
            device=devices.gather(number % 3),
            visit=number // 5,
            shown=pl.concat_list(rows["item"], rows["item"].reverse(), rows["item"].shift(7)),
            query=pl.Series(["red shoes", "hat"]).gather(number % 2),
        ).write_parquet(path)
        return path

    @cached_property
    def dataset(self) -> Path:
        prepare(synthetic_source(SIZE), self.folder / "data", PrepareOptions(cold_items=0.05))
        return self.folder / "data"

    @cached_property
    def run(self) -> Path:
        recipe = Recipe.load(self.folder / "recipes" / "demo.toml")
        fit(open_dataset(self.dataset), recipe, self.folder / "run")
        return self.folder / "run"

    @cached_property
    def bundle(self) -> Path:
        export_bundle(self.run, self.folder / "first.bundle")
        return self.folder / "first.bundle"

    @cached_property
    def clicks_csv(self) -> Path:
        """A CSV of clicks: user, product, time."""
        return self._table(
            "clicks.csv", {"user": "visitor", "item": "sku", "timestamp": "clicked_at"}
        )

    @cached_property
    def products_csv(self) -> Path:
        """A CSV of products: key, title, price."""
        path = self.folder / "products.csv"
        items = pl.read_parquet(self.log / "items.parquet")
        items.select(sku="item", title="title", price="price").write_csv(path)
        return path

    @cached_property
    def clicks_parquet(self) -> Path:
        return self._table("clicks.parquet", {"user": "user_id", "item": "sku", "timestamp": "ts"})

    @cached_property
    def day_one(self) -> Path:
        return self._days()[0]

    @cached_property
    def day_two(self) -> Path:
        return self._days()[1]

    def _days(self) -> list[Path]:
        """The log without its last day, and that day; its years are made ten days, none empty."""
        time = pl.col("timestamp")
        since = (time - time.min()) / (time.max() - time.min() + 1)  # 0 to 1
        rows = self._rows().select("user", "item", timestamp=(since * 10 * 86_400).cast(pl.Int64))
        paths = [self.folder / f"day-{number}.parquet" for number in (1, 2)]
        rows.filter(time < 9 * 86_400).write_parquet(paths[0])
        rows.filter(time >= 9 * 86_400).write_parquet(paths[1])
        return paths

    @cached_property
    def purchases_parquet(self) -> Path:
        return self._table(
            "log.parquet", {"user": "buyer", "item": "sku", "timestamp": "bought_at"}
        )

    @cached_property
    def products_parquet(self) -> Path:
        path = self.folder / "products.parquet"
        pl.read_parquet(self.log / "items.parquet").rename({"item": "sku"}).write_parquet(path)
        return path

    @cached_property
    def new_items(self) -> Path:
        """A table of two new items with the content of existing ones."""
        path = self.folder / "new.parquet"
        items = pl.read_parquet(self.log / "items.parquet").head(2)
        items.with_columns(item=pl.Series(["new-1", "new-2"])).write_parquet(path)
        return path

    @cached_property
    def users_parquet(self) -> Path:
        path = self.folder / "users.parquet"
        histories = [["B00000001", "B00000002"], ["B00000003"]]
        pl.DataFrame({"user": ["ann", "bob"], "history": histories}).write_parquet(path)
        return path

    @cached_property
    def lake(self) -> Path:
        """A log in folders by month, `day=2024-03-01` and so on."""
        rows = self._rows().select("user", "item")
        for month, part in enumerate(rows.iter_slices(len(rows) // 9 + 1), 1):
            folder = self.folder / "lake" / f"day=2024-0{month}-01"
            folder.mkdir(parents=True)
            part.write_parquet(folder / "part.parquet")
        return self.folder / "lake"

    @cached_property
    def movielens(self) -> Path:
        """A zip file in the format of ml-1m.zip."""
        rows = self._rows()
        items = rows.get_column("item").unique(maintain_order=True)
        number = {item: place for place, item in enumerate(items, 1)}
        person = {
            user: place for place, user in enumerate(rows["user"].unique(maintain_order=True), 1)
        }
        ratings = "".join(
            f"{person[user]}::{number[item]}::4::{978300000 + place}\n"
            for place, (user, item) in enumerate(rows.select("user", "item").iter_rows())
        )
        path = self.folder / "ml-1m.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("ml-1m/ratings.dat", ratings)
            archive.writestr(
                "ml-1m/movies.dat",
                "".join(f"{n}::Film {n} (1999)::Drama|War\n" for n in number.values()),
            )
            archive.writestr(
                "ml-1m/users.dat", "".join(f"{n}::F::25::1::0\n" for n in person.values())
            )
        return path

    @cached_property
    def amazon(self) -> Path:
        """Reviews in the format of reviews_Books_5.json.gz."""
        path = self.folder / "reviews.json.gz"
        with gzip.open(path, "wt") as file:
            for place, (user, item) in enumerate(self._rows().select("user", "item").iter_rows()):
                review = {
                    "reviewerID": user,
                    "asin": item,
                    "overall": 5.0,
                    "unixReviewTime": 10**9 + place,
                }
                file.write(json.dumps(review) + "\n")
        return path

    @cached_property
    def amazon_meta(self) -> Path:
        """Item metadata in the format of meta_Books.json.gz: Python literals."""
        path = self.folder / "meta.json.gz"
        with gzip.open(path, "wt") as file:
            for item in sorted(set(self._rows()["item"])):
                file.write(
                    f"{{'asin': '{item}', 'title': \"Book {item}\", 'categories': [['Books']]}}\n"
                )
        return path

    def _rows(self) -> pl.DataFrame:
        return pl.read_parquet(self.log / "interactions" / "*.parquet")

    def _table(self, name: str, columns: dict[str, str]) -> Path:
        path = self.folder / name
        table = self._rows().select(pl.col(old).alias(new) for old, new in columns.items())
        table.write_csv(path) if path.suffix == ".csv" else table.write_parquet(path)
        return path


def copy_recipes(folder: Path) -> None:
    """Copy the package's recipes, with so few steps that a page runs in seconds."""
    for name in recipes.recipe_names():
        recipe = recipes.recipe_path(name)
        text = recipe.read_text(encoding="utf-8")
        for key, value in SMALLER.items():
            text = re.sub(rf"^{key} *=.*$", f"{key} = {value}", text, flags=re.MULTILINE)
        copy = folder / "recipes" / f"{name}.toml"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, encoding="utf-8")
