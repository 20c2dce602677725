"""A served package gives what the same package gives in Python, refuses in one sentence, and tells no secrets."""

import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import Server, save_package, serving

import bertvision as bv
from bertvision.model.model import Model
from bertvision.serve.app import PAGE
from bertvision.serve.schemas import NOT_BLANK, BatchAnswer, Explanation, Models, PredictAnswer
from bertvision.tasks.predictions import to_json

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


def plain(predictions: Any) -> Any:
    """A bundle's predictions as JSON has them."""
    return json.loads(json.dumps({name: to_json(one) for name, one in predictions.items()}))


def assert_same(answer: Any, expected: Any) -> None:
    """Equal, but for `kind`, and numbers that depend on the company in a batch up to rounding."""
    if isinstance(expected, dict):
        assert set(answer) - {"kind"} == set(expected) - {"kind"}
        for name, value in expected.items():
            assert_same(answer[name], value)
    elif isinstance(expected, list):
        assert len(answer) == len(expected)
        for one, other in zip(answer, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, float):
        assert answer == pytest.approx(expected, rel=1e-4, abs=1e-6)
    else:
        assert answer == expected


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


@pytest.mark.parametrize(("body", "texts", "options"), INPUTS)
def test_answers_are_those_of_the_bundle(
    server: Server, bundle: Model, body: Any, texts: Any, options: Any
) -> None:
    answer = server.post("/v1/predict", body)
    assert answer.status_code == 200, answer.text
    PredictAnswer.model_validate(answer.json())
    assert_same(answer.json()["predictions"], plain(bundle(*texts, **options)))


def test_a_batch_of_mixed_inputs_keeps_their_order(server: Server, bundle: Model) -> None:
    answer = server.post("/v1/predict/batch", {"inputs": [body for body, _, _ in INPUTS[:8]]})
    assert answer.status_code == 200, answer.text
    BatchAnswer.model_validate(answer.json())
    expected = [{"predictions": plain(bundle(*texts, **options))} for _, texts, options in INPUTS[:8]]
    assert_same(answer.json()["results"], expected)


@pytest.mark.parametrize(("body", "texts", "options"), INPUTS)
def test_explain_is_that_of_the_bundle(
    server: Server, bundle: Model, body: Any, texts: Any, options: Any
) -> None:
    answer = server.post("/v1/explain", body)
    assert answer.status_code == 200, answer.text
    Explanation.model_validate(answer.json())
    assert_same(answer.json(), bundle.explain(*texts, **options))


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
    assert {one.task: (one.kind, one.texts) for one in told.models} == {
        "alike": ("score", 1), "colour": ("label", 1), "same": ("label", 2), "span": ("span", 2),
    }  # fmt: skip
    colour = next(one for one in told.models if one.task == "colour")
    assert colour.classes == ["red", "green", "blue"]
    assert colour.parameters == sum(p.numel() for p in bundle.systems["colour"].heads[0].parameters())
    assert (told.limits.text, told.limits.batch, told.limits.body) == (5000, 8, 200_000)
    assert server.get("/health").json() == {"status": "alive"}
    assert server.get("/ready").json() == {"status": "ready"}


BAD: list[tuple[str, Any, int, str]] = [
    ("predict", {"text": "  \n\u3000"}, 422, "text is empty"),
    ("predict", {"question": "", "context": "a"}, 422, "question is empty"),
    ("predict", {"question": "Who?"}, 422, "context is missing"),
    ("predict", {"text": "a" * 5001}, 422, "text is longer than 5000 characters"),
    ("predict", {"text": 7}, 422, "text cannot be read"),
    ("predict", {"text": "a", "tasks": ["moon"]}, 422, "there is no task 'moon': name one of alike, colour"),
    ("predict", {"text": "a", "tasks": ["span"]}, 422, "span reads two texts, and one text was given"),
    ("explain", {"question": "a", "context": "b", "tasks": ["colour"]}, 422, "colour reads one text"),
    ("predict", {"text": "a", "tasks": []}, 422, "tasks is an empty list"),
    ("predict", {"text": "a", "tasks": ["x"] * 40_000}, 422, "tasks has more than 256 entries"),
    ("predict", {"text": "a", "n_best": 21}, 422, "n_best cannot be read"),
    ("predict", {"text": "a", "n_best": "3"}, 422, "n_best cannot be read"),
    ("predict", {"text": "a", "task": "span"}, 422, "there is no field task here"),
    (
        "predict",
        {"text": "a", "n" * 9000: 1},
        422,
        "there is no field nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn... here",
    ),
    ("predict", {"text": "a", "two\nlines": 1}, 422, "there is no field two\\nlines here"),
    ("predict/", {"text": "a"}, 404, "nothing is at this address"),
    ("predict", {}, 422, "text is missing"),
    ("predict", [], 422, "the body is not an input"),
    ("predict/batch", {"inputs": []}, 422, "inputs is an empty list"),
    ("predict/batch", {"inputs": [{"text": "a"}] * 9}, 422, "inputs has more than 8 entries"),
    ("predict/batch", {"inputs": [{"text": "a"}, {"text": " "}]}, 422, "inputs[1].text is empty"),
    ("predict/batch", {"inputs": [{"text": "a"}, {"text": "b" * 5001}]}, 422, "inputs[1].text is longer"),
    ("predict/batch", {"inputs": [{"text": "a"}, 5]}, 422, "inputs[1] is not an input"),
    ("explain", {"text": "a" * 300_000}, 413, "the body is longer than 200kB"),
    ("nothing", {}, 404, "nothing is at this address"),
]


@pytest.mark.parametrize(("route", "body", "status", "words"), BAD)
def test_bad_input_is_one_sentence(server: Server, route: str, body: Any, status: int, words: str) -> None:
    answer = server.post(f"/v1/{route}", body)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert answer.json()["error"].startswith(words)
    assert "\n" not in answer.json()["error"]
    assert server.get("/ready").status_code == 200


NO_JSON = "the body is not JSON in UTF-8"
RAW: list[tuple[bytes, str, int, str]] = [
    (b"\xff\xfe\x00binary", "application/json", 422, NO_JSON),
    (b'{"text": "\xe9"}', "application/json", 422, NO_JSON),
    (b'{"text": "half \\ud83d"}', "application/json", 422, "text"),
    (b"[" * 100_000, "application/json", 422, NO_JSON),
    (b'{"text":' + b"[" * 9000 + b"]" * 9000 + b"}", "application/json", 422, ""),
    (b'{"text": "a", "n_best": NaN}', "application/json", 422, "n_best cannot be read"),
    (b'{"text": "a", "n_best": 1e999}', "application/json", 422, "n_best cannot be read"),
    (b'{"text": "a", "n_best": ' + b"9" * 5000 + b"}", "application/json", 422, ""),
    (b"", "application/json", 422, NO_JSON),
    (b'{"text": "a"}', "text/plain", 415, "the body must be JSON"),
    (b'{"text": "a"}', "", 415, "the body must be JSON"),
]


@pytest.mark.parametrize(("content", "kind", "status", "words"), RAW, ids=range(len(RAW)))
def test_bodies_that_are_no_json(server: Server, content: bytes, kind: str, status: int, words: str) -> None:
    headers = {"content-type": kind} if kind else {}
    answer = httpx.post(f"{server.url}/v1/predict", content=content, headers=headers, timeout=60)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert answer.json()["error"].startswith(words)


def test_a_body_of_unknown_length_is_cut_off(server: Server) -> None:
    """Nobody says how long it is, and it does not end: the server answers after the limit."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as line:
        head = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        line.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        piece = b"4000\r\n" + b"a" * 0x4000 + b"\r\n"
        for _ in range(13):  # 13 x 16 KiB are more than 200 kB
            line.sendall(piece)
        assert line.recv(4096).startswith(b"HTTP/1.1 413 ")


HTTP: list[tuple[bytes, int]] = [
    (b"\x16\x03\x01\x02\x00\x01\x00 a greeting of TLS\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 70_000, 400),
    (
        b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        400,
    ),
    (b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n{", 413),
    (b"OPTIONS /v1/predict HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    (b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
]


@pytest.mark.parametrize(("sent", "status"), HTTP, ids=range(len(HTTP)))
def test_odd_http_is_one_sentence_and_no_line_in_the_log(server: Server, sent: bytes, status: int) -> None:
    before = server.log
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as line:
        line.sendall(sent)
        answer = HTTPResponse(line)
        answer.begin()
        assert answer.status == status
        assert list(json.loads(answer.read())) == ["error"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert server.log == before


def test_another_method_is_refused(server: Server) -> None:
    answer = server.get("/v1/predict")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"].startswith("Method not allowed")


def test_nothing_tells_where_the_model_lies(server: Server, package: Path, tiny_bert: Path) -> None:
    answers = [
        server.get(path) for path in ("/v1/models", "/metrics", "/openapi.json", "/../../etc/passwd", "/x")
    ]
    answers += [server.post(f"/v1/{route}", body) for route, body, _, _ in BAD]
    answers += [server.post("/v1/explain", body) for body, _, _ in INPUTS]
    secrets = (
        str(package),
        str(tiny_bert),
        tiny_bert.name + '"',
        "Traceback",
        ".py",
        "site-packages",
        "uvicorn",
    )
    for answer in answers:
        told = answer.text + str(answer.headers)
        assert not [secret for secret in secrets if secret in told], answer.text


def test_long_questions_do_not_fill_the_log(server: Server) -> None:
    before = server.log
    assert server.post("/v1/predict", {"question": "Who " * 50, "context": MILL}).status_code == 200
    assert server.log == before


def test_a_name_of_another_machine_is_refused(server: Server) -> None:
    """A page elsewhere may let its name point at this machine; it must not be answered."""
    port = server.url.rpartition(":")[2]
    for host, status in (
        (f"evil.example:{port}", 421),
        ("", 421),
        (f"localhost:{port}", 200),
        (f"[::1]:{port}", 200),
    ):
        assert httpx.get(f"{server.url}/v1/models", headers={"host": host}).status_code == status, host


def test_a_refusal_leaves_no_body_to_send(server: Server) -> None:
    """Whoever is refused before the body is read cannot hold the connection or go on sending."""
    host, port = server.url.removeprefix("http://").split(":")
    for path, name in (("/v1/predict", "elsewhere"), ("/nothing", "localhost"), ("/health", "localhost")):
        with socket.create_connection((host, int(port)), timeout=60) as line:
            line.sendall(f"POST {path} HTTP/1.1\r\nHost: {name}\r\nContent-Length: 100000\r\n\r\n".encode())
            heard = b"".join(iter(lambda line=line: line.recv(4096), b""))  # until the server closes it
        assert b"connection: close" in heard.lower(), path


def test_page_files_are_handed_out_as_they_are(server: Server) -> None:
    for file in PAGE.iterdir():
        address = "/" if file.name == "index.html" else f"/{file.name}"
        answer = server.get(address)
        assert answer.content == file.read_bytes()
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        again = httpx.get(server.url + address, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_blank_means_what_the_library_means() -> None:
    everything = [chr(number) for number in range(0x110000)]
    found = set(re.findall(NOT_BLANK, "".join(everything)))
    assert [one for one in everything if one not in found] == [one for one in everything if one.isspace()]
