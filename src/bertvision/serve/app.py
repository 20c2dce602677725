"""The routes of a server.

    POST /v1/predict          {"question", "context"} or {"text", "pair"?}, "tasks"?, "n_best"?  ->  {"predictions"}
    POST /v1/predict/batch    {"inputs": [the same, ...]}                                       ->  {"results"}
    POST /v1/explain          the same as predict                                               ->  what the heads read
    GET  /v1/models           the tasks and the limits
    GET  /health  /ready      whether the process lives; whether it answers
    GET  /metrics             counters for Prometheus
    GET  /openapi.json        this, exactly
    GET  /                    the page

Every refusal is {"error": one sentence}. Below the routes: the guard of every request, listening, and the limits of
connections. uvicorn ends the process well: on SIGTERM or Ctrl-C it takes no more connections, answers what it has
accepted, and stops. The address is taken before the model is loaded, so that a port in use is reported at once.
"""

import asyncio
import contextlib
import errno
import hashlib
import hmac
import socket
import time
from collections.abc import AsyncIterator, Container
from pathlib import Path
from typing import Annotated, Any, Literal

import h11
import uvicorn
from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertvision._version import __version__
from bertvision.errors import ConfigError
from bertvision.heads.spec import HeadSpec
from bertvision.model.model import Model
from bertvision.serve.config import ServeConfig
from bertvision.serve.service import Input, Metrics, Service, failure

PAGE = Path(__file__).parent / "page"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
    # The page loads nothing from elsewhere and is shown in no other page.
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
}
"""Sent with every answer."""
_REFUSALS = {
    400: "The body is not JSON in UTF-8.",
    401: "The key is missing or wrong.",
    408: "The request did not arrive in time.",
    413: "The body is too long.",
    421: "The Host header names another machine.",
    422: "The body cannot be read, or is beyond a limit.",
    429: "Too many inputs wait already; Retry-After says when to come back.",
    500: "A defect; the server's log has it under the id in the sentence.",
    504: "There was no answer in time.",
}


# ---- bodies: requests are checked with them, and the OpenAPI document is written from them


class Batch(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    inputs: Annotated[list[Input], Field(min_length=1)]


class PredictAnswer(BaseModel):
    predictions: dict[str, dict[str, Any]] = Field(description="By task; each names its kind.")


class BatchAnswer(BaseModel):
    results: list[PredictAnswer] = Field(description="One for each input, in order.")


class Explanation(BaseModel):
    text: str = Field(description="The context, or the text.")
    tokens: list[dict[str, int]] = Field(description="First character of each token, and one past its last.")
    tasks: dict[str, dict[str, Any]] = Field(description="By task: the prediction and what it was made of.")
    layers: dict[str, list[dict[str, Any]]] = Field(
        description="By task: the prediction of each hidden state's probe."
    )


class ServedTask(BaseModel):
    task: str
    kind: str
    texts: int = Field(ge=1, le=2, description="How many texts an input has.")
    asks: bool = Field(description="Whether the two texts are a question and its context.")
    classes: list[str]
    heads: list[str]
    parameters: int = Field(description="Of its heads.")


class Limits(BaseModel):
    text: int = Field(description="Characters of the longest text.")
    batch: int = Field(description="The most inputs of a request.")
    body: int = Field(description="Bytes of the longest body.")


class Models(BaseModel):
    models: list[ServedTask]
    encoder_parameters: int
    limits: Limits
    version: str = Field(description="Of bertvision.")


class Status(BaseModel):
    status: Literal["alive", "ready"]


class Error(BaseModel):
    error: str = Field(description="One sentence: what is wrong.")


def create_app(model: Model, config: ServeConfig, *, key: str | None = None) -> ASGIApp:
    service = Service(model, config)
    service.warm_up()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(service.batcher.run())
        await asyncio.sleep(0)  # it is at work
        yield
        worker.cancel()
        await asyncio.wait({worker})

    app = FastAPI(
        title="bertvision",
        version=__version__,
        description="Tasks over one encoder.",
        docs_url=None,  # FastAPI's pages of documentation load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        responses={status: {"model": Error, "description": text} for status, text in _REFUSALS.items()},
    )
    _add_routes(app, service, locked=key is not None)
    pages = {"/" if file.name == "index.html" else f"/{file.name}": file for file in PAGE.iterdir()}

    async def page(request: Request) -> Response:
        return FileResponse(pages[request.url.path])

    for path in pages:
        app.add_route(path, page, include_in_schema=False)
    for kind in (HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _refuse)
    return guard(app, config, service.metrics, key, {"/health", "/ready", *pages})


def _add_routes(app: FastAPI, service: Service, *, locked: bool) -> None:
    config, model = service.config, service.model
    # The guard checks the key; this documents it.
    keyed: dict[str, Any] = {"dependencies": [Depends(HTTPBearer(auto_error=False))]} if locked else {}

    @app.post("/v1/predict", summary="Answer one input", **keyed)
    async def predict(request: Request, one: Input) -> PredictAnswer:
        (found,) = await service.answer([service.query(one)], request)
        return PredictAnswer(predictions=found)

    @app.post("/v1/predict/batch", summary="Answer several inputs", **keyed)
    async def predict_batch(request: Request, batch: Batch) -> BatchAnswer:
        if len(batch.inputs) > config.max_batch:
            raise HTTPException(422, f"inputs has more than {config.max_batch} entries: send fewer at once")
        found = await service.answer([service.query(one) for one in batch.inputs], request)
        return BatchAnswer(results=[PredictAnswer(predictions=one) for one in found])

    @app.post("/v1/explain", summary="Show what an answer was made of", **keyed)
    async def explain(request: Request, one: Input) -> Explanation:
        (found,) = await service.answer([service.query(one, explain=True)], request)
        return Explanation(**found)

    @app.get("/v1/models", summary="The tasks", **keyed)
    async def models() -> Models:
        served = [
            ServedTask(
                task=name,
                kind=system.task.kind,
                texts=system.task.texts_read,
                asks=system.task.asks,
                classes=list(system.task.classes),
                heads=[HeadSpec(head.name, head.config).label for head in system.heads],
                parameters=sum(head.num_parameters for head in system.heads),
            )
            for name, system in model.systems.items()
        ]
        return Models(
            models=served,
            encoder_parameters=model.encoder.num_parameters,
            limits=Limits(text=config.max_text, batch=config.max_batch, body=config.body_bytes),
            version=__version__,
        )

    @app.get("/health", summary="Whether the process lives")
    async def health() -> Status:
        return Status(status="alive")

    @app.get("/ready", summary="Whether it answers")
    async def ready() -> Status:
        return Status(status="ready")

    text = {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "For Prometheus."}

    @app.get("/metrics", response_class=Response, summary="Counters", responses={200: text}, **keyed)
    async def metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def _refuse(_: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"][1:]))[:80] or "the body"
        return JSONResponse({"error": f"{place}: {first['msg'].removeprefix('Value error, ')}"}, 422)
    refusal = error if isinstance(error, HTTPException) else failure(error)
    return JSONResponse({"error": refusal.detail}, refusal.status_code, refusal.headers)


# ---- requests


def guard(
    app: ASGIApp, config: ServeConfig, metrics: Metrics, key: str | None, open_paths: Container[str]
) -> ASGIApp:
    """ASGI middleware around every request: key, Host header, limits of the body, security headers, counters.

    Every route but the open paths needs the key. A refusal that leaves a body unread closes the connection, so that
    nobody can hold it or keep sending.
    """
    limit = config.body_bytes

    def check(path: str, headers: Headers) -> None:
        """Refuse what path and headers alone decide."""
        # A page on the web may point its own name at this machine; its requests then carry that name.
        host = headers.get("host", "").rpartition(":")[0] or headers.get("host", "")
        if config.host in LOOPBACK and host.lower() not in LOOPBACK:
            raise HTTPException(421, "this server answers only as localhost: send the header Host: localhost")
        if key is not None and path not in open_paths:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            # Compare SHA-256 digests in constant time, so timing reveals neither key nor length.
            found, wanted = (hashlib.sha256(text.encode("latin-1")).digest() for text in (given.strip(), key))
            if not hmac.compare_digest(found, wanted) or scheme.lower() != "bearer":
                error = "this server needs its key: send the header Authorization: Bearer KEY"
                raise HTTPException(401, error, {"www-authenticate": "Bearer"})
        check_length(int(headers.get("content-length", "0")))  # h11 lets nothing but digits through

    def check_length(length: int) -> None:
        if length > limit:
            raise HTTPException(413, f"the body is longer than {config.max_body}: send less at once")

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        began, headers = time.monotonic(), Headers(scope=scope)
        unread = headers.get("content-length", "0").strip("0") != "" or "transfer-encoding" in headers
        length, until = 0, asyncio.get_running_loop().time() + config.timeout

        async def receive_guarded() -> Message:
            nonlocal length, unread
            try:
                # Without a body to read it waits for the client to leave.
                async with asyncio.timeout_at(until if unread else None):
                    message = await receive()
            except TimeoutError:
                late = f"the request did not arrive within {config.timeout:g} s: send it faster"
                raise HTTPException(408, late) from None
            length += len(message.get("body", b""))
            check_length(length)
            unread = message.get("more_body", False)
            return message

        async def send_guarded(message: Message) -> None:
            # What no route answers is counted together.
            route = getattr(scope.get("route"), "path", "other")
            if message["type"] == "http.response.start":
                more = _HEADERS | ({"connection": "close"} if unread else {})
                made = {**more, **Headers(raw=message["headers"])}
                message["headers"] = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in made.items()]
                metrics.requests.labels(route, str(message["status"])).inc()
            elif not message.get("more_body", False):
                metrics.seconds.labels(route).observe(time.monotonic() - began)
            await send(message)

        try:
            check(scope["path"], headers)
            await app(scope, receive_guarded, send_guarded)
        except HTTPException as refusal:
            answer = JSONResponse({"error": refusal.detail}, refusal.status_code, refusal.headers)
            await answer(scope, receive, send_guarded)

    return guarded


# ---- connections


def listen(config: ServeConfig) -> tuple[socket.socket, str]:
    """A listening socket, and its URL."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        listener = socket.create_server((config.host, config.port), family=family, backlog=1024)
    except (OSError, UnicodeError) as error:
        reason = f"cannot listen at --host {config.host} --port {config.port} ({error}): give another"
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            reason = f"port {config.port} is in use: give another with --port, or 0 for any"
        raise ConfigError(reason) from error
    host, port = listener.getsockname()[:2]
    return listener, f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: ASGIApp, listener: socket.socket, config: ServeConfig) -> None:
    """Answer until a signal comes and everything that was accepted has its answer."""
    settings: dict[str, Any] = {"log_config": None, "log_level": "error", "access_log": False, "ws": "none"}
    settings |= {"server_header": False, "timeout_graceful_shutdown": int(config.timeout) + 5}
    limits = {"seconds": config.timeout, "most": config.max_connections}
    protocol: Any = type("Protocol", (_Protocol,), limits)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", http=protocol, **settings))
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal that ended it once more
        server.run(sockets=[listener])


class _Protocol(H11Protocol):
    """A connection with limits that uvicorn has none for: time for a request's headers, time for a client to read its
    answer, and the number of open connections."""

    seconds = 0.0
    most = 0
    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.close()
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_headers()

    def _watch_headers(self) -> None:
        if self._late is None and self.conn.their_state is h11.IDLE:  # not all headers are there
            self._late = self.loop.call_later(self.seconds, self.transport.close)
        elif self._late is not None and self.conn.their_state is not h11.IDLE:
            self._late.cancel()
            self._late = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
