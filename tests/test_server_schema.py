"""A server against its own OpenAPI document, by schemathesis: what the document allows is answered, what it does not is
refused, and every answer has the status, the headers, the type and the form that the document names.

Examples are few and the same in every run: nothing depends on luck.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from serve_cases import save_span
from serving import Server, save_package, serving

from bertvision.encoder.encoder import Encoder

KEY = "correct-horse-battery"
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
ASKING = ["/v1/predict", "/v1/predict/batch", "/v1/explain"]
TELLING = ["/v1/models", "/health", "/ready", "/metrics"]
FEW = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module", params=["every kind", "spans, with a key"])
def server(request: Any, tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("schema") / "package"
    if request.param == "every kind":
        save_package(folder, tiny_bert)
        key = {}
    else:
        save_span(folder, Encoder.load(str(tiny_bert)))
        key = {"BERTVISION_API_KEY": KEY}
    with serving(folder, environment=key) as running:
        if key:
            running.headers = {"authorization": f"Bearer {KEY}"}
        yield running


def described(server: Server, path: str, method: str) -> Any:
    document = server.get("/openapi.json").json()
    return schemathesis.openapi.from_dict(document)[path][method]


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", ASKING)
def test_the_document_is_true_of_what_is_asked(server: Server, path: str, mode: GenerationMode) -> None:
    statuses: set[int] = set()

    @FEW
    @given(case=described(server, path, "POST").as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        answer = case.call(base_url=server.url, headers=server.headers)
        statuses.add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    check()
    # What the document allows may still be no input (a question without context), or name no task: 422.
    assert statuses <= {200, 422} if mode is GenerationMode.POSITIVE else 422 in statuses, statuses


@pytest.mark.parametrize("path", TELLING)
def test_the_document_is_true_of_what_is_told(server: Server, path: str) -> None:
    case = described(server, path, "GET").Case()
    case.call_and_validate(base_url=server.url, headers=server.headers, checks=CHECKS)


def test_the_document_names_every_route_and_the_key(server: Server) -> None:
    document = server.get("/openapi.json").json()
    assert sorted(document["paths"]) == sorted(ASKING + TELLING)
    locked = {
        path
        for path, operations in document["paths"].items()
        for one in operations.values()
        if "security" in one
    }
    assert locked == ({*ASKING, "/v1/models", "/metrics"} if server.headers else set())
    if server.headers:
        case = described(server, "/v1/models", "GET").Case()
        assert case.call(base_url=server.url).status_code == 401
