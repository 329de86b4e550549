"""Item vectors in PostgreSQL with pgvector, for those who have one: load, then search in SQL.

    with psycopg.connect("postgresql:///shop") as connection:
        load_items(bundle, connection, "items")
        index = PgVectorIndex(connection, "items")
        index.search(bundle.users(history), k=20)

Needs `pip install 'crossbatch[postgres]'`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from crossbatch.data.progress import Progress, silent
from crossbatch.errors import ConfigError
from crossbatch.retrieval import TopK
from crossbatch.serving.vectors import item_frames

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.serving.recommender import Recommender

MOST_NUMBERS = 2000  # that pgvector can index
CREATE = (
    "CREATE TABLE {} (id bigint PRIMARY KEY, item text NOT NULL UNIQUE, title text NOT NULL, "
    "count bigint NOT NULL, vector vector({}) NOT NULL)"
)
COLUMNS = {"id": "int8", "item": "text", "title": "text", "count": "int8", "vector": "vector"}


def load_items(
    recommender: Recommender,
    connection: Any,
    table: str = "crossbatch_items",
    *,
    overwrite: bool = False,
    progress: Progress = silent,
) -> int:
    """Copy all items into a table with an HNSW index by inner product; return how many.

    All in one transaction: others see the old table until the new one is whole.

    Args:
        recommender: A bundle, or a run.
        connection: An open connection of psycopg 3.
        table: Its name.
        overwrite: Replace an existing table.
        progress: Called with ("items", done, total).
    """
    if recommender.dim > MOST_NUMBERS:
        raise ConfigError(
            f"pgvector indexes vectors of up to {MOST_NUMBERS} numbers, got {recommender.dim}"
        )
    sql = _sql()
    fresh, final = sql.Identifier(f"{table}_loading"), sql.Identifier(table)
    with connection.transaction():
        if _exists(connection, table) and not overwrite:
            raise ConfigError(f"table {table!r} already exists: name another or pass --overwrite")
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        import_module("pgvector.psycopg").register_vector(connection)
        cursor = connection.cursor()  # one of before would not know the new type
        cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(fresh))
        cursor.execute(sql.SQL(CREATE).format(fresh, sql.Literal(recommender.dim)))
        done = _copy(recommender, cursor, fresh, progress)
        progress("index", 0, None)
        cursor.execute(
            sql.SQL("CREATE INDEX ON {} USING hnsw (vector vector_ip_ops)").format(fresh)
        )
        cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(final))
        cursor.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(fresh, final))
    return done


def _copy(recommender: Recommender, cursor: Any, table: Any, progress: Progress) -> int:
    sql, done = _sql(), 0
    names = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
    command = sql.SQL("COPY {} ({}) FROM STDIN WITH (FORMAT BINARY)").format(table, names)
    with cursor.copy(command) as copy:
        copy.set_types(list(COLUMNS.values()))
        for frame in item_frames(recommender):
            columns = [frame[name].to_list() for name in ("id", "item", "title", "count")]
            vectors = frame["vector"].to_numpy()
            for item, key, title, count, vector in zip(*columns, vectors, strict=True):
                copy.write_row((item, _text(key), _text(title), count, vector))
            done += len(frame)
            progress("items", done, recommender.num_items)
    return done


class PgVectorIndex:
    """A loaded table that answers as any index does; K interests are merged by their largest score.

    Args:
        connection: An open connection of psycopg 3.
        table: As given to `load_items`.
        effort: Length of the candidate queue (`hnsw.ef_search`), 1 to 1000: recall for time.
    """

    exact: ClassVar[bool] = False

    def __init__(
        self, connection: Any, table: str = "crossbatch_items", *, effort: int = 100
    ) -> None:
        self._connection, self._table, self._effort = connection, table, effort
        import_module("pgvector.psycopg").register_vector(connection)

    @property
    def num_items(self) -> int:
        """Number of rows."""
        count = _sql().SQL("SELECT count(*) FROM {}").format(_sql().Identifier(self._table))
        return int(self._connection.execute(count).fetchone()[0])

    def search(self, interests: Tensor, k: int, *, exclude: Tensor | None = None) -> TopK:
        """Return k items of large `max over interests of interest · item` for each user.

        Args:
            interests: `[B, K, d]` vectors of B users.
            k: Length of the lists.
            exclude: `[B, X]` item ids never to return for that user; 0 means none.
        """
        scores = torch.full((len(interests), k), -torch.inf)
        item_ids = torch.zeros((len(interests), k), dtype=torch.long)
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL hnsw.ef_search = {int(self._effort)}")
            cursor.execute("SET LOCAL hnsw.iterative_scan = strict_order")
            for row, user in enumerate(interests.numpy()):
                banned = [] if exclude is None else exclude[row].tolist()
                best: dict[int, float] = {}
                for interest in user:
                    for item, score in self._nearest(cursor, interest, k, banned):
                        best[item] = max(score, best.get(item, -float("inf")))
                ranked = sorted(best.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
                for place, (item, score) in enumerate(ranked):
                    item_ids[row, place], scores[row, place] = item, score
        return TopK(scores, item_ids)

    def _nearest(
        self, cursor: Any, interest: Any, k: int, banned: list[int]
    ) -> list[tuple[int, float]]:
        query = (
            _sql()
            .SQL(
                "SELECT id, -(vector <#> %(user)s) FROM {} WHERE id <> ALL(%(banned)s) "
                "ORDER BY vector <#> %(user)s LIMIT %(k)s"
            )
            .format(_sql().Identifier(self._table))
        )
        rows: list[tuple[int, float]] = cursor.execute(
            query, {"user": interest, "banned": banned, "k": k}
        ).fetchall()
        return rows


def connect(address: str) -> Any:
    """Open a connection, or raise `ConfigError` in one sentence."""
    try:
        psycopg = import_module("psycopg")
        import_module("pgvector.psycopg")
    except ImportError:
        raise ConfigError("PostgreSQL needs: pip install 'crossbatch[postgres]'") from None
    try:
        return psycopg.connect(address)
    except psycopg.Error as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
        raise ConfigError(f"PostgreSQL cannot be reached: {reason}") from None


def _exists(connection: Any, table: str) -> bool:
    found = connection.execute("SELECT to_regclass(%s)", (f'"{table}"',)).fetchone()
    return found is not None and found[0] is not None


def _text(value: str) -> str:
    return value.replace("\0", "")  # which PostgreSQL's text cannot hold


def _sql() -> Any:
    return import_module("psycopg.sql")
