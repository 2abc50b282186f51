"""Passages and their vectors: what one thread does on its connection."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import psycopg
from attrs import frozen

from noetic_postgres.failures import from_server
from noetic_postgres.journals import RESTORE
from noetic_postgres.link import Link, Row, Values
from noetic_postgres.vector_schema import prepare_vectors, vector_statements
from noetic_py.checkpoints.checks import check_id, check_key
from noetic_py.errors import ConfigError, CorruptRecord
from noetic_py.journal.transforms import pack_scope
from noetic_py.memory import Found, Owner, VectorQuery
from noetic_py.memory.layers.vectors import AGAIN, LONG, weighed, words

__all__ = ["VectorLink", "add", "checked_vectors", "forget", "nearest", "place_of", "there"]

_MOST_DIMENSIONS = 16_000
_LARGEST = 3.4e38


class VectorLink(Link):
    """A connection to a database that has the extension and the table.

    Attributes:
        vectors: The statements.
    """

    vectors: Mapping[str, bytes]

    def prepare(self) -> None:
        """Set it up; nothing else is done before.

        Raises:
            CheckpointError: The store cannot be used, or the connection was lost.
        """
        super().prepare()
        address = self.address
        try:
            extension = prepare_vectors(self.connection, address.schema, address.where)
        except psycopg.Error as error:
            raise from_server(error, address.where) from None
        self.vectors = vector_statements(address.schema, extension)


@frozen
class _New:
    """A passage that is to be kept."""

    place: bytes
    passage: Found
    embedding: Sequence[float]

    def crc(self, link: Link, number: int) -> int:
        return link.checksums.pair(number, self.place, "", self.body)

    @property
    def body(self) -> bytes:
        each = self.passage
        return json.dumps([each.role, each.thread, each.item, each.text]).encode()


def place_of(owner: Owner, embedder: str, text: str) -> bytes:
    """The same for the same text of the same owner, so that storing it twice is storing it once.

    Raises:
        InvalidId: The owner or the embedder's name is not an id.
    """
    check_id(embedder, "embedder")
    digest = hashlib.sha256(pack_scope((*_names(owner), embedder)))
    digest.update(text.encode(errors="surrogatepass"))
    return digest.digest()


def _names(owner: Owner) -> tuple[str, str, str]:
    """The owner, checked.

    Raises:
        InvalidId: An owner's id or a layer's is not valid.
    """
    if owner.id:
        check_key(owner.id)
    check_key(owner.layer)
    return (owner.scope.value, owner.id, owner.layer)


def _owned(owner: Owner) -> dict[str, object]:
    """The values that every statement has: each of the names by itself, and the digest that the index holds."""
    scope, name, layer = _names(owner)
    sha = hashlib.sha256(pack_scope((scope, name, layer))).digest()
    return {"owner_sha": sha, "scope": scope, "owner": name, "layer": layer}


def checked_vectors(owner: Owner, embedder: str, given: Sequence[tuple[Found, Sequence[float]]]) -> dict[bytes, _New]:
    """The passages to store, each text once.

    Raises:
        ConfigError: The vectors are of different lengths, or cannot be stored; code `"vector-dimensions"`.
    """
    made: dict[bytes, _New] = {}
    for passage, vector in given:
        place = place_of(owner, embedder, passage.text)
        made.setdefault(place, _New(place, passage, _checked(embedder, vector)))
    if len({len(each.embedding) for each in made.values()}) > 1:
        raise _wrong(f"embedder {embedder!r} gave vectors of different numbers of dimensions")
    return made


def _checked(embedder: str, vector: Sequence[float]) -> Sequence[float]:
    if not 0 < len(vector) <= _MOST_DIMENSIONS:
        raise _wrong(f"embedder {embedder!r}: {len(vector)} dimensions, and there can be 1 to {_MOST_DIMENSIONS}")
    if not all(math.isfinite(value) and abs(value) < _LARGEST for value in vector):
        raise _wrong(f"embedder {embedder!r} gave a number that is not finite")
    return vector


def _wrong(what: str) -> ConfigError:
    return ConfigError(what, code="vector-dimensions", hint="give each model of an embedder a name of its own")


def _check_dimensions(rows: Sequence[Row], embedder: str, wanted: int) -> None:
    if rows:
        raise _wrong(f"embedder {embedder!r} gave {wanted} dimensions, and what is stored of it has {rows[0][0]}")


def _text(vector: Sequence[float]) -> str:
    return f"[{','.join(map(repr, map(float, vector)))}]"


# ---------------------------------------------------------------------------------------------------- statements


def there(link: VectorLink, owner: Owner, places: Sequence[bytes]) -> Collection[bytes]:
    """The places that are taken."""
    return {place for (place,) in link.rows(link.vectors["there"], {**_owned(owner), "places": places})}


def add(link: VectorLink, owner: Owner, embedder: str, rows: dict[bytes, _New], limit: int) -> int:
    """Keep passages; returns how many are new."""
    wanted = list(rows.values())
    dimensions = len(wanted[0].embedding)
    owned = {**_owned(owner), "embedder": embedder, "dimensions": dimensions}
    # One after another for each owner: no other session counts what is there meanwhile.
    found = link.batch(
        [
            (b"BEGIN", None),
            (link.sql["collect"], {"lock": _lock(owner)}),
            (link.vectors["others"], owned),
            (link.sql["tick"], {"count": len(wanted)}),
        ]
    )
    _check_dimensions(found[2], embedder, dimensions)
    numbers = [number for (number,) in found[3]]
    counted = [Counter(words(each.passage.text)) for each in wanted]
    values: Values = {
        **owned,
        "places": [each.place for each in wanted],
        "numbers": numbers,
        "embeddings": [_text(each.embedding) for each in wanted],
        "lengths": [each.total() for each in counted],
        "counts": [json.dumps(each) for each in counted],
        "crcs": [each.crc(link, number) for each, number in zip(wanted, numbers, strict=True)],
        "bodies": [each.body for each in wanted],
    }
    new = len(link.rows(link.vectors["insert"], values))
    if not new:
        link.undo()
        return 0
    link.run(link.vectors["trim"], {**_owned(owner), "limit": limit})
    link.commit(new)
    return new


def _lock(owner: Owner) -> int:
    """The number of the lock under which an owner's passages are added."""
    digest = hashlib.sha256(b"vectors" + pack_scope(_names(owner))).digest()
    return int.from_bytes(digest[:7], "big")


def forget(link: VectorLink, owner: Owner) -> int:
    """Remove all that an owner has."""
    owned = _owned(owner)
    link.batch([(b"BEGIN", None), (link.sql["collect"], {"lock": _lock(owner)})])
    removed = len(link.rows(link.vectors["forget"], owned))
    link.commit(removed)
    return removed


def nearest(link: VectorLink, owner: Owner, embedder: str, query: VectorQuery) -> list[Found]:
    """The passages nearest to a query."""
    check_id(embedder, "embedder")
    vector = _checked(embedder, query.vector)
    owned = {**_owned(owner), "embedder": embedder, "dimensions": len(vector)}
    asked = sorted(set(words(query.text))) if query.words else []
    others, ((count, mean),), known = link.batch(
        [
            (link.vectors["others"], owned),
            (link.vectors["wording"], owned),
            (link.vectors["known"], {**owned, "asked": asked}),
        ]
    )
    _check_dimensions(others, embedder, len(vector))
    weights = weighed(dict.fromkeys(asked, 0) | dict(known), count)
    values: Values = {
        **owned,
        "vector": _text(vector),
        "part": query.words,
        "asked": list(weights),
        "weights": list(weights.values()),
        "mean": mean or 1.0,
        "again": AGAIN,
        "long": LONG,
        "least": query.least,
        "limit": max(query.limit, 0),
    }
    return [_found(link, row) for row in link.rows(link.vectors["nearest"], values)]


def _found(link: Link, row: Row) -> Found:
    place, number, crc, body, score = row
    if crc != link.checksums.pair(number, place, "", body):
        raise CorruptRecord("a stored passage is damaged", hint=RESTORE)
    role, thread, item, text = json.loads(body)
    return Found(text, role, thread, item, round(score, 4), number)
