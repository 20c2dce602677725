"""A served package gives what the same package gives in Python, refuses in one sentence, and tells no secrets.

Below: a server against its own OpenAPI document, by schemathesis. Examples are few and the same in every run.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from prometheus_client.parser import text_string_to_metric_families
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from serve_cases import assert_same, plain, save_span
from serving import Server, save_package, serving

import bertvision as bv
from bertvision.encoder.encoder import Encoder
from bertvision.model.model import Model
from bertvision.serve.app import PAGE, BatchAnswer, Explanation, Models, PredictAnswer

KEY = "correct-horse-battery"
MILL = "The mill in Arden was built by Ada Holt in 1871."
LONG = "The wind was cold and the road was long. " * 40 + MILL


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Path:
    return save_package(tmp_path_factory.mktemp("served") / "package", tiny_bert)


@pytest.fixture(scope="module")
def server(package: Path) -> Iterator[Server]:
    with serving(package, "--max-body", "200kB", "--max-text", "5000", "--max-batch", "8") as running:
        yield running


@pytest.fixture(scope="module")
def bundle(package: Path) -> Model:
    return bv.load(package)


INPUTS: list[tuple[dict[str, Any], tuple[Any, ...], dict[str, Any]]] = [
    ({"question": "Who built the mill?", "context": MILL}, ("Who built the mill?", MILL), {}),
    ({"question": "Who built it?", "context": LONG, "n_best": 3}, ("Who built it?", LONG), {"n_best": 3}),
    ({"text": "A bridge", "pair": MILL, "tasks": ["same"]}, ("A bridge", MILL), {"tasks": ["same"]}),
    ({"text": MILL}, (MILL,), {}),
    ({"text": LONG, "tasks": ["colour"], "n_best": 0}, (LONG,), {"tasks": ["colour"]}),
    ({"text": "h\u00e9l\u00e8ne \U0001f30d \u0000"}, ("h\u00e9l\u00e8ne \U0001f30d \u0000",), {}),
    ({"text": "[CLS] [SEP] [PAD] [MASK]"}, ("[CLS] [SEP] [PAD] [MASK]",), {}),
    ({"question": "[SEP]", "context": "\u200b\x01"}, ("[SEP]", "\u200b\x01"), {}),
    ({"question": "Who? " * 900, "context": "Ada."}, ("Who? " * 900, "Ada."), {}),
]


def test_answers_are_those_of_the_bundle(server: Server, bundle: Model) -> None:
    """One by one, several at once in their order, and with what they were made of."""
    expected = []
    for body, texts, options in INPUTS:
        answer = server.post("/v1/predict", body)
        assert answer.status_code == 200, answer.text
        expected.append({"predictions": plain(bundle(*texts, **options))})
        assert_same(PredictAnswer.model_validate(answer.json()).model_dump(), expected[-1])
        told = server.post("/v1/explain", body)
        assert told.status_code == 200, told.text
        assert_same(Explanation.model_validate(told.json()).model_dump(), bundle.explain(*texts, **options))
    answer = server.post("/v1/predict/batch", {"inputs": [body for body, _, _ in INPUTS[:8]]})
    assert answer.status_code == 200, answer.text
    assert_same(BatchAnswer.model_validate(answer.json()).model_dump()["results"], expected[:8])
    assert server.log.count("\n") == 1, "long questions do not fill the log"


def numbers(server: Server) -> dict[str, float]:
    """All counters, with their labels in their names."""
    return {
        sample.name + "".join(f"{{{k}={v}}}" for k, v in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(server.get("/metrics").text)
        for sample in family.samples
    }


def test_many_at_once_each_get_their_own_answer_and_are_counted(server: Server, bundle: Model) -> None:
    texts = [f"{MILL} It was {i} years old." for i in range(40)]
    before = numbers(server)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda text: server.post("/v1/predict", {"text": text}), texts))
    for text, answer in zip(texts, answers, strict=True):
        assert_same(answer.json()["predictions"], plain(bundle(text)))
    after = numbers(server)

    def more(name: str) -> float:
        return after[name] - before.get(name, 0)

    route = "{route=/v1/predict}"
    assert more(f"bertvision_requests_total{route}{{status=200}}") == 40
    assert more(f"bertvision_request_seconds_count{route}") == 40
    assert more("bertvision_batch_inputs_sum") == 40
    assert more("bertvision_batch_inputs_count") < 40, "nothing was gathered"
    assert more("bertvision_characters_total") == sum(map(len, texts))
    assert after["bertvision_queue_inputs"] == after["bertvision_running_inputs"] == 0
    assert after["process_resident_memory_bytes"] > 1e6


def test_models_tell_the_tasks_and_the_limits(server: Server, bundle: Model) -> None:
    told = Models.model_validate(server.get("/v1/models").json())
    assert [one.task for one in told.models] == list(bundle.systems)
    kinds = {"alike": ("score", 1), "colour": ("label", 1), "same": ("label", 2), "span": ("span", 2)}
    assert {one.task: (one.kind, one.texts) for one in told.models} == kinds
    colour = next(one for one in told.models if one.task == "colour")
    assert colour.classes == ["red", "green", "blue"]
    assert colour.parameters == sum(p.numel() for p in bundle.systems["colour"].heads[0].parameters())
    assert (told.limits.text, told.limits.batch, told.limits.body) == (5000, 8, 200_000)
    assert server.get("/health").json() == {"status": "alive"}
    assert server.get("/ready").json() == {"status": "ready"}


NO_TASK = "there is no task 'moon' that reads one text: name one of alike, colour"
BAD: list[tuple[str, Any, int, str]] = [
    ("predict", {"text": "  \n\u3000"}, 422, "text: is empty, write it"),
    ("predict", {"question": "Who?"}, 422, "the body: give text, text and pair, or question and context"),
    ("predict", {"text": "a" * 5001}, 422, "text is longer than 5000 characters"),
    ("predict", {"text": "a", "tasks": ["moon"]}, 422, NO_TASK),
    ("explain", {"question": "a", "context": "b", "tasks": ["colour"]}, 422, "there is no task 'colour'"),
    ("predict", {"text": "a", "n_best": 21}, 422, "n_best: "),
    ("predict/batch", {"inputs": [{"text": "a"}] * 9}, 422, "inputs has more than 8 entries"),
    ("predict/batch", {"inputs": [{"text": "a"}, {"text": " "}]}, 422, "inputs.1.text: is empty"),
    ("explain", {"text": "a" * 300_000}, 413, "the body is longer than 200kB"),
    ("nothing", {}, 404, "Not Found"),
]  # fmt: skip
RAW = [
    b'{"text": "\xe9"}',
    b'{"text": "half \\ud83d"}',
    b"[" * 100_000,
    b'{"text":' + b"[" * 9000 + b"]" * 9000 + b"}",
    b'{"text": "a", "n_best": NaN}',
    b'{"text": "a", "n_best": ' + b"9" * 5000 + b"}",
    b"",
    b"{",
]


def test_bad_input_is_one_sentence(server: Server) -> None:
    answers = []
    for route, body, status, words in BAD:
        answers.append(server.post(f"/v1/{route}", body))
        assert (answers[-1].status_code, list(answers[-1].json())) == (status, ["error"]), answers[-1].text
        assert answers[-1].json()["error"].startswith(words)
    for content in RAW:
        headers = {"content-type": "application/json"}
        answers.append(httpx.post(f"{server.url}/v1/predict", content=content, headers=headers, timeout=60))
        assert answers[-1].status_code in (400, 422), content[:40]
        assert list(answers[-1].json()) == ["error"]
    # What a browser sends to other servers without asking them first is no JSON.
    plain_text = {"content": b'{"text": "a"}', "headers": {"content-type": "text/plain"}}
    assert httpx.post(f"{server.url}/v1/predict", **plain_text).status_code == 422
    method = server.get("/v1/predict")
    assert (method.status_code, method.headers["allow"]) == (405, "POST")
    assert server.get("/ready").status_code == 200
    for answer in [*answers, *map(server.get, ("/v1/models", "/metrics", "/../../etc/passwd"))]:
        told = answer.text + str(answer.headers)
        assert not re.search(r"tmp|pytest|Traceback|\.py\b|site-packages|uvicorn", told), told


HTTP: list[tuple[bytes, int]] = [
    (b"\x16\x03\x01\x02\x00\x01\x00 a greeting of TLS\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 70_000, 400),
    (b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n{", 413),
    (b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    # Nobody says how long it is, and it does not end: 13 x 16 KiB are more than 200 kB.
    (b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
     + 13 * (b"4000\r\n" + b"a" * 0x4000 + b"\r\n"), 413),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "status"), HTTP, ids=range(len(HTTP)))
def test_odd_http_is_refused_without_a_line_in_the_log(server: Server, sent: bytes, status: int) -> None:
    before = server.log
    with server.connect() as line:
        line.sendall(sent)
        answer = HTTPResponse(line)
        answer.begin()
        assert answer.status == status
    assert server.log == before


def test_a_name_of_another_machine_is_refused(server: Server) -> None:
    """A page elsewhere may let its name point at this machine; it must not be answered."""
    port = server.url.rpartition(":")[2]
    for host, status in (("evil.example:", 421), ("", 421), ("localhost:", 200), ("[::1]:", 200)):
        host += port * bool(host)
        assert httpx.get(f"{server.url}/v1/models", headers={"host": host}).status_code == status, host


def test_a_refusal_leaves_no_body_to_send(server: Server) -> None:
    """Whoever is refused before the body is read cannot hold the connection or go on sending; /health reads none."""
    for path, name in (("/v1/predict", "elsewhere"), ("/nothing", "localhost"), ("/health", "localhost")):
        with server.connect() as line:
            line.sendall(f"POST {path} HTTP/1.1\r\nHost: {name}\r\nContent-Length: 100000\r\n\r\n".encode())
            heard = b"".join(iter(lambda line=line: line.recv(4096), b""))  # until the server closes it
        assert b"connection: close" in heard.lower(), path


def test_a_key_is_asked_for_everywhere_but_at_an_open_list(package: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    with serving(package, "--api-key-file", str(tmp_path / "key")) as server:
        for given in ("", f"Bearer {KEY[:-1]}", f"Bearer {KEY}x", f"Basic {KEY}", KEY, "Bearer \u00e9"):
            server.headers = {"authorization": given.encode("latin-1")} if given else {}  # pyright: ignore[reportAttributeAccessIssue]
            for answer in (
                *(server.get(path) for path in ("/v1/models", "/metrics", "/openapi.json", "/no/such/route")),
                server.post("/v1/predict", {"text": "a"}),
                server.post("/v1/predict", {"text": "a" * 2_000_000}),  # not even read
            ):
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), given
                assert answer.json()["error"].startswith("this server needs its key")
            for path in ("/health", "/ready", "/", "/page.js"):
                assert server.get(path).status_code == 200
        server.headers = {"authorization": f"bearer {KEY}"}
        assert server.get("/v1/models").status_code == 200
        assert server.post("/v1/predict", {"text": "a"}).status_code == 200
        assert KEY not in server.log


def test_page_files_are_handed_out_as_they_are(server: Server) -> None:
    for file in PAGE.iterdir():
        answer = server.get("/" if file.name == "index.html" else f"/{file.name}")
        assert answer.content == file.read_bytes()
        assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_the_graph_of_a_package_is_served(tiny_bert: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    encoder = Encoder.load(str(tiny_bert))
    save_span(tmp_path / "fit" / "qa", encoder, "learned_pooling")
    model = bv.load({"qa": tmp_path / "fit" / "qa"})
    model.save(tmp_path / "pkg", onnx=True)
    question = {"question": "Who built it?", "context": LONG, "n_best": 2}
    with serving(tmp_path / "pkg", "--backend", "onnx") as server:
        assert_same(
            server.post("/v1/explain", question).json(), model.explain("Who built it?", LONG, n_best=2)
        )


# ---- the OpenAPI document

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
def documented(request: Any, tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Iterator[Server]:
    if request.param == "every kind":
        yield request.getfixturevalue("server")
        return
    folder = save_span(tmp_path_factory.mktemp("schema") / "package", Encoder.load(str(tiny_bert)))
    with serving(folder, environment={"BERTVISION_API_KEY": KEY}) as running:
        running.headers = {"authorization": f"Bearer {KEY}"}
        yield running


def described(server: Server, path: str, method: str) -> Any:
    document = server.get("/openapi.json").json()
    return schemathesis.openapi.from_dict(document)[path][method]


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", ASKING)
def test_the_document_is_true_of_what_is_asked(documented: Server, path: str, mode: GenerationMode) -> None:
    statuses: set[int] = set()

    @FEW
    @given(case=described(documented, path, "POST").as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        answer = case.call(base_url=documented.url, headers=documented.headers)
        statuses.add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    check()
    # What the document allows may still be no input (a question without context), or name no task: 422.
    assert statuses <= {200, 422} if mode is GenerationMode.POSITIVE else 422 in statuses, statuses


@pytest.mark.parametrize("path", TELLING)
def test_the_document_is_true_of_what_is_told(documented: Server, path: str) -> None:
    case = described(documented, path, "GET").Case()
    case.call_and_validate(base_url=documented.url, headers=documented.headers, checks=CHECKS)


def test_the_document_names_every_route_and_the_key(documented: Server) -> None:
    document = documented.get("/openapi.json").json()
    assert sorted(document["paths"]) == sorted(ASKING + TELLING)
    locked = {
        path for path, found in document["paths"].items() if any("security" in one for one in found.values())
    }
    assert locked == ({*ASKING, "/v1/models", "/metrics"} if documented.headers else set())
    if documented.headers:
        case = described(documented, "/v1/models", "GET").Case()
        assert case.call(base_url=documented.url).status_code == 401
