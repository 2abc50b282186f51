"""Passages and their vectors: what one thread does on its connection."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import psycopg
from attrs import frozen

from noetic_postgres.failures import from_server
from noetic_postgres.journals import RESTORE
from noetic_postgres.link import Link, Row, Values
from noetic_postgres.vector_schema import index_statements, prepare_vectors, vector_statements
from noetic_py.checkpoints.checks import check_id, check_key
from noetic_py.errors import ConfigError, CorruptRecord
from noetic_py.journal.transforms import pack_scope
from noetic_py.memory import Found, Owner, VectorQuery
from noetic_py.memory.layers.vectors import AGAIN, LONG, weighed, words

__all__ = [
    "VectorLink",
    "add",
    "build_index",
    "checked_vectors",
    "forget",
    "nearest",
    "others",
    "place_of",
    "replace",
    "there",
]

_MOST_DIMENSIONS = 16_000
MOST_INDEXED = 2_000
"""Dimensions that pgvector has an index for."""
_CANDIDATES = 100
_MOST_SEARCHED = 1_000
_MOST_WORDED = 500
_LARGEST = 3.4e38


class VectorLink(Link):
    """A connection to a database that has the extension and the table.

    Attributes:
        vectors: The statements.
        extension: The schema that the extension is in.
    """

    vectors: Mapping[str, bytes]
    extension: str

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
        self.extension = extension


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
        said = None if each.said is None else each.said.isoformat()
        about = [each.origin, said, dict(each.metadata)]
        return json.dumps([each.role, each.thread, each.item, each.text, *about]).encode()


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


def _owned(owner: Owner) -> dict[str, Any]:
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


@frozen
class _Counts:
    """What is stored of an owner and an embedder: how many passages, and how many words these have together."""

    passages: int = 0
    words: int = 0
    indexed: bool = False

    @classmethod
    def of(cls, rows: Sequence[Row], embedder: str, dimensions: int) -> _Counts:
        """Out of the counts of all embedders of an owner.

        Raises:
            ConfigError: What is stored has other dimensions.
        """
        for name, stored, passages, length, indexed in rows:
            if name == embedder and passages:
                if stored != dimensions:
                    raise _wrong(
                        f"embedder {embedder!r} gave {dimensions} dimensions, and what is stored of it has {stored}"
                    )
                return cls(passages, length, indexed)
        return cls()


def _text(vector: Sequence[float]) -> str:
    return f"[{','.join(map(repr, map(float, vector)))}]"


# ---------------------------------------------------------------------------------------------------- statements


def there(link: VectorLink, owner: Owner, places: Sequence[bytes]) -> Collection[bytes]:
    """The places that are taken."""
    return {place for (place,) in link.rows(link.vectors["there"], {**_owned(owner), "places": places})}


def add(link: VectorLink, owner: Owner, embedder: str, rows: dict[bytes, _New], limit: int) -> int:
    """Keep passages; returns how many are new."""
    wanted = list(rows.values())
    found = link.batch(
        [
            (b"BEGIN", None),
            # One after another for each owner: no other session counts what is there meanwhile.
            (link.sql["collect"], {"lock": _lock(owner)}),
            (link.vectors["counts"], _owned(owner)),
            (link.sql["tick"], {"count": len(wanted)}),
        ]
    )
    _Counts.of(found[2], embedder, len(wanted[0].embedding))
    new = _insert(link, owner, embedder, wanted, [number for (number,) in found[3]])
    if not new:
        link.undo()
        return 0
    link.rows(link.vectors["trim"], {**_owned(owner), "limit": limit})
    link.commit(new)
    return new


def _insert(link: VectorLink, owner: Owner, embedder: str, wanted: Sequence[_New], numbers: Sequence[int]) -> int:
    counted = [Counter(words(each.passage.text)) for each in wanted]
    values: Values = {
        **_owned(owner),
        "embedder": embedder,
        "dimensions": len(wanted[0].embedding),
        "places": [each.place for each in wanted],
        "numbers": list(numbers),
        "embeddings": [_text(each.embedding) for each in wanted],
        "lengths": [each.total() for each in counted],
        "counts": [json.dumps(each) for each in counted],
        "crcs": [each.crc(link, number) for each, number in zip(wanted, numbers, strict=True)],
        "bodies": [each.body for each in wanted],
        "said": [_when(each.passage.said) for each in wanted],
        "metadata": [_metadata(each.passage.metadata) for each in wanted],
    }
    ((new,),) = link.rows(link.vectors["insert"], values)
    return int(new)


def _when(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _metadata(pairs: Mapping[str, str]) -> str | None:
    # The server's JSON has no place for these two kinds of characters; both names and texts are only compared.
    return json.dumps({_comparable(name): _comparable(text) for name, text in pairs.items()}) if pairs else None


def _comparable(text: str) -> str:
    return text.encode("unicode_escape").decode()


def others(link: VectorLink, owner: Owner, embedder: str, limit: int) -> list[Found]:
    """Passages with a vector of another embedder, the oldest first."""
    check_id(embedder, "embedder")
    rows = link.rows(link.vectors["others"], {**_owned(owner), "embedder": embedder, "limit": max(limit, 0)})
    return [_found(link, row) for row in rows]


def replace(link: VectorLink, owner: Owner, embedder: str, rows: dict[bytes, _New], numbers: Sequence[int]) -> int:
    """Give passages vectors of an embedder; returns how many have a new one."""
    wanted = list(rows.values())
    counts = link.batch(
        [
            (b"BEGIN", None),
            (link.sql["collect"], {"lock": _lock(owner)}),
            (link.vectors["counts"], _owned(owner)),
        ]
    )[2]
    _Counts.of(counts, embedder, len(wanted[0].embedding))
    link.rows(link.vectors["take"], {**_owned(owner), "embedder": embedder, "numbers": list(numbers)})
    new = _insert(link, owner, embedder, wanted, [each.passage.number for each in wanted])
    link.commit(new)
    return new


def build_index(link: VectorLink, owner: Owner, embedder: str) -> int:
    """Make the indexes of an owner's passages; returns how many passages they have."""
    check_id(embedder, "embedder")
    owned = {**_owned(owner), "embedder": embedder}
    for name, dimensions, passages, _, _ in link.rows(link.vectors["counts"], owned):
        if name == embedder and passages:
            if dimensions > MOST_INDEXED:
                raise _wrong(f"embedder {embedder!r}: {dimensions} dimensions, and an index has {MOST_INDEXED} at most")
            made = _indexes(link, owner, embedder, dimensions)
            link.batch([(b"BEGIN", None)])
            for statement in (made["make_nearest"], made["make_words"]):
                link.run(statement)
            link.run(link.vectors["indexed"], owned)
            link.commit(passages)
            return int(passages)
    return 0


def _indexes(link: VectorLink, owner: Owner, embedder: str, dimensions: int) -> Mapping[str, bytes]:
    sha: bytes = _owned(owner)["owner_sha"]
    return index_statements(link.address.schema, link.extension, sha, embedder, dimensions)


def _lock(owner: Owner) -> int:
    """The number of the lock under which an owner's passages are added."""
    digest = hashlib.sha256(b"vectors" + pack_scope(_names(owner))).digest()
    return int.from_bytes(digest[:7], "big")


def forget(link: VectorLink, owner: Owner, where: Mapping[str, str] | None) -> int:
    """Remove what an owner has, or of this what has some metadata."""
    owned = _owned(owner)
    link.batch([(b"BEGIN", None), (link.sql["collect"], {"lock": _lock(owner)})])
    removed: int
    if where:
        ((removed,),) = link.rows(link.vectors["drop"], {**owned, "where": _metadata(where)})
        link.commit(removed)
        return removed
    ((removed,),) = link.rows(link.vectors["forget"], owned)
    link.run(link.vectors["forget_words"], owned)
    link.run(link.vectors["forget_counts"], owned)
    link.commit(removed)
    return removed


def nearest(link: VectorLink, owner: Owner, embedder: str, query: VectorQuery) -> list[Found]:
    """The passages nearest to a query."""
    check_id(embedder, "embedder")
    vector = _checked(embedder, query.vector)
    owned = {**_owned(owner), "embedder": embedder, "dimensions": len(vector)}
    asked = sorted(set(words(query.text))) if query.words else []
    found, known = link.batch([(link.vectors["counts"], owned), (link.vectors["known"], {**owned, "asked": asked})])
    counts, having = _Counts.of(found, embedder, len(vector)), dict.fromkeys(asked, 0) | dict(known)
    weights = weighed(having, counts.passages)
    values: Values = {
        **owned,
        "vector": _text(vector),
        "part": query.words,
        "asked": list(weights),
        "weights": list(weights.values()),
        "mean": counts.words / counts.passages if counts.words else 1.0,
        "again": AGAIN,
        "long": LONG,
        "least": query.least,
        "limit": max(query.limit, 0),
        "since": _when(query.since),
        "until": _when(query.until),
        "where": _metadata(query.where),
    }
    name = "nearest"
    if counts.indexed and not (query.where or query.since or query.until):
        name, values = "among", {**values, "places": _candidates(link, owner, values, having, query.limit)}
    return [_found(link, row) for row in link.rows(link.vectors[name], values)]


def _candidates(link: VectorLink, owner: Owner, values: Values, having: Mapping[str, int], limit: int) -> list[bytes]:
    """Where the passages are that the indexes give; the others are not looked at."""
    made = _indexes(link, owner, values["embedder"], values["dimensions"])
    most = min(max(_CANDIDATES, 4 * limit), _MOST_SEARCHED)
    rare: list[str] = []
    # Words that many passages have say little, and would bring most passages of the owner.
    for word in sorted((word for word, count in having.items() if count), key=lambda word: (having[word], word)):
        if sum(having[each] for each in rare) + having[word] <= _MOST_WORDED:
            rare.append(word)
    found = link.batch(
        [
            (b"BEGIN", None),
            (b"SELECT set_config('hnsw.ef_search', %(most)s::text, true)", {"most": most}),
            (made["by_vector"], {"vector": values["vector"], "most": most}),
            (made["by_words"], {"rare": rare}),
            (b"COMMIT", None),
        ]
    )
    return list({place for (place,) in (*found[2], *found[3])})


def _found(link: Link, row: Row) -> Found:
    place, number, crc, body, score = row
    if crc != link.checksums.pair(number, place, "", body):
        raise CorruptRecord("a stored passage is damaged", hint=RESTORE)
    role, thread, item, text, *about = json.loads(body)
    # The first release of the table has kept no more than these four.
    if not about:
        return Found(text, role, thread, item, score=round(score, 4), number=number)
    origin, said, metadata = about
    moment = None if said is None else datetime.fromisoformat(said)
    return Found(text, role, thread, item, origin, moment, metadata, round(score, 4), number)
