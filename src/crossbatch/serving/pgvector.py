"""Item vectors in PostgreSQL with the pgvector extension: load them, then search in SQL.

    with connect("postgresql:///shop") as connection:
        load_items(bundle, connection, "items")
        index = PgVectorIndex(connection, "items")
        index.search(bundle.users(history), k=20)

Needs `pip install 'crossbatch[postgres]'`.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import ssl
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import polars as pl
import torch

from crossbatch.errors import ConfigError, needs_extra
from crossbatch.progress import Progress, silent
from crossbatch.queries import Queries, rows_of, weights_of
from crossbatch.retrieval import Allowed, TopK
from crossbatch.serving.tables import item_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor

    from crossbatch.serving.recommender import Recommender

MAX_DIMENSIONS = 2000  # that pgvector can index
SOCKET_FOLDERS = ("/var/run/postgresql", "/tmp")  # noqa: S108 - where servers put them
COLUMNS = (
    "id bigint PRIMARY KEY, item text NOT NULL UNIQUE, title text NOT NULL, count bigint NOT NULL"
)
SSL_MODES: dict[str, Callable[[], Any]] = {
    "disable": lambda: False,
    "prefer": lambda: None,
    "require": lambda: True,
    "verify-full": ssl.create_default_context,
}


def load_items(
    recommender: Recommender,
    connection: Any,
    table: str = "crossbatch_items",
    *,
    overwrite: bool = False,
    progress: Progress = silent,
) -> int:
    """Copy all items into a table with an HNSW index by inner product; return how many.

    All in one transaction: other sessions see the old table until the new one is complete.

    Args:
        recommender: A bundle, or a run.
        connection: As `connect` returns it.
        table: Its name.
        overwrite: Replace an existing table.
        progress: Called with ("items", done, total).
    """
    if recommender.dim > MAX_DIMENSIONS:
        raise ConfigError(
            f"pgvector indexes vectors of up to {MAX_DIMENSIONS} numbers, got {recommender.dim}"
        )
    loading, final = _quoted(f"{table}_loading"), _quoted(table)
    done = 0
    with _transaction(connection):
        ((existing,),) = connection.run("SELECT to_regclass(:name)::text", name=final)
        if existing is not None and not overwrite:
            raise ConfigError(f"table {table!r} already exists: name another or pass --overwrite")
        connection.run("CREATE EXTENSION IF NOT EXISTS vector")
        connection.run(f"DROP TABLE IF EXISTS {loading}")
        connection.run(
            f"CREATE TABLE {loading} ({COLUMNS}, vector vector({recommender.dim}) NOT NULL)"
        )
        for frame in item_frames(recommender):
            copy = f"COPY {loading} (id, item, title, count, vector) FROM STDIN WITH (FORMAT CSV)"
            connection.run(copy, stream=[_csv(frame)])
            done += len(frame)
            progress("items", done, recommender.num_items)
        progress("index", 0, None)
        connection.run(f"CREATE INDEX ON {loading} USING hnsw (vector vector_ip_ops)")
        connection.run(f"DROP TABLE IF EXISTS {final}")
        connection.run(f"ALTER TABLE {loading} RENAME TO {final}")
    return done


class PgVectorIndex:
    """A loaded table as an index; what K interests find is merged and scored.

    Args:
        connection: As `connect` returns it.
        table: As given to `load_items`.
        effort: Length of the candidate queue (`hnsw.ef_search`), 1 to 1000: recall for time.
    """

    exact: ClassVar[bool] = False

    def __init__(
        self, connection: Any, table: str = "crossbatch_items", *, effort: int = 100
    ) -> None:
        self._connection, self._effort = connection, effort
        self._table = _quoted(table)

    @property
    def num_items(self) -> int:
        """Number of rows."""
        count = f"SELECT count(*) FROM {self._table}"  # noqa: S608 - the name is quoted
        return int(self._connection.run(count)[0][0])

    def search(
        self,
        interests: Tensor | Queries,
        k: int,
        *,
        exclude: Tensor | None = None,
        allowed: Tensor | Allowed | None = None,
    ) -> TopK:
        """Return k items of large `max over interests of interest · item` for each user.

        Args:
            interests: `[B, K, d]` vectors of B users, or their `Queries`.
            k: Length of the lists.
            exclude: `[B, X]` item ids never to return for that user; 0 means none.
            allowed: `[N + 1]` bool, the items that may be returned to any user; None: all.
        """
        wanted = None if allowed is None else Allowed.of(allowed).item_ids[1:].tolist()
        scores = torch.full((len(interests), k), -torch.inf)
        item_ids = torch.zeros((len(interests), k), dtype=torch.long)
        with _transaction(self._connection):
            self._connection.run(f"SET LOCAL hnsw.ef_search = {int(self._effort)}")
            self._connection.run("SET LOCAL hnsw.iterative_scan = strict_order")
            for row in range(len(interests)):
                user = rows_of(interests, slice(row, row + 1))
                banned = [] if exclude is None else exclude[row].tolist()
                best: dict[int, float] = {}
                for interest in _present(user).tolist():
                    for item, score in self._nearest(interest, k, banned, wanted):
                        best[item] = max(score, best.get(item, -float("inf")))
                if isinstance(user, Queries):
                    best = self._scores(user, list(best))
                ranked = sorted(best.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
                for place, (item, score) in enumerate(ranked):
                    item_ids[row, place], scores[row, place] = item, score
        return TopK(scores, item_ids)

    def _nearest(
        self, interest: list[float], k: int, banned: list[int], wanted: list[int] | None
    ) -> Any:
        return self._connection.run(
            f"SELECT id, -(vector <#> CAST(:user AS vector)) FROM {self._table} "  # noqa: S608
            "WHERE id <> ALL(CAST(:banned AS bigint[])) "
            "AND (CAST(:wanted AS bigint[]) IS NULL OR id = ANY(CAST(:wanted AS bigint[]))) "
            "ORDER BY vector <#> CAST(:user AS vector) LIMIT :k",
            user=f"[{_joined(interest)}]",
            banned=f"{{{_joined(banned)}}}",
            wanted=None if wanted is None else f"{{{_joined(wanted)}}}",
            k=k,
        )

    def _scores(self, user: Queries, item_ids: list[int]) -> dict[int, float]:
        """Scores of items by one user's queries together."""
        found = self._connection.run(
            f"SELECT id, CAST(vector AS text) FROM {self._table} "  # noqa: S608
            "WHERE id = ANY(CAST(:ids AS bigint[]))",
            ids=f"{{{_joined(item_ids)}}}",
        )
        if not found:
            return {}
        vectors = torch.tensor([json.loads(text) for _, text in found])
        scores = user.float().scores(vectors)[0].tolist()
        return {item: score for (item, _), score in zip(found, scores, strict=True)}


def _present(user: Tensor | Queries) -> Tensor:
    """The vectors `[K, d]` of one user, without absent queries."""
    vectors, log_weights = weights_of(user)
    return vectors[0] if log_weights is None else vectors[0][log_weights[0] > -torch.inf]


def connect(address: str) -> Any:
    """Open a connection of pg8000, usable in `with`; raise `ConfigError` in one sentence.

    Args:
        address: `postgresql://user@host:port/database`, all parts optional. `?host=FOLDER` names
            the folder of a Unix socket, `?sslmode=` one of `SSL_MODES`. As with psql, PGHOST,
            PGPORT, PGUSER, PGDATABASE, PGPASSWORD and `~/.pgpass` fill in what it leaves out.
    """
    with needs_extra("postgres", "PostgreSQL"):
        pg8000 = import_module("pg8000.native")
    arguments = _arguments(address)
    try:
        return pg8000.Connection(**arguments)
    except (pg8000.Error, OSError) as error:
        told = error.args[0] if error.args else error
        reason = told.get("M", told) if isinstance(told, dict) else str(error)
        first = (str(reason).strip() or "no reason given").splitlines()[0]
        raise ConfigError(f"PostgreSQL cannot be reached: {first}") from None


def _arguments(address: str) -> dict[str, Any]:
    """What pg8000 needs to connect to an address."""
    try:
        url = urlsplit(address)
        options = {name: values[-1] for name, values in parse_qs(url.query).items()}
        port = int(options.get("port") or url.port or os.environ.get("PGPORT") or 5432)
        ssl_context = SSL_MODES[options.get("sslmode", "prefer")]()
    except (KeyError, ValueError):
        url, options, port, ssl_context = urlsplit(""), {}, 0, None
    if url.scheme not in ("postgresql", "postgres") or options.keys() - {"host", "port", "sslmode"}:
        raise ConfigError(
            "the PostgreSQL address must be like postgresql://user@host:5432/database; of options "
            f"?host=, ?port= and ?sslmode= ({', '.join(SSL_MODES)}) are known"
        )
    sockets = [f"{folder}/.s.PGSQL.{port}" for folder in SOCKET_FOLDERS]
    local = next((path for path in sockets if Path(path).exists()), "localhost")
    host = options.get("host") or url.hostname or os.environ.get("PGHOST") or local
    user = unquote(url.username or "") or os.environ.get("PGUSER") or getpass.getuser()
    database = unquote(url.path[1:]) or os.environ.get("PGDATABASE") or user
    password = unquote(url.password or "") or os.environ.get("PGPASSWORD")
    if password is None:
        password = _stored_password(host, str(port), database, user)
    found = {"user": user, "database": database, "password": password, "ssl_context": ssl_context}
    if not host.startswith("/"):
        return found | {"host": host, "port": port}
    name = f".s.PGSQL.{port}"
    return found | {"unix_sock": host if host.endswith(name) else f"{host}/{name}"}


def _stored_password(*wanted: str) -> str | None:
    """The password of host, port, database and user in `~/.pgpass`, if there is one."""
    path = Path(os.environ.get("PGPASSFILE") or Path.home() / ".pgpass")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        fields = [
            re.sub(r"\\(.)", r"\1", field) for field in re.split(r"(?<!\\):", line, maxsplit=4)
        ]
        if len(fields) == 5 and all(f in ("*", w) for f, w in zip(fields, wanted, strict=False)):
            return fields[4]
    return None


@contextmanager
def _transaction(connection: Any) -> Iterator[None]:
    connection.run("START TRANSACTION")
    try:
        yield
    except BaseException:
        connection.run("ROLLBACK")
        raise
    connection.run("COMMIT")


def _csv(frame: pl.DataFrame) -> bytes:
    """Items as PostgreSQL's CSV; null characters, which its text cannot hold, are left out."""
    numbers = pl.col("vector").arr.to_list().cast(pl.List(pl.String)).list.join(",")
    texts = pl.col("item", "title").str.replace_all("\0", "", literal=True)
    table = frame.select("id", texts, "count", vector=pl.format("[{}]", numbers))
    return table.write_csv(include_header=False, quote_style="non_numeric").encode()


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _joined(values: Iterable[float]) -> str:
    return ",".join(map(str, values))
