"""The table of passages and their vectors, made by the first session that needs it; and the extension it stands on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql

from noetic_postgres.schema import CREATING
from noetic_py.errors import StoreUnavailable

__all__ = ["VECTORS_VERSION", "prepare_vectors", "vector_statements"]

VECTORS_VERSION = 1
"""The version of the table."""

_EXTENSION = (
    "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'"
)
_INSTALLED = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
_THERE = (
    "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = %s AND c.relname = 'vectors_version'"
)
# Searches look at all rows of one owner, of which there are as many as the layer's limit; so there is no index of
# vectors, which would be searched for all owners at once and find too few of the one owner's.
_TABLES = sql.SQL(
    """
    CREATE TABLE {schema}.vectors_version (id smallint PRIMARY KEY CHECK (id = 1), version integer NOT NULL);
    CREATE TABLE {schema}.vectors (
        place bytea PRIMARY KEY, owner_sha bytea NOT NULL, scope text COLLATE "C" NOT NULL,
        owner text COLLATE "C" NOT NULL, layer text COLLATE "C" NOT NULL, embedder text COLLATE "C" NOT NULL,
        number bigint NOT NULL, dimensions integer NOT NULL, embedding {vector} NOT NULL, length integer NOT NULL,
        words jsonb NOT NULL, crc bigint NOT NULL, body bytea NOT NULL
    ) WITH (toast_tuple_target = 8160);
    ALTER TABLE {schema}.vectors ALTER COLUMN words SET STORAGE EXTERNAL;
    CREATE INDEX vectors_by_owner ON {schema}.vectors (owner_sha, number);
    """
)
_INSERT = sql.SQL("INSERT INTO {schema}.vectors_version VALUES (1, %s)")
_VERSION = sql.SQL("SELECT version FROM {schema}.vectors_version")

# The digest is what the index holds; the columns are what counts. Every statement below has all four.
_OWNED = sql.SQL("owner_sha = %(owner_sha)s AND scope = %(scope)s AND owner = %(owner)s AND layer = %(layer)s")
_PLAIN = {
    "others": sql.SQL(
        """SELECT dimensions FROM {vectors}
        WHERE {owned} AND embedder = %(embedder)s AND dimensions <> %(dimensions)s LIMIT 1"""
    ),
    "there": sql.SQL("SELECT place FROM {vectors} WHERE {owned} AND place = ANY(%(places)b::bytea[])"),
    "insert": sql.SQL(
        """INSERT INTO {vectors} (place, owner_sha, scope, owner, layer, embedder, number, dimensions, embedding,
            length, words, crc, body)
        SELECT each.place, %(owner_sha)s, %(scope)s, %(owner)s, %(layer)s, %(embedder)s, each.number, %(dimensions)s,
            each.embedding::{vector}, each.length, each.words::jsonb, each.crc, each.body
        FROM unnest(%(places)b::bytea[], %(numbers)b::bigint[], %(embeddings)b::text[], %(lengths)b::bigint[],
            %(counts)b::text[], %(crcs)b::bigint[], %(bodies)b::bytea[])
            AS each (place, number, embedding, length, words, crc, body)
        ON CONFLICT (place) DO NOTHING RETURNING 1"""
    ),
    "trim": sql.SQL(
        """DELETE FROM {vectors} WHERE {owned} AND place IN (
            SELECT place FROM {vectors} WHERE {owned} ORDER BY number DESC OFFSET %(limit)s
        )"""
    ),
    "forget": sql.SQL("DELETE FROM {vectors} WHERE {owned} RETURNING 1"),
    "wording": sql.SQL("SELECT count(*), coalesce(avg(length), 0)::float8 FROM {vectors} WHERE {owned}"),
    "known": sql.SQL(
        """SELECT asked.word, count(*) FROM {vectors}, LATERAL (
            SELECT each.word FROM unnest(%(asked)b::text[]) AS each (word) WHERE words ? each.word OFFSET 0
        ) AS asked WHERE {owned} GROUP BY asked.word"""
    ),
    # OFFSET 0 keeps the server from looking at a row more often than once.
    # By vectors of length 1 the inner product is the cosine, and one without a direction has 0 and no division by it.
    "nearest": sql.SQL(
        """SELECT place, number, crc, body, score FROM (
            SELECT place, number, crc, body,
                -(embedding OPERATOR({extension}.<#>) %(vector)s::{vector}) + %(part)s::float8 * coalesce((
                    SELECT sum(asked.weight * t.times / (t.times + %(again)s::float8 * (
                        1 - %(long)s::float8 + %(long)s::float8 * length / %(mean)s::float8)))
                    FROM unnest(%(asked)b::text[], %(weights)b::float8[]) AS asked (word, weight),
                        LATERAL (SELECT (words ->> asked.word)::float8 AS times) AS t
                ), 0) AS score
            FROM {vectors} WHERE {owned} AND embedder = %(embedder)s AND dimensions = %(dimensions)s OFFSET 0
        ) AS ranked WHERE score >= %(least)s::float8 ORDER BY score DESC, number LIMIT %(limit)s"""
    ),
}


def vector_statements(schema: str, extension: str) -> Mapping[str, bytes]:
    """The statements by name, ready to be sent.

    Args:
        schema: Where the table is.
        extension: The schema that the extension is in.
    """
    names: dict[str, sql.Composable] = {
        "owned": _OWNED,
        "vectors": sql.Identifier(schema, "vectors"),
        "vector": sql.Identifier(extension, "vector"),
        "extension": sql.Identifier(extension),
    }
    return {name: text.format(**names).as_bytes(None) for name, text in _PLAIN.items()}


def prepare_vectors(connection: psycopg.Connection[tuple[Any, ...]], schema: str, where: str) -> str:
    """Find the extension, and make the table if it is not there; the schema is.

    Returns:
        The schema that the extension is in.

    Raises:
        StoreUnavailable: The extension is missing, reason `"extension"`, or the table is of a newer release.
    """
    found = connection.execute(_EXTENSION).fetchone()
    if found is None:
        raise _no_extension(connection, where)
    extension: str = found[0]
    # Compiling a search would take longer than the search does.
    connection.execute("SELECT set_config('jit', 'off', false)")
    name = sql.Identifier(schema)
    if connection.execute(_THERE, [schema]).fetchone() is None:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [CREATING])
            # Another session may have made it while this one waited.
            if connection.execute(_THERE, [schema]).fetchone() is None:
                vector = sql.Identifier(extension, "vector")
                connection.execute(_TABLES.format(schema=name, vector=vector))
                connection.execute(_INSERT.format(schema=name), [VECTORS_VERSION])
    row = connection.execute(_VERSION.format(schema=name)).fetchone()
    if row is None or row[0] != VECTORS_VERSION:
        raise StoreUnavailable(
            f"{where}: the table of vectors has version {row[0] if row else None}, and this release knows"
            f" {VECTORS_VERSION}",
            where=where,
            reason="newer",
            hint="upgrade noetic-postgres, or give another schema=",
        )
    return extension


def _no_extension(connection: psycopg.Connection[tuple[Any, ...]], where: str) -> StoreUnavailable:
    create = "an administrator of the database runs: CREATE EXTENSION vector"
    if connection.execute(_INSTALLED).fetchone() is None:
        major = connection.info.server_version // 10_000
        create = f"install pgvector where the server runs (Debian: postgresql-{major}-pgvector); then {create}"
    return StoreUnavailable(
        f"{where}: the database does not have the extension vector", where=where, reason="extension", hint=create
    )
