"""The tables of passages and their vectors, made by the first session that needs them; and the extension."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql

from noetic_postgres.schema import CREATING
from noetic_py.errors import StoreUnavailable

__all__ = ["VECTORS_VERSION", "index_statements", "prepare_vectors", "vector_statements"]

VECTORS_VERSION = 2
"""The version of the tables."""

_EXTENSION = (
    "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'"
)
_INSTALLED = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
_THERE = (
    "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = %s AND c.relname = 'vectors_version'"
)
_COUNTED = sql.SQL(
    """
    CREATE TABLE {schema}.vector_counts (
        owner_sha bytea, scope text COLLATE "C" NOT NULL, owner text COLLATE "C" NOT NULL,
        layer text COLLATE "C" NOT NULL, embedder text COLLATE "C", dimensions integer NOT NULL,
        passages bigint NOT NULL, words bigint NOT NULL, indexed boolean NOT NULL DEFAULT false,
        PRIMARY KEY (owner_sha, embedder)
    );
    CREATE TABLE {schema}.vector_words (
        owner_sha bytea, scope text COLLATE "C" NOT NULL, owner text COLLATE "C" NOT NULL,
        layer text COLLATE "C" NOT NULL, embedder text COLLATE "C", word text COLLATE "C", passages bigint NOT NULL,
        PRIMARY KEY (owner_sha, embedder, word)
    );
    """
)
# An index of all owners' vectors would find the nearest of all, of which those of others are then taken away: too few
# are left for an owner with few passages. So an index is made for one owner at a time.
_TABLES = sql.SQL(
    """
    CREATE TABLE {schema}.vectors_version (id smallint PRIMARY KEY CHECK (id = 1), version integer NOT NULL);
    CREATE TABLE {schema}.vectors (
        place bytea PRIMARY KEY, owner_sha bytea NOT NULL, scope text COLLATE "C" NOT NULL,
        owner text COLLATE "C" NOT NULL, layer text COLLATE "C" NOT NULL, embedder text COLLATE "C" NOT NULL,
        number bigint NOT NULL, dimensions integer NOT NULL, embedding {vector} NOT NULL, length integer NOT NULL,
        words jsonb NOT NULL, crc bigint NOT NULL, body bytea NOT NULL, said timestamptz, metadata jsonb
    ) WITH (toast_tuple_target = 8160);
    ALTER TABLE {schema}.vectors ALTER COLUMN words SET STORAGE EXTERNAL;
    CREATE INDEX vectors_by_owner ON {schema}.vectors (owner_sha, number);
    """
)
# A release of version 1 has counted the words at each search.
_FROM_1 = sql.SQL(
    """
    ALTER TABLE {schema}.vectors ADD said timestamptz, ADD metadata jsonb;
    INSERT INTO {schema}.vector_counts (owner_sha, scope, owner, layer, embedder, dimensions, passages, words)
        SELECT owner_sha, scope, owner, layer, embedder, min(dimensions), count(*), sum(length)
        FROM {schema}.vectors GROUP BY owner_sha, scope, owner, layer, embedder;
    INSERT INTO {schema}.vector_words (owner_sha, scope, owner, layer, embedder, word, passages)
        SELECT owner_sha, scope, owner, layer, embedder, each.word, count(*)
        FROM {schema}.vectors, jsonb_object_keys(vectors.words) AS each (word) WHERE char_length(each.word) <= 100
        GROUP BY owner_sha, scope, owner, layer, embedder, each.word;
    UPDATE {schema}.vectors_version SET version = 2;
    """
)
_INSERT = sql.SQL("INSERT INTO {schema}.vectors_version VALUES (1, %s)")
_VERSION = sql.SQL("SELECT version FROM {schema}.vectors_version")

# The digest is what the index holds; the columns are what counts. Every statement below has all four.
_OWNED = sql.SQL("owner_sha = %(owner_sha)s AND scope = %(scope)s AND owner = %(owner)s AND layer = %(layer)s")
# What a deletion takes from the counts; `gone` has the deleted rows. A word that no passage has any more goes too.
_UNCOUNTED = sql.SQL(
    """, less AS (
        SELECT embedder, each.word, count(*) AS n FROM gone, jsonb_object_keys(gone.words) AS each (word)
        GROUP BY embedder, each.word
    ), fewer AS (
        UPDATE {vector_words} AS w SET passages = w.passages - less.n FROM less
        WHERE {owned} AND w.embedder = less.embedder AND w.word = less.word AND w.passages > less.n
    ), none AS (
        DELETE FROM {vector_words} AS w USING less
        WHERE {owned} AND w.embedder = less.embedder AND w.word = less.word AND w.passages <= less.n
    ), totals AS (
        UPDATE {vector_counts} AS c SET passages = c.passages - part.n, words = c.words - part.words
        FROM (SELECT embedder, count(*) AS n, sum(length) AS words FROM gone GROUP BY embedder) AS part
        WHERE {owned} AND c.embedder = part.embedder
    ) SELECT count(*) FROM gone"""
)
# By vectors of length 1 the inner product is the cosine, and one without a direction has 0 and no division by it.
# OFFSET 0 keeps the server from looking at a row more often than once. It multiplies in single precision; what is
# nearest by that is computed again in double precision, so that the order is that of a search in the process.
_RANKED = sql.SQL(
    """SELECT place, number, crc, body, exact FROM (
        SELECT place, number, crc, body, round((shared + (
            SELECT sum(t.x::float8 * t.y::float8)
            FROM unnest(embedding::real[], %(vector)s::{vector}::real[]) AS t (x, y)
        ))::numeric, 9)::float8 AS exact
        FROM (
            SELECT place, number, crc, body, embedding, shared FROM (
                SELECT place, number, crc, body, embedding,
                    -(embedding OPERATOR({extension}.<#>) %(vector)s::{vector}) AS near,
                    %(part)s::float8 * coalesce((
                        SELECT sum(asked.weight * t.times / (t.times + %(again)s::float8 * (
                            1 - %(long)s::float8 + %(long)s::float8 * length / %(mean)s::float8)))
                        FROM unnest(%(asked)b::text[], %(weights)b::float8[]) AS asked (word, weight),
                            LATERAL (SELECT (words ->> asked.word)::float8 AS times) AS t
                    ), 0) AS shared
                FROM {vectors} WHERE {owned} AND embedder = %(embedder)s AND dimensions = %(dimensions)s AND {asked}
                OFFSET 0
            ) AS scored WHERE near + shared >= %(least)s::float8 - 0.001
            ORDER BY near + shared DESC, number LIMIT %(limit)s + 32
        ) AS best OFFSET 0
    ) AS ranked WHERE exact >= %(least)s::float8 ORDER BY exact DESC, number LIMIT %(limit)s"""
)
_FILTERED = sql.SQL(
    """(%(since)s::timestamptz IS NULL OR said >= %(since)s::timestamptz)
        AND (%(until)s::timestamptz IS NULL OR said < %(until)s::timestamptz)
        AND (%(where)s::jsonb IS NULL OR metadata @> %(where)s::jsonb)"""
)
_AMONG = sql.SQL("place = ANY(%(places)b::bytea[])")
_PLAIN = {
    "counts": sql.SQL("SELECT embedder, dimensions, passages, words, indexed FROM {vector_counts} WHERE {owned}"),
    "there": sql.SQL("SELECT place FROM {vectors} WHERE {owned} AND place = ANY(%(places)b::bytea[])"),
    "insert": sql.SQL(
        """WITH new AS (
            INSERT INTO {vectors} (place, owner_sha, scope, owner, layer, embedder, number, dimensions, embedding,
                length, words, crc, body, said, metadata)
            SELECT each.place, %(owner_sha)s, %(scope)s, %(owner)s, %(layer)s, %(embedder)s, each.number,
                %(dimensions)s, each.embedding::{vector}, each.length, each.words::jsonb, each.crc, each.body,
                each.said::timestamptz, each.metadata::jsonb
            FROM unnest(%(places)b::bytea[], %(numbers)b::bigint[], %(embeddings)b::text[], %(lengths)b::bigint[],
                %(counts)b::text[], %(crcs)b::bigint[], %(bodies)b::bytea[], %(said)b::text[], %(metadata)b::text[])
                AS each (place, number, embedding, length, words, crc, body, said, metadata)
            ON CONFLICT (place) DO NOTHING RETURNING words, length
        ), counted AS (
            INSERT INTO {vector_words} (owner_sha, scope, owner, layer, embedder, word, passages)
            SELECT %(owner_sha)s, %(scope)s, %(owner)s, %(layer)s, %(embedder)s, each.word, count(*)
            FROM new, jsonb_object_keys(new.words) AS each (word) GROUP BY each.word
            ON CONFLICT (owner_sha, embedder, word)
                DO UPDATE SET passages = vector_words.passages + excluded.passages
        ), totals AS (
            INSERT INTO {vector_counts} (owner_sha, scope, owner, layer, embedder, dimensions, passages, words)
            SELECT %(owner_sha)s, %(scope)s, %(owner)s, %(layer)s, %(embedder)s, %(dimensions)s, count(*), sum(length)
            FROM new HAVING count(*) > 0
            ON CONFLICT (owner_sha, embedder) DO UPDATE SET dimensions = excluded.dimensions,
                passages = vector_counts.passages + excluded.passages, words = vector_counts.words + excluded.words
        ) SELECT count(*) FROM new"""
    ),
    "trim": sql.SQL(
        """WITH gone AS (
            DELETE FROM {vectors} WHERE {owned} AND place IN (
                SELECT place FROM {vectors} WHERE {owned} ORDER BY number DESC OFFSET %(limit)s
            ) RETURNING embedder, words, length
        ){uncounted}"""
    ),
    "take": sql.SQL(
        """WITH gone AS (
            DELETE FROM {vectors} WHERE {owned} AND embedder <> %(embedder)s AND number = ANY(%(numbers)b::bigint[])
            RETURNING embedder, words, length
        ){uncounted}"""
    ),
    "drop": sql.SQL(
        """WITH gone AS (
            DELETE FROM {vectors} WHERE {owned} AND metadata @> %(where)s::jsonb RETURNING embedder, words, length
        ){uncounted}"""
    ),
    "forget": sql.SQL("WITH gone AS (DELETE FROM {vectors} WHERE {owned} RETURNING 1) SELECT count(*) FROM gone"),
    "forget_words": sql.SQL("DELETE FROM {vector_words} WHERE {owned}"),
    "forget_counts": sql.SQL("DELETE FROM {vector_counts} WHERE {owned}"),
    "known": sql.SQL(
        """SELECT word, passages FROM {vector_words}
        WHERE {owned} AND embedder = %(embedder)s AND word = ANY(%(asked)b::text[])"""
    ),
    "others": sql.SQL(
        """SELECT place, number, crc, body, 0::float8 FROM {vectors}
        WHERE {owned} AND embedder <> %(embedder)s ORDER BY number LIMIT %(limit)s"""
    ),
    "indexed": sql.SQL("UPDATE {vector_counts} SET indexed = true WHERE {owned} AND embedder = %(embedder)s"),
}


def index_statements(schema: str, extension: str, sha: bytes, embedder: str, dimensions: int) -> Mapping[str, bytes]:
    """The statements that make and use the indexes of one owner and embedder; the conditions are those of the indexes.

    Args:
        schema: Where the table is.
        extension: The schema that the extension is in.
        sha: The digest of the owner.
        embedder: What made the vectors.
        dimensions: Of the vectors.
    """
    digest = hashlib.sha256(sha + embedder.encode()).hexdigest()[:32]
    names: dict[str, sql.Composable] = {
        "vectors": sql.Identifier(schema, "vectors"),
        "nearest": sql.Identifier(f"vectors_{digest}_hnsw"),
        "words": sql.Identifier(f"vectors_{digest}_gin"),
        "ops": sql.Identifier(extension, "vector_ip_ops"),
        "extension": sql.Identifier(extension),
        "typed": sql.SQL("embedding::{}({})").format(sql.Identifier(extension, "vector"), sql.Literal(dimensions)),
        "type": sql.SQL("{}({})").format(sql.Identifier(extension, "vector"), sql.Literal(dimensions)),
        "mine": sql.SQL("owner_sha = {}::bytea AND embedder = {} AND dimensions = {}").format(
            sql.Literal(f"\\x{sha.hex()}"), sql.Literal(embedder), sql.Literal(dimensions)
        ),
    }
    made = {
        "make_nearest": sql.SQL(
            "CREATE INDEX IF NOT EXISTS {nearest} ON {vectors} USING hnsw (({typed}) {ops}) WHERE {mine}"
        ),
        "make_words": sql.SQL("CREATE INDEX IF NOT EXISTS {words} ON {vectors} USING gin (words) WHERE {mine}"),
        "by_vector": sql.SQL(
            """SELECT place FROM {vectors} WHERE {mine}
            ORDER BY {typed} OPERATOR({extension}.<#>) %(vector)s::{type} LIMIT %(most)s"""
        ),
        "by_words": sql.SQL("SELECT place FROM {vectors} WHERE {mine} AND words ?| %(rare)b::text[]"),
    }
    return {name: text.format(**names).as_bytes(None) for name, text in made.items()}


def vector_statements(schema: str, extension: str) -> Mapping[str, bytes]:
    """The statements by name, ready to be sent.

    Args:
        schema: Where the table is.
        extension: The schema that the extension is in.
    """
    names: dict[str, sql.Composable] = {
        "owned": _OWNED,
        "vectors": sql.Identifier(schema, "vectors"),
        "vector_words": sql.Identifier(schema, "vector_words"),
        "vector_counts": sql.Identifier(schema, "vector_counts"),
        "vector": sql.Identifier(extension, "vector"),
        "extension": sql.Identifier(extension),
    }
    names["uncounted"] = _UNCOUNTED.format(**names)
    made = {name: text.format(**names) for name, text in _PLAIN.items()}
    # Of all passages that the filters let through, or of those that the indexes give.
    made |= {name: _RANKED.format(**names, asked=asked) for name, asked in (("nearest", _FILTERED), ("among", _AMONG))}
    return {name: text.as_bytes(None) for name, text in made.items()}


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
                connection.execute(_COUNTED.format(schema=name))
                connection.execute(_INSERT.format(schema=name), [VECTORS_VERSION])
    row = connection.execute(_VERSION.format(schema=name)).fetchone()
    if row is not None and row[0] == 1:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [CREATING])
            # Searches and additions of earlier releases wait meanwhile, and then find a later version.
            connection.execute(sql.SQL("LOCK TABLE {schema}.vectors IN ACCESS EXCLUSIVE MODE").format(schema=name))
            if connection.execute(_VERSION.format(schema=name)).fetchone() == (1,):
                connection.execute(_COUNTED.format(schema=name))
                connection.execute(_FROM_1.format(schema=name))
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
