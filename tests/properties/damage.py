"""Ways to damage what is stored and closed: an SQLite file's bytes, pages and rows, and files of a folder."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

PAGE = 4096


def flip(data: bytearray, dice: random.Random) -> None:
    for _ in range(dice.choice([1, 1, 2, 8])):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def scribble(data: bytearray, dice: random.Random) -> None:
    start = dice.randrange(len(data))
    for at in range(start, min(len(data), start + dice.randrange(1, 600))):
        data[at] = dice.randrange(256)


def zero_page(data: bytearray, dice: random.Random) -> None:
    start = dice.randrange(len(data) // PAGE) * PAGE
    data[start : start + PAGE] = bytes(PAGE)


def swap_pages(data: bytearray, dice: random.Random) -> None:
    one, other = (dice.randrange(len(data) // PAGE) * PAGE for _ in range(2))
    data[one : one + PAGE], data[other : other + PAGE] = data[other : other + PAGE], data[one : one + PAGE]


def truncate(data: bytearray, dice: random.Random) -> None:
    del data[dice.randrange(len(data)) :]


def grow(data: bytearray, dice: random.Random) -> None:
    data += dice.randbytes(dice.randrange(1, 2 * PAGE))


BYTES: list[Callable[[bytearray, random.Random], None]] = [flip, flip, scribble, zero_page, swap_pages, truncate, grow]
# Each changes one row in a way that SQLite itself finds in order.
ROWS = [
    "DELETE FROM transactions WHERE id = (SELECT id FROM transactions ORDER BY id LIMIT 1 OFFSET :n)",
    (
        "UPDATE transactions SET body = (SELECT body FROM transactions ORDER BY id LIMIT 1 OFFSET :m)"
        " WHERE id = (SELECT id FROM transactions ORDER BY id LIMIT 1 OFFSET :n)"
    ),
    (
        "UPDATE transactions SET body = zeroblob(length(body))"
        " WHERE id = (SELECT id FROM transactions ORDER BY id LIMIT 1 OFFSET :n)"
    ),
    "UPDATE transactions SET crc = crc + 1 WHERE id = (SELECT id FROM transactions ORDER BY id LIMIT 1 OFFSET :n)",
    "UPDATE transactions SET body = 7 WHERE id = (SELECT id FROM transactions ORDER BY id LIMIT 1 OFFSET :n)",
    "UPDATE transactions SET id = id + 1000 WHERE id = (SELECT id FROM transactions ORDER BY id LIMIT 1 OFFSET :n)",
    (
        "UPDATE transactions SET id = id + (1000 << 27)"
        " WHERE id = (SELECT id FROM transactions ORDER BY id LIMIT 1 OFFSET :n)"
    ),
    (
        "INSERT INTO transactions (id, count, crc, body) SELECT id + count, count, crc, body"
        " FROM transactions WHERE id & 0x7ffffff = (SELECT max(id & 0x7ffffff) FROM transactions)"
    ),
    "UPDATE runs SET position = position - 1 WHERE id = (SELECT id FROM runs ORDER BY id LIMIT 1 OFFSET :n % 8)",
    "UPDATE runs SET position = 0 WHERE id = (SELECT id FROM runs ORDER BY id LIMIT 1 OFFSET :n % 8)",
    "UPDATE runs SET run_id = run_id || 'x' WHERE id = (SELECT id FROM runs ORDER BY id LIMIT 1 OFFSET :n % 8)",
    "UPDATE runs SET fence = fence + 1 WHERE id = (SELECT id FROM runs ORDER BY id LIMIT 1 OFFSET :n % 8)",
    "UPDATE runs SET status = 'failed' WHERE id = (SELECT id FROM runs ORDER BY id LIMIT 1 OFFSET :n % 8)",
    "UPDATE runs SET status = NULL WHERE id = (SELECT id FROM runs ORDER BY id LIMIT 1 OFFSET :n % 8)",
    "UPDATE runs SET card = x'00' WHERE id = (SELECT id FROM runs ORDER BY id LIMIT 1 OFFSET :n % 8)",
    "UPDATE runs SET created = created - 1 WHERE id = (SELECT id FROM runs ORDER BY id LIMIT 1 OFFSET :n % 8)",
    "UPDATE runs SET updated = 'then' WHERE id = (SELECT id FROM runs ORDER BY id LIMIT 1 OFFSET :n % 8)",
    "UPDATE shared SET upto = upto - 3",
    "UPDATE shared SET stream = stream - 1",
    "DELETE FROM shared",
    "UPDATE blobs SET data = x'ff' || substr(data, 2)",
    "DELETE FROM blobs",
    "UPDATE pairs SET value = value || 'x' WHERE key = (SELECT key FROM pairs ORDER BY key LIMIT 1 OFFSET :n % 8)",
    "UPDATE pairs SET key = key || 'x' WHERE key = (SELECT key FROM pairs ORDER BY key LIMIT 1 OFFSET :n % 8)",
    "UPDATE pairs SET version = version + 1000 WHERE key = (SELECT key FROM pairs ORDER BY key LIMIT 1 OFFSET :n % 8)",
    # What is right elsewhere, with its checksum.
    (
        "UPDATE transactions SET (crc, body) = (SELECT crc, body FROM transactions AS other"
        " WHERE other.count = transactions.count AND other.id >> 27 != transactions.id >> 27 LIMIT 1) WHERE count = 3"
    ),
    (
        "UPDATE runs SET (position, fence, owner, updated, crc) = (SELECT position, fence, owner, updated, crc"
        " FROM runs AS other WHERE other.position = runs.position AND other.id != runs.id LIMIT 1) WHERE position = 6"
    ),
    (
        "UPDATE runs SET (created, status, card, card_crc) = (SELECT created, status, card, card_crc"
        " FROM runs AS other WHERE other.position != runs.position LIMIT 1)"
    ),
    "UPDATE pairs SET (crc, value) = (SELECT crc, value FROM pairs AS other WHERE other.key != pairs.key LIMIT 1)",
    "UPDATE store SET salt = zeroblob(16)",
    "UPDATE store SET ticks = 0",
    "DELETE FROM store",
    "DROP TABLE pairs",
    "DROP INDEX shared_by_stream",
    "CREATE TRIGGER t AFTER UPDATE ON runs BEGIN UPDATE runs SET position = 0; END",
    "PRAGMA user_version = 9",
    "PRAGMA application_id = 1",
]


def damage_row(path: Path, sql: str, dice: random.Random) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = OFF")
        parameters = {"n": dice.randrange(20), "m": dice.randrange(20)}
        connection.execute(sql, {name: value for name, value in parameters.items() if f":{name}" in sql})


def damage(path: Path, seed: int) -> str:
    """Damage a file as a seed says; gives what was done."""
    dice = random.Random(seed)
    if dice.random() < 0.3:
        sql = dice.choice(ROWS)
        damage_row(path, sql, dice)
        return sql
    change = dice.choice(BYTES)
    data = bytearray(path.read_bytes())
    change(data, dice)
    path.write_bytes(data)
    return change.__name__


def damage_folder(folder: Path, seed: int) -> str:
    """Damage a folder of files as a seed says; gives what was done.

    What was deleted whole, as a run's folder or a key's file, is deleted: nothing else says that it was there.
    """
    dice = random.Random(seed)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    path = dice.choice(files)
    name = path.relative_to(folder)
    if dice.random() < 0.25:
        other = dice.choice([each for each in files if each.name == path.name or each.parent == path.parent])
        one, two = path.read_bytes(), other.read_bytes()
        path.write_bytes(two)
        if dice.random() < 0.5 and not other.samefile(path):
            other.write_bytes(one)
        return f"{name} is {other.relative_to(folder)}"
    if dice.random() < 0.1 and "values" not in name.parts and "blobs" not in name.parts:
        path.unlink()
        return f"{name} is gone"
    change = dice.choice([flip, flip, scribble, truncate, grow])
    data = bytearray(path.read_bytes())
    change(data, dice)
    path.write_bytes(data)
    return f"{change.__name__} {name}"
