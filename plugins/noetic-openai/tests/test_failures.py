from __future__ import annotations

from typing import Any

import pytest
from noetic_openai.failures import Failures

from noetic_py import Secret
from noetic_py.errors import ContextOverflow, ModelError, ModelStatusError, ModelStreamError, RateLimited
from noetic_py.models.http import retry_after

NOW = "Fri, 21 Nov 2025 12:00:00 GMT"


def failures() -> Failures:
    return Failures("m", "localhost:8931", "api_key= of OpenAIModel")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Fri, 21 Nov 2025 12:01:30 GMT", "date": NOW}, 90.0),
        ({"retry-after": "Fri, 21 Nov 2025 11:00:00 GMT", "date": NOW}, 0.0),
        ({"retry-after": "Fri, 21 Nov 2025 12:01:30", "date": NOW}, None),
        ({"retry-after": "Fri, 21 Nov 1980 12:00:00 GMT"}, 0.0),
        ({"retry-after": "Fri, 21 Nov 1980 12:00:00 GMT", "date": "today"}, 0.0),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


@pytest.mark.parametrize(
    "error",
    [
        {"code": "context_length_exceeded", "message": "too long"},
        {"code": 400, "type": "exceed_context_size_error", "message": "too long"},
        {"message": "request (5031 tokens) exceeds the available context size (2048 tokens), try increasing it"},
        {"message": "This model's maximum context length is 8192 tokens."},
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_request_that_is_too_large(error: dict[str, Any], wrapped: bool) -> None:
    body = {"error": error} if wrapped else error
    found = failures().status(400, {}, body)
    assert isinstance(found, ContextOverflow)
    assert (found.status, found.retryable, found.model) == (400, False, "m")
    assert isinstance(failures().event(body), ContextOverflow)


def test_too_many_requests() -> None:
    found = failures().status(429, {"retry-after": "2"}, {"message": "slow down"})
    assert isinstance(found, RateLimited)
    assert (found.retry_after, found.retryable, found.body) == (2.0, True, "slow down")


def test_an_empty_account_is_not_worth_waiting_for() -> None:
    found = failures().status(429, {}, {"message": "pay", "code": "insufficient_quota"})
    assert isinstance(found, RateLimited)
    assert not found.retryable


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (401, False), (404, False), (500, True), (503, True)])
def test_other_statuses(status: int, retryable: bool) -> None:
    found = failures().status(status, {}, "<html>oops</html>")
    assert type(found) is ModelStatusError
    assert (found.status, found.retryable, found.body) == (status, retryable, "<html>oops</html>")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 502, "message": "upstream"}, ModelStatusError),
        ({"code": "rate_limit_exceeded", "message": "slow"}, RateLimited),
        ({"code": "server_error", "message": "hm"}, ModelStreamError),
        ({"code": True, "message": "hm"}, ModelStreamError),
        ("words", ModelStreamError),
        (None, ModelStreamError),
    ],
)
def test_errors_inside_a_stream(error: object, kind: type[ModelError]) -> None:
    assert type(failures().event(error)) is kind


def test_no_secret_in_any_text() -> None:
    body = {"message": f"bad key sk-secret {'x' * 1000}"}
    key = Secret("sk-secret")
    found = failures().status(401, {}, body)
    assert key.reveal() == "sk-secret"
    assert "sk-secret" not in str(found)
    assert "sk-secret" not in found.body
    assert "[secret]" in str(found)
    assert len(found.body) < 600
