"""The statements, with the names of one schema in them.

Every writing statement that is a transaction of its own also writes, under the same condition, the number of the write
into the row of its session: a session that loses the connection finds there whether it was taken.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from attrs import frozen
from psycopg import sql

__all__ = ["Statements", "statements_of"]

_TABLES = (
    "store",
    "runs",
    "shared",
    "transactions",
    "blobs",
    "uses",
    "pairs",
    "sessions",
    "queued",
    "signals",
    "budgets",
    "ticks",
)

# What is read of a run that may be claimed.
_PLACE = sql.SQL(
    """q.run, q.queue, q.flow, q.at, q.priority, q.key, q.crc,
    CASE WHEN r.until IS NOT NULL AND r.fence = q.fence THEN q.lives ELSE 0 END, r.run_id, r.position, r.fence, r.crc
    FROM {queued} q JOIN {runs} r ON r.id = q.run"""
)

# -- what a write begins with: the one row that it depends on

_UPDATED = sql.SQL(
    """WITH head AS (
        UPDATE {runs} SET position = %(new)s, crc = %(crc)s, updated = now(),
            until = CASE WHEN %(release)s THEN NULL ELSE until END,
            card = coalesce(%(card)s::bytea, card), card_crc = coalesce(%(card_crc)s::bigint, card_crc),
            status = coalesce(%(status)s::text, status), status_crc = coalesce(%(status_crc)s::bigint, status_crc)
        WHERE id = %(id)s AND position = %(position)s AND fence = %(fence)s
        RETURNING id
    )"""
)
_UPDATED_ALONE = sql.SQL(
    """WITH head AS (
        UPDATE {runs} SET position = %(new)s, crc = %(crc)s, updated = now(),
            until = CASE WHEN %(release)s THEN NULL ELSE until END
        WHERE id = %(id)s AND position = %(position)s AND fence = %(fence)s
        RETURNING id
    )"""
)
# While blobs are collected none is added, and while one is added none are collected: the lock comes before the row's.
_UPDATED_COLLECTED = sql.SQL(
    """WITH kept AS MATERIALIZED (
        SELECT pg_advisory_xact_lock_shared(%(lock)s) IS NOT NULL AS one
    ), head AS (
        UPDATE {runs} SET position = %(new)s, crc = %(crc)s, updated = now(),
            until = CASE WHEN %(release)s THEN NULL ELSE until END,
            card = coalesce(%(card)s::bytea, card), card_crc = coalesce(%(card_crc)s::bigint, card_crc),
            status = coalesce(%(status)s::text, status), status_crc = coalesce(%(status_crc)s::bigint, status_crc)
        WHERE id = (SELECT %(id)s FROM kept WHERE one IS NOT NULL)
            AND position = %(position)s AND fence = %(fence)s
        RETURNING id
    )"""
)
_MADE = sql.SQL(
    """WITH kept AS MATERIALIZED (
        SELECT CASE WHEN %(lock)s::bigint IS NULL THEN true
            ELSE pg_advisory_xact_lock_shared(%(lock)s::bigint) IS NOT NULL END AS one
    ), head AS (
        INSERT INTO {runs}
            (id, run_id, position, fence, crc, until, created, updated, status, status_crc, card, card_crc)
        SELECT %(id)s, %(run_id)s, %(new)s, %(fence)s, %(crc)s, now() + %(ttl)s::float8 * interval '1 second',
            now(), now(), %(status)s::text, %(status_crc)s, %(card)s::bytea, %(card_crc)s
        FROM kept WHERE one IS NOT NULL
        ON CONFLICT (run_id) DO NOTHING
        RETURNING id
    )"""
)
_TAKEN = sql.SQL(
    """WITH head AS (
        UPDATE {runs} SET fence = %(new_fence)s, crc = %(crc)s,
            until = now() + %(ttl)s::float8 * interval '1 second'
        WHERE id = %(id)s AND position = %(position)s AND fence = %(fence)s AND (until IS NULL OR until <= now())
        RETURNING id
    )"""
)
_PUT_ANY = sql.SQL(
    """WITH head AS (
        INSERT INTO {pairs} (name, scope_sha, scope, key, version, crc, value)
        VALUES (%(name)s, %(scope_sha)s, %(scope)s, %(key)s, %(version)s, %(crc)s, %(value)s)
        ON CONFLICT (name) DO UPDATE
            SET version = excluded.version, crc = excluded.crc, value = excluded.value
        RETURNING version AS id
    )"""
)
_PUT_NEW = sql.SQL(
    """WITH head AS (
        INSERT INTO {pairs} (name, scope_sha, scope, key, version, crc, value)
        VALUES (%(name)s, %(scope_sha)s, %(scope)s, %(key)s, %(version)s, %(crc)s, %(value)s)
        ON CONFLICT (name) DO NOTHING
        RETURNING version AS id
    )"""
)
_PUT_AGAIN = sql.SQL(
    """WITH head AS (
        UPDATE {pairs} SET version = %(version)s, crc = %(crc)s, value = %(value)s
        WHERE name = %(name)s AND version = %(expected)s
        RETURNING version AS id
    )"""
)
_REMOVED = sql.SQL(
    """WITH head AS (
        DELETE FROM {pairs} WHERE name = %(name)s AND (%(expected)s::bigint IS NULL OR version = %(expected)s::bigint)
        RETURNING version AS id
    )"""
)

# -- what follows from it

_BODY = sql.SQL(
    """, body AS (
        INSERT INTO {transactions} (stream, last, count, size, crc, body)
        SELECT id, %(new)s, %(count)s, %(size)s, %(body_crc)s, %(body)s FROM head WHERE %(count)s > 0
    )"""
)
_BLOBS = sql.SQL(
    """, blobs AS (
        INSERT INTO {blobs} (sha256, data)
        SELECT each.sha256, each.data
        FROM head, unnest(%(digests)b::bytea[], %(payloads)b::bytea[]) AS each (sha256, data)
        ON CONFLICT (sha256) DO NOTHING
    ), uses AS (
        INSERT INTO {uses} (stream, sha256, first)
        SELECT head.id, each.sha256, %(position)s FROM head, unnest(%(digests)b::bytea[]) AS each (sha256)
        ON CONFLICT (stream, sha256) DO NOTHING
    )"""
)
_MARK = sql.SQL(
    """, mark AS (
        INSERT INTO {sessions} (id, last, used) SELECT %(session)s, %(number)s, now() FROM head
        ON CONFLICT (id) DO UPDATE SET last = excluded.last, used = excluded.used
    ) SELECT count(*) FROM head"""
)
# In a transaction of several statements the mark comes last, once.
_COUNT = sql.SQL(" SELECT count(*) FROM head")
_MARK_LATER = sql.SQL(
    """INSERT INTO {sessions} (id, last, used) VALUES (%(session)s, %(number)s, now())
    ON CONFLICT (id) DO UPDATE SET last = excluded.last, used = excluded.used"""
)

# The rows are taken in the order in which they are given, which is the same for every session.
_GROUP = sql.SQL(
    """WITH given AS (
        SELECT * FROM unnest(
            %(id)b::bigint[], %(position)b::bigint[], %(fence)b::bigint[], %(new)b::bigint[], %(crc)b::bigint[],
            %(card)b::bytea[], %(card_crc)b::bigint[], %(status)b::text[], %(status_crc)b::bigint[],
            %(count)b::bigint[], %(size)b::bigint[], %(body_crc)b::bigint[], %(body)b::bytea[], %(release)b::bool[]
        ) WITH ORDINALITY AS each (
            id, position, fence, new, crc, card, card_crc, status, status_crc, count, size, body_crc, body, release,
            place
        )
    ), locked AS MATERIALIZED (
        SELECT r.id FROM given g JOIN {runs} r ON r.id = g.id AND r.position = g.position AND r.fence = g.fence
        ORDER BY g.place FOR UPDATE OF r
    ), head AS (
        UPDATE {runs} r SET position = g.new, crc = g.crc, updated = now(),
            until = CASE WHEN g.release THEN NULL ELSE r.until END,
            card = coalesce(g.card, r.card), card_crc = coalesce(g.card_crc, r.card_crc),
            status = coalesce(g.status, r.status), status_crc = coalesce(g.status_crc, r.status_crc)
        FROM locked l JOIN given g ON g.id = l.id
        WHERE r.id = l.id AND r.position = g.position AND r.fence = g.fence
        RETURNING r.id
    ), body AS (
        INSERT INTO {transactions} (stream, last, count, size, crc, body)
        SELECT g.id, g.new, g.count, g.size, g.body_crc, g.body FROM head h JOIN given g ON g.id = h.id
        WHERE g.count > 0
    ) SELECT id FROM head"""
)

# A time that the driver has no value for is damage of its row, and would fail the whole list.
_ENTRY: Final = """SELECT id, run_id, position, fence, crc, status, status_crc, card, card_crc,
    CASE WHEN created BETWEEN '0002-01-01Z' AND '9998-01-01Z' THEN created END,
    CASE WHEN updated BETWEEN '0002-01-01Z' AND '9998-01-01Z' THEN updated END,
    until IS NOT NULL AND until > now()
    FROM {runs} """

_PLAIN = {
    # sessions
    "settled": sql.SQL("SELECT last FROM {sessions} WHERE id = %(session)s"),
    "forget_sessions": sql.SQL("DELETE FROM {sessions} WHERE id = %(session)s OR used < now() - interval '7 days'"),
    "tick": sql.SQL("SELECT nextval({ticks_name}) FROM generate_series(1, %(count)s)"),
    # runs
    "find": sql.SQL(
        "SELECT id, position, fence, crc, until IS NOT NULL AND until > now() FROM {runs} WHERE run_id = %(run_id)s"
    ),
    "find_all": sql.SQL(
        """SELECT run_id, id, position, fence, crc, until IS NOT NULL AND until > now()
        FROM {runs} WHERE run_id = ANY(%(run_ids)b::text[])"""
    ),
    "find_to_delete": sql.SQL(
        "SELECT id, until IS NOT NULL AND until > now() FROM {runs} WHERE run_id = %(run_id)s FOR UPDATE"
    ),
    "find_to_fork": sql.SQL("SELECT id, position, fence, crc FROM {runs} WHERE run_id = %(run_id)s FOR KEY SHARE"),
    "entry": sql.SQL(_ENTRY + "WHERE run_id = %(run_id)s"),
    "list": sql.SQL(_ENTRY + "WHERE id <= %(upto)s ORDER BY id DESC LIMIT %(limit)s"),
    "list_status": sql.SQL(_ENTRY + "WHERE id <= %(upto)s AND status = %(status)s ORDER BY id DESC LIMIT %(limit)s"),
    "renew": sql.SQL(
        """UPDATE {runs} SET until = now() + %(ttl)s::float8 * interval '1 second'
        WHERE run_id = %(run_id)s AND fence = %(fence)s AND until IS NOT NULL RETURNING id"""
    ),
    # Gives those that are in a queue, which another worker may claim now.
    "release": sql.SQL(
        """WITH locked AS MATERIALIZED (
            SELECT r.id FROM unnest(%(run_ids)b::text[], %(fences)b::bigint[]) AS each (run_id, fence)
            JOIN {runs} r ON r.run_id = each.run_id AND r.fence = each.fence AND r.until IS NOT NULL
            ORDER BY r.run_id FOR NO KEY UPDATE OF r
        ), released AS (UPDATE {runs} r SET until = NULL FROM locked l WHERE r.id = l.id RETURNING r.id, r.run_id)
        SELECT run_id FROM released JOIN {queued} q ON q.run = released.id"""
    ),
    "old": sql.SQL(
        """SELECT id, status, %(before)s::timestamptz IS NULL OR updated < %(before)s::timestamptz,
            until IS NOT NULL AND until > now()
        FROM {runs} WHERE id < %(below)s ORDER BY id DESC LIMIT %(limit)s"""
    ),
    # A run that is being written now is not old.
    "lock_old": sql.SQL(
        """SELECT id FROM {runs}
        WHERE id = ANY(%(ids)b::bigint[]) AND (until IS NULL OR until <= now())
            AND (%(before)s::timestamptz IS NULL OR updated < %(before)s::timestamptz)
            AND (%(statuses)b::text[] IS NULL OR status = ANY(%(statuses)b::text[]))
        FOR UPDATE SKIP LOCKED"""
    ),
    "stats": sql.SQL(
        """SELECT (SELECT count(*) FROM {runs}), (SELECT coalesce(sum(position), 0)::bigint FROM {runs}
                WHERE position BETWEEN 0 AND 9007199254740992),
            (SELECT count(*) FROM {pairs}), (SELECT count(*) FROM {blobs}),
            (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = %(schema)s AND c.relkind = 'r')"""
    ),
    # journals
    "parts": sql.SQL("SELECT upto, stream, crc FROM {shared} WHERE run = %(id)s ORDER BY upto"),
    "parts_of": sql.SQL(
        """SELECT s.upto, s.stream, s.crc FROM {shared} s JOIN {runs} r ON r.id = s.run
        WHERE r.run_id = %(run_id)s ORDER BY s.upto"""
    ),
    # No more than a page may hold is sent: the sum is of what comes before a row.
    "page": sql.SQL(
        """SELECT last, count, crc, body FROM (
            SELECT last, count, crc, body, sum(size) OVER (ORDER BY last) - size AS bytes
            FROM {transactions}
            WHERE stream = %(stream)s AND last > %(after)s AND last <= %(upto)s AND last - count < %(until)s
            ORDER BY last LIMIT %(most)s
        ) AS page WHERE bytes < %(bytes)s ORDER BY last"""
    ),
    "beyond": sql.SQL("SELECT 1 FROM {transactions} WHERE stream = %(stream)s AND last > %(upto)s LIMIT 1"),
    "ends": sql.SQL("SELECT 1 FROM {transactions} WHERE stream = %(stream)s AND last = %(at)s"),
    "blob": sql.SQL("SELECT data FROM {blobs} WHERE sha256 = %(sha256)s"),
    "share": sql.SQL(
        """INSERT INTO {shared} (run, upto, stream, crc)
        SELECT %(run)s, each.upto, each.stream, each.crc
        FROM unnest(%(uptos)b::bigint[], %(streams)b::bigint[], %(crcs)b::bigint[]) AS each (upto, stream, crc)"""
    ),
    # queues and inboxes
    "clock": sql.SQL("SELECT extract(epoch FROM clock_timestamp())::float8"),
    # Every session takes the rows of several runs in this order.
    "lock_runs": sql.SQL(
        "SELECT run_id, id FROM {runs} WHERE run_id = ANY(%(run_ids)b::text[]) ORDER BY run_id FOR NO KEY UPDATE"
    ),
    # Of those that have slept, and of those whose worker has died or given them up. What a commit is changing at this
    # moment is not waited for: the next claim comes soon.
    "due": sql.SQL(
        """WITH slept AS (
            SELECT run FROM {queued} WHERE NOT due AND lives = 0 AND at <= {now} ORDER BY at LIMIT 10000
            FOR NO KEY UPDATE SKIP LOCKED
        ), lost AS (
            SELECT q.run FROM {queued} q JOIN {runs} r ON r.id = q.run
            WHERE q.queue = ANY(%(queues)b::text[]) AND q.lives > 0 AND NOT q.due AND q.at <= {now}
                AND (r.until IS NULL OR r.until <= now())
            FOR NO KEY UPDATE OF q SKIP LOCKED
        ), moved AS (
            UPDATE {queued} SET due = true WHERE run IN (SELECT run FROM slept UNION ALL SELECT run FROM lost)
            RETURNING queue, key
        )
        SELECT EXISTS (SELECT 1 FROM moved), EXISTS (
            SELECT 1 FROM {queued} q WHERE q.due AND q.queue = ANY(%(queues)b::text[]) AND q.key > ''
                AND q.flow = ANY(%(flows)b::text[])
        ) OR EXISTS (
            SELECT 1 FROM {queued} q WHERE q.due AND q.queue = ANY(%(limited)b::text[])
                AND q.flow = ANY(%(flows)b::text[])
        ) OR EXISTS (SELECT 1 FROM moved WHERE key > '' OR queue = ANY(%(limited)b::text[]))"""
    ),
    # Of runs without keys, whose turn needs no counting. No more rows are locked than are wanted of a queue. A fence is
    # drawn when the row is locked, so it is larger than any before. Lives count on while each owner has claimed the run
    # and none gives it up.
    "ready": sql.SQL(
        """SELECT ready.*, EXISTS (SELECT 1 FROM {signals} s WHERE s.run = ready.run), nextval({ticks_name}), {now}
        FROM unnest(%(queues)b::text[]) AS wanted (queue) CROSS JOIN LATERAL (
            SELECT {place} WHERE q.queue = wanted.queue COLLATE "C" AND q.key = '' AND q.due AND q.at <= {now}
                AND q.flow = ANY(%(flows)b::text[]) AND q.run <> ALL(%(damaged)b::bigint[])
                AND (r.until IS NULL OR r.until <= now())
            ORDER BY q.priority DESC, q.at, q.run LIMIT %(limit)s
            FOR NO KEY UPDATE OF q, r SKIP LOCKED
        ) AS ready"""
    ),
    # And of runs whose turn depends on what is at work: under the lock of their queue they are counted, looked at, and
    # then locked.
    "at_work": sql.SQL(
        """SELECT queue, key, count(*) FROM {queued}
        WHERE queue = ANY(%(queues)b::text[]) AND lives > 0 AND NOT due AND at <= {now} GROUP BY queue, key"""
    ),
    "keys": sql.SQL(
        """WITH RECURSIVE keys (key, number) AS (
            SELECT (
                SELECT min(q.key) FROM {queued} q WHERE q.queue = %(queue)b::text AND q.due AND q.key >= %(low)b::text
            ), 1
            UNION ALL
            SELECT (
                SELECT min(q.key) FROM {queued} q WHERE q.queue = %(queue)b::text AND q.due AND q.key > k.key
            ), k.number + 1
            FROM keys k WHERE k.key IS NOT NULL AND k.number < %(most)s
        )
        SELECT key FROM keys WHERE key IS NOT NULL"""
    ),
    "next": sql.SQL(
        """SELECT next.* FROM unnest(%(queues)b::text[], %(keys)b::text[]) AS wanted (queue, key) CROSS JOIN LATERAL (
            SELECT q.run, q.queue, q.flow, q.at, q.priority, q.key FROM {queued} q JOIN {runs} r ON r.id = q.run
            WHERE q.queue = wanted.queue COLLATE "C" AND q.key = wanted.key COLLATE "C" AND q.due AND q.at <= {now}
                AND q.flow = ANY(%(flows)b::text[]) AND q.run <> ALL(%(damaged)b::bigint[])
                AND (r.until IS NULL OR r.until <= now())
            ORDER BY q.priority DESC, q.at, q.run LIMIT %(limit)s
        ) AS next"""
    ),
    "chosen": sql.SQL(
        """SELECT ready.*, EXISTS (SELECT 1 FROM {signals} s WHERE s.run = ready.run), nextval({ticks_name}), {now}
        FROM (
            SELECT {place} WHERE q.run = ANY(%(chosen)b::bigint[]) AND q.due AND q.at <= {now}
                AND (r.until IS NULL OR r.until <= now())
            FOR NO KEY UPDATE OF q, r SKIP LOCKED
        ) AS ready"""
    ),
    "claim": sql.SQL(
        """WITH given AS (
            SELECT * FROM unnest(
                %(ids)b::bigint[], %(fences)b::bigint[], %(crcs)b::bigint[], %(lives)b::bigint[]
            ) AS each (id, fence, crc, lives)
        ), taken AS (
            UPDATE {runs} r SET fence = g.fence, crc = g.crc, until = now() + %(ttl)s::float8 * interval '1 second'
            FROM given g WHERE r.id = g.id
        )
        UPDATE {queued} q SET fence = g.fence, lives = g.lives, due = false FROM given g WHERE q.run = g.id"""
    ),
    # With the row of its run locked before, no signal comes in between.
    "enqueue": sql.SQL(
        """INSERT INTO {queued} AS old (run, queue, flow, at, priority, crc, lives, fence, key, due)
        SELECT each.run, each.queue, each.flow, since.at, each.priority, each.crc, coalesce(was.lives, 0), 0, each.key,
            coalesce(since.at <= {now}, false)
        FROM unnest(
            %(runs)b::bigint[], %(queues)b::text[], %(flows)b::text[], %(ats)b::float8[], %(priorities)b::bigint[],
            %(crcs)b::bigint[], %(keys)b::text[], %(given_up)b::boolean[]
        ) AS each (run, queue, flow, at, priority, crc, key, given_up)
        LEFT JOIN {queued} was ON was.run = each.run AND NOT each.given_up
        CROSS JOIN LATERAL (
            SELECT CASE WHEN EXISTS (SELECT 1 FROM {signals} s WHERE s.run = each.run) THEN least(each.at, {now})
                ELSE each.at END
        ) AS since (at)
        ON CONFLICT (run) DO UPDATE SET queue = excluded.queue, flow = excluded.flow, at = excluded.at,
            priority = excluded.priority, crc = excluded.crc, lives = excluded.lives, key = excluded.key,
            due = excluded.due"""
    ),
    "wake": sql.SQL(
        "UPDATE {queued} SET at = {now}, due = true WHERE run = ANY(%(ids)b::bigint[]) AND (at IS NULL OR at > {now})"
    ),
    # A commit with a notification keeps a lock of all the server's until it is on the disk: so this comes after the
    # commit that it tells of, and does not wait for the disk. Without a row nothing is committed.
    "notify": sql.SQL(
        """SELECT set_config('synchronous_commit', 'off', true), pg_notify({channel}, name) FROM (
            SELECT DISTINCT encode(sha256(convert_to(q.queue, 'UTF8')), 'hex') AS name
            FROM {queued} q JOIN {runs} r ON r.id = q.run
            WHERE q.at <= {now} AND (r.until IS NULL OR r.until <= now())
                AND r.run_id = ANY(%(run_ids)b::text[])
        ) AS ready"""
    ),
    "queues": sql.SQL(
        """SELECT queue, flow, priority, key, crc, count(*) FILTER (WHERE place = 'owned'),
            count(*) FILTER (WHERE place = 'ready'), count(*) FILTER (WHERE place = 'waiting'),
            min(at) FILTER (WHERE place = 'ready')
        FROM (
            SELECT q.queue, q.flow, q.priority, q.key, q.crc, q.at,
                CASE WHEN r.until > now() THEN 'owned' WHEN q.at <= {now} THEN 'ready' ELSE 'waiting' END AS place
            FROM {queued} q JOIN {runs} r ON r.id = q.run
        ) AS placed GROUP BY queue, flow, priority, key, crc ORDER BY queue, flow"""
    ),
    "signal": sql.SQL(
        """SELECT s.number FROM {signals} s JOIN {runs} r ON r.id = s.run
        WHERE r.run_id = %(run_id)s AND s.name = %(name)s"""
    ),
    "send": sql.SQL(
        """INSERT INTO {signals} (run, number, name, key, crc, body)
        SELECT * FROM unnest(
            %(runs)b::bigint[], %(numbers)b::bigint[], %(names)b::bytea[], %(keys)b::text[], %(crcs)b::bigint[],
            %(bodies)b::bytea[]
        ) ON CONFLICT (run, name) DO NOTHING"""
    ),
    "inbox": sql.SQL(
        """SELECT s.run, s.number, s.key, s.crc, s.body FROM {signals} s JOIN {runs} r ON r.id = s.run
        WHERE r.run_id = %(run_id)s AND s.number > %(after)s ORDER BY s.number LIMIT %(limit)s"""
    ),
    "drop_read": sql.SQL(
        """DELETE FROM {signals} s USING unnest(%(runs)b::bigint[], %(numbers)b::bigint[]) AS each (run, upto)
        WHERE s.run = each.run AND s.number <= each.upto"""
    ),
    "drop_queued": sql.SQL("DELETE FROM {queued} WHERE run = ANY(%(ids)b::bigint[])"),
    "drop_signals": sql.SQL("DELETE FROM {signals} WHERE run = ANY(%(ids)b::bigint[])"),
    # deleting
    "collect": sql.SQL("SELECT pg_advisory_xact_lock(%(lock)s)"),
    "keep": sql.SQL("SELECT pg_advisory_xact_lock_shared(%(lock)s)"),
    "streams": sql.SQL("SELECT DISTINCT stream FROM {shared} WHERE run = ANY(%(ids)b::bigint[])"),
    "drop_shared": sql.SQL("DELETE FROM {shared} WHERE run = ANY(%(ids)b::bigint[])"),
    "drop_runs": sql.SQL("DELETE FROM {runs} WHERE id = ANY(%(ids)b::bigint[])"),
    "trim": sql.SQL(
        """WITH dead AS (
            SELECT each.stream, coalesce((SELECT max(upto) FROM {shared} s WHERE s.stream = each.stream), 0) AS upto
            FROM unnest(%(streams)b::bigint[]) AS each (stream)
            WHERE NOT EXISTS (SELECT 1 FROM {runs} r WHERE r.id = each.stream)
        ), records AS (
            DELETE FROM {transactions} t USING dead d WHERE t.stream = d.stream AND t.last > d.upto
        )
        DELETE FROM {uses} u USING dead d WHERE u.stream = d.stream AND u.first >= d.upto RETURNING u.sha256"""
    ),
    "drop_blobs": sql.SQL(
        """DELETE FROM {blobs} b WHERE b.sha256 = ANY(%(digests)b::bytea[])
            AND NOT EXISTS (SELECT 1 FROM {uses} u WHERE u.sha256 = b.sha256)"""
    ),
    # shared budgets; a row that is not there yet is locked too
    "lock": sql.SQL("SELECT pg_advisory_xact_lock(each) FROM unnest(%(locks)b::bigint[]) AS each"),
    "find_budgets": sql.SQL(
        """SELECT b.name, b.period, b.crc, b.body
        FROM unnest(%(names)b::text[], %(periods)b::text[]) AS each (name, period)
        JOIN {budgets} b ON b.name = each.name AND b.period = each.period"""
    ),
    "put_budgets": sql.SQL(
        """INSERT INTO {budgets} (name, period, crc, body)
        SELECT * FROM unnest(%(names)b::text[], %(periods)b::text[], %(crcs)b::bigint[], %(bodies)b::bytea[])
        ON CONFLICT (name, period) DO UPDATE SET crc = excluded.crc, body = excluded.body"""
    ),
    "drop_budgets": sql.SQL(
        """WITH free AS (
            SELECT b.name, b.period
            FROM unnest(%(names)b::text[], %(periods)b::text[], %(bodies)b::bytea[]) AS each (name, period, body)
            JOIN {budgets} b ON b.name = each.name AND b.period = each.period AND b.body = each.body
            FOR UPDATE OF b SKIP LOCKED
        )
        DELETE FROM {budgets} b USING free f WHERE b.name = f.name AND b.period = f.period"""
    ),
    "budgets": sql.SQL(
        """SELECT name, period, crc, body FROM {budgets}
        WHERE (%(name)s::text IS NULL OR name = %(name)s::text) AND period >= %(since)s::text ORDER BY name, period"""
    ),
    # values
    "get": sql.SQL("SELECT version, crc, value FROM {pairs} WHERE name = %(name)s"),
    "version": sql.SQL("SELECT version FROM {pairs} WHERE name = %(name)s"),
    "scopes": sql.SQL(
        """SELECT DISTINCT scope FROM {pairs} WHERE scope >= %(prefix)s AND scope > %(after)s
        ORDER BY scope LIMIT %(limit)s"""
    ),
    # The index holds the beginnings of keys, and rows with the same one are sorted.
    "scan": sql.SQL(
        """SELECT key, version, crc, value FROM {pairs}
        WHERE scope_sha = %(scope_sha)s AND left(key, 500) >= left(%(after)s::text COLLATE "C", 500)
            AND key > %(after)s::text COLLATE "C"
        ORDER BY left(key, 500), key LIMIT %(limit)s"""
    ),
}


@frozen
class Statements:
    """All statements for one schema, ready to be sent."""

    append: bytes
    append_summary: bytes
    append_blobs: bytes
    append_new: bytes
    batch_append: bytes
    batch_append_blobs: bytes
    batch_append_new: bytes
    append_group: bytes
    acquire_new: bytes
    acquire: bytes
    batch_acquire: bytes
    fork: bytes
    put_any: bytes
    put_new: bytes
    put_again: bytes
    remove: bytes
    mark: bytes
    plain: dict[str, bytes]

    def __getitem__(self, name: str) -> bytes:
        return self.plain[name]


@lru_cache(maxsize=64)
def statements_of(schema: str) -> Statements:
    """The statements for a schema."""
    names: dict[str, sql.Composable] = {name: sql.Identifier(schema, name) for name in _TABLES}
    names["ticks_name"] = sql.Literal(f'"{schema}"."ticks"')
    # What queues go by: the server's clock, as it was when the transaction began.
    names["now"] = sql.SQL("extract(epoch FROM now())::float8")
    names["channel"] = sql.Literal(schema)
    names["place"] = _PLACE.format(**names)

    def made(*parts: sql.SQL) -> bytes:
        return sql.Composed([part.format(**names) for part in parts]).as_bytes(None)

    return Statements(
        append=made(_UPDATED_ALONE, _BODY, _MARK),
        append_summary=made(_UPDATED, _BODY, _MARK),
        append_blobs=made(_UPDATED_COLLECTED, _BODY, _BLOBS, _MARK),
        append_new=made(_MADE, _BODY, _BLOBS, _MARK),
        batch_append=made(_UPDATED, _BODY, _COUNT),
        batch_append_blobs=made(_UPDATED, _BODY, _BLOBS, _COUNT),
        batch_append_new=made(_MADE, _BODY, _BLOBS, _COUNT),
        append_group=made(_GROUP),
        acquire_new=made(_MADE, _MARK),
        acquire=made(_TAKEN, _MARK),
        batch_acquire=made(_TAKEN, _COUNT),
        fork=made(_MADE, _COUNT),
        put_any=made(_PUT_ANY, _MARK),
        put_new=made(_PUT_NEW, _MARK),
        put_again=made(_PUT_AGAIN, _MARK),
        remove=made(_REMOVED, _MARK),
        mark=made(_MARK_LATER),
        plain={name: made(text) for name, text in _PLAIN.items()},
    )
