"""Requests generated from the server's own OpenAPI document, valid and invalid ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings

schemathesis = pytest.importorskip("schemathesis")

if TYPE_CHECKING:
    from .running import RunningServer

CHECKS = schemathesis.checks
EXAMPLES = max(60, 12 * int(os.environ.get("CROSSBATCH_FAULTS", "0")))  # of each line of CASES
VALID, INVALID = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
# Which kind of request, and what the document cannot say: which user features and filter columns
# the model knows; that all of a query string is text, so that a number in place of an id is one.
CASES = [
    ("POST", "/recommend", VALID, [CHECKS.positive_data_acceptance]),
    ("POST", "/recommend", INVALID, []),
    ("GET", "/similar", VALID, []),
    ("GET", "/similar", INVALID, [CHECKS.negative_data_rejection]),
    ("GET", "/items", VALID, []),
    ("GET", "/items", INVALID, [CHECKS.negative_data_rejection]),
    ("GET", "/health", VALID, []),
    ("GET", "/metrics", VALID, []),
]


@pytest.fixture(scope="module")
def document(server: RunningServer) -> Any:
    return schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")


def test_all_paths_are_described(document: Any) -> None:
    operations = [found.ok() for found in document.get_all_operations()]
    described = {(operation.method.upper(), operation.path) for operation in operations}
    assert described == {(method, path) for method, path, _, _ in CASES}


@pytest.mark.parametrize(("method", "path", "mode", "left_out"), CASES)
def test_answers_match_the_document(
    document: Any, server: RunningServer, method: str, path: str, mode: Any, left_out: list[Any]
) -> None:
    """No server error, and status, headers and body of every answer are as described."""

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(document[path][method].as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        response = case.call()
        # What is too large is refused, which schemathesis does not count as a refusal.
        too_large = [CHECKS.negative_data_rejection] if response.status_code in (413, 431) else []
        case.validate_response(response, excluded_checks=[*left_out, *too_large])
        assert response.status_code < 500
        if mode is VALID and response.status_code == 422:
            assert "feature" in response.text or '"filter' in response.text

    check()
    assert not [entry for entry in server.log if entry["event"] in {"fault", "plain"}]
