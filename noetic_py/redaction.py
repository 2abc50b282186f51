"""Secret values, taken out of every text before it leaves the process.

The owner of a secret makes its value known here, as [`Secret`][noetic_py.Secret] does by itself. From then on the
value is masked in what the library says: error messages, log records, spans, events, what a tool's output tells the
model, what is stored of a failure, and what the command line prints. All of it goes through `redact`.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from logging import LogRecord

MASK: Final = "[secret]"
"""The replacement of a masked secret in a text."""

NOT_SHOWN: Final = "[not shown"
"""How the text begins that stands for an argument whose value has no text: the reason and a bracket follow."""

MIN_LENGTH: Final = 6
"""Shorter values are not looked for: they would be found in half of all words. In characters, as in `_MIN_LINE`."""

_MIN_LINE: Final = 16
"""Lines of at least this length of a secret with several lines, such as a key, are masked by themselves too."""

_LINGER: Final = 1000
"""How many values are still masked after the last holder has gone: an error may be shown after its cause is gone."""


_CELL: Final = 2_000
"""Characters of a text that a table shows."""

_ESCAPED: Final = re.compile("%[0-9A-F]{2}")
_UNICODE: Final = re.compile(r"\\u([0-9a-f]{4})")


class _Register:
    """The known values, and the forms in which each of them may be written."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: Counter[str] = Counter()
        self._late: OrderedDict[str, None] = OrderedDict()
        # Filled by finalizers, which may run at any moment, so also while the lock is held.
        self._gone: deque[str] = deque()
        # Read without the lock: it is replaced and never changed. Longest first, for one form may be a part of another.
        self.forms: tuple[str, ...] = ()

    def hold(self, value: str) -> None:
        with self._lock:
            known = value in self._held or value in self._late
            self._held[value] += 1
            self._late.pop(value, None)
            self._settle(known)

    def remember(self, value: str) -> None:
        with self._lock:
            known = value in self._held or value in self._late
            if value not in self._held:
                self._late[value] = None
                self._late.move_to_end(value)
            self._settle(known)

    def gone(self, value: str) -> None:
        self._gone.append(value)

    def forget(self) -> None:
        """Mask from now on only what is still referenced."""
        with self._lock:
            self._settle(True)
            self._late.clear()
            self._settle(False)

    def _settle(self, known: bool) -> None:
        """Remove values that are gone, and make the masked forms again if the values have changed."""
        while self._gone:
            value = self._gone.popleft()
            if value not in self._held:
                continue
            self._held[value] -= 1
            if self._held[value] <= 0:
                del self._held[value]
                self._late[value] = None
        while len(self._late) > _LINGER:
            self._late.popitem(last=False)
            known = False
        if not known:
            found = {form for value in (*self._held, *self._late) for form in _forms(value)}
            self.forms = tuple(sorted(found, key=len, reverse=True))


_register = _Register()


@lru_cache(4096)
def _forms(value: str) -> tuple[str, ...]:
    """The value as JSON, Python, HTML, an address, hexadecimal and base64 write it; nothing for one too short."""
    if len(value) < MIN_LENGTH:
        return ()
    from base64 import b64encode, urlsafe_b64encode
    from html import escape
    from urllib.parse import quote, quote_plus

    data = _bytes_of(value)
    found = {value, *(line.strip() for line in value.splitlines() if len(line.strip()) >= _MIN_LINE)}
    # Texts are escaped more than once: the arguments of a call are JSON inside the JSON of a record.
    written = {value, repr(data)[2:-1]}
    once = {value, *_as_json(value)}
    for _ in range(3):
        written |= {form for each in written for form in (*_as_json(each)[:2], *_as_python(each))}
    found |= written | once | {escape(value), escape(value, quote=False), data.hex(), data.hex().upper()}
    # The form in which an HTTP header and a log show bytes.
    found |= {data.decode("latin-1"), data.decode(errors="replace"), data.decode(errors="backslashreplace")}
    for each in {*map(_bytes_of, once), quote(data, safe="").encode()}:
        for form in (quote(each, safe=""), quote(each), quote_plus(each)):
            found |= {form, _ESCAPED.sub(lambda escaped: escaped[0].lower(), form)}
    for each in map(_bytes_of, once):
        for shift in range(3):
            # A name may stand in front, as in a header for basic authentication: it moves the value in the groups of
            # three.
            begin, end = -(-shift * 4 // 3), (shift + len(each)) * 4 // 3
            found |= {encode(b"\0" * shift + each).decode()[begin:end] for encode in (b64encode, urlsafe_b64encode)}
    return tuple(form for form in found if len(form) >= MIN_LENGTH)


def _bytes_of(text: str) -> bytes:
    try:
        # Bytes that are not UTF-8 are held as a text in which surrogates stand for them.
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")


def _as_json(text: str) -> tuple[str, ...]:
    """A text within a text of JSON; first as Python writes it, then with what other programs escape besides."""
    import json

    plain, bare = (json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    found = [plain, bare]
    for form in (plain, bare):
        safe = form.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        found += [form.replace("/", "\\/"), safe, safe.replace("'", "\\u0027").replace("+", "\\u002b")]
    return (*found, *(_UNICODE.sub(lambda escaped: "\\u" + escaped[1].upper(), form) for form in found))


def _as_python(text: str) -> tuple[str, ...]:
    """A text as Python shows it: by itself, and within a text that holds quotes of both kinds."""
    return tuple(form for show in (repr, ascii) for form in (show(text)[1:-1], show(f"\"{text}'")[2:-3]))


def hold(value: str) -> None:
    """Mask a value from now on, until `forget_later` was called as often for it."""
    _register.hold(value)


def forget_later(value: str) -> None:
    """A holder of the value has gone; may be called by a finalizer."""
    _register.gone(value)


def remember(value: str) -> None:
    """Mask a value that is not held as a secret, as long as the 1,000 newest ones of these are."""
    _register.remember(value)


def redact(text: str) -> str:
    """The text with every known secret value in it masked.

    A value is found as it is, and as JSON, Python, HTML, an address, hexadecimal or base64 write it. That costs a
    search for each known value, and nothing while none is known. Values shorter than 6 characters are not looked for.
    """
    for form in _register.forms:
        if form in text:
            text = text.replace(form, MASK)
    return text


def without_secrets(text: str | None) -> str | None:
    """A reason, if there is one, without secrets; a value that is not a text is refused where it is stored."""
    given: object = text
    return redact(given) if isinstance(given, str) else text


def rendered(error: BaseException) -> str:
    """An exception with its traceback and its causes as text, without secrets."""
    import traceback

    return redact("".join(traceback.format_exception(error)).rstrip("\n"))


def redact_record(record: LogRecord) -> bool:
    """A filter of a logger: takes secrets out of a record, out of its traceback too, and lets every record pass."""
    if not _register.forms:
        return True
    message = record.getMessage()
    if redact(message) != message:
        record.msg, record.args = redact(message), ()
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        import traceback

        text = "".join(traceback.format_exception(error)).rstrip("\n")
        if redact(text) != text:
            # Handlers write the text, and those that look at the exception itself must not find it.
            record.exc_text, record.exc_info = redact(text), None
    return True


def with_article(noun: str) -> str:
    """A noun or the name of a class with its article: `an approval`, `a result`."""
    letters = noun.lstrip("'_").lower()
    vowel = letters[:1] in ("a", "e", "i", "o") or (letters[:2] in ("un", "up") and letters[:3] != "uni")
    return f"{'an' if vowel else 'a'} {noun}"


def html_table(rows: Iterable[tuple[str, str]]) -> str:
    """Names and texts as a table of HTML for notebooks, without secrets; a long text is cut."""
    from html import escape

    parts = [
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left;white-space:pre-wrap">{escape(_cut(redact(text)))}</td></tr>'
        for name, text in rows
    ]
    return f"<table>{''.join(parts)}</table>"


def _cut(text: str) -> str:
    return text if len(text) <= _CELL else f"{text[:_CELL]}…"
