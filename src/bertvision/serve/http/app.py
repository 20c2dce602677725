"""The routes of a server.

    POST /v1/predict          {"question", "context"} or {"text", "pair"?}, "tasks"?, "n_best"?  ->  {"predictions"}
    POST /v1/predict/batch    {"inputs": [the same, ...]}                                       ->  {"results"}
    POST /v1/explain          the same as predict                                               ->  what the heads see
    GET  /v1/models           the tasks and the limits
    GET  /health  /ready      whether the process lives; whether it answers
    GET  /metrics             counters for Prometheus
    GET  /openapi.json        this, exactly
    GET  /                    the page

Every refusal is {"error": one sentence}.
"""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from bertvision._version import __version__
from bertvision.serve.bundle import Bundle
from bertvision.serve.http.answers import (
    BatchAnswer,
    ExplainAnswer,
    HealthAnswer,
    ModelsAnswer,
    PredictAnswer,
)
from bertvision.serve.http.document import document, refusals
from bertvision.serve.http.guard import Guard
from bertvision.serve.http.limits import ServeConfig
from bertvision.serve.http.metrics import METRICS_TYPE, Meter
from bertvision.serve.http.pages import PageFile, page_files
from bertvision.serve.http.requests import BadRequest, Requests
from bertvision.serve.http.service import Refusal, Service, failure

__all__ = ["create_app"]

_HARD = refusals(415, 422, 429, 503, 504)


def create_app(bundle: Bundle, config: ServeConfig | None = None, *, key: str | None = None) -> FastAPI:
    """An ASGI application that answers the tasks of a bundle; its `state.service` knows how busy it is."""
    config = config or ServeConfig()
    service = Service(bundle, config)
    service.warm()
    requests = Requests(service.catalogue, config)

    @contextlib.asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    # No pages of documentation: FastAPI's load their scripts from elsewhere.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, lifespan=living)
    app.state.service = service
    _add_questions(app, service, requests)
    _add_news(app, service)
    _add_errors(app)
    told = document(app, requests, key=key is not None)
    app.add_route("/openapi.json", _constant(JSONResponse(told).body, "application/json"), ["GET"])
    pages = page_files()
    for address, file in pages.items():
        app.add_route(address, _page(file), ["GET"])
    known = frozenset(route.path for route in app.routes if hasattr(route, "path"))  # pyright: ignore[reportAttributeAccessIssue]
    app.add_middleware(Guard, config=config, key=key, stopping=lambda: service.stopping)
    app.add_middleware(Meter, metrics=service.metrics, routes=known)
    return app


def _add_questions(app: FastAPI, service: Service, requests: Requests) -> None:
    """The routes that ask the model."""

    @app.post("/v1/predict", response_model=PredictAnswer, responses=_HARD, summary="Answer one input")
    async def predict(request: Request) -> Response:
        asked = requests.one(await _json(request))
        (found,) = await service.ask([asked], request)
        return JSONResponse({"predictions": found})

    @app.post(
        "/v1/predict/batch", response_model=BatchAnswer, responses=_HARD, summary="Answer several inputs"
    )
    async def predict_batch(request: Request) -> Response:
        asked = requests.several(await _json(request))
        found = await service.ask(asked, request)
        return JSONResponse({"results": [{"predictions": one} for one in found]})

    @app.post("/v1/explain", response_model=ExplainAnswer, responses=_HARD, summary="Look inside")
    async def explain(request: Request) -> Response:
        asked = requests.one(await _json(request))
        (found,) = await service.ask([asked], request, explain=True)
        return JSONResponse(found)


def _add_news(app: FastAPI, service: Service) -> None:
    """The routes that tell of the server itself."""
    config = service.config

    @app.get("/v1/models", response_model=ModelsAnswer, responses=refusals(503), summary="The tasks")
    async def models() -> Response:
        return JSONResponse(
            {
                "models": [asdict(model) for model in service.catalogue.models],
                "encoder_parameters": service.catalogue.encoder_parameters,
                "limits": {"text": config.max_text, "batch": config.max_batch, "body": config.body_bytes},
                "version": __version__,
            }
        )

    @app.get("/health", response_model=HealthAnswer, responses=refusals(), summary="Whether it lives")
    async def health() -> Response:
        return JSONResponse({"status": "alive"})

    @app.get("/ready", response_model=HealthAnswer, responses=refusals(503), summary="Whether it answers")
    async def ready() -> Response:
        if service.stopping or not service.ready:
            raise Refusal(503, "the server is stopping: ask another one, or later", {"retry-after": "5"})
        return JSONResponse({"status": "ready"})

    numbers: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "For Prometheus."}
    }

    @app.get(
        "/metrics", response_class=Response, responses=numbers | refusals(), summary="Counters and clocks"
    )
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=METRICS_TYPE)


def _add_errors(app: FastAPI) -> None:
    """Every error is one sentence."""

    @app.exception_handler(Refusal)
    async def refused(_: Request, refusal: Refusal) -> Response:
        return _error(refusal.status, refusal.sentence, refusal.headers)

    @app.exception_handler(BadRequest)
    async def misunderstood(_: Request, error: BadRequest) -> Response:
        return _error(422, str(error))

    @app.exception_handler(HTTPException)
    async def astray(_: Request, error: HTTPException) -> Response:
        sentence = {
            404: "there is nothing at this address: /openapi.json lists all",
            405: "this address is asked with another method: /openapi.json tells which",
        }.get(error.status_code, "this request cannot be answered: /openapi.json tells what can")
        return _error(error.status_code, sentence, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> Response:
        told = failure(error)
        return _error(told.status, told.sentence)


def _error(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": sentence}, status, headers)


async def _json(request: Request) -> bytes:
    """The body, which must say that it is JSON: browsers ask before they send that to another's server."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "the body must be JSON: send the header Content-Type: application/json")
    return await request.body()


def _constant(content: bytes | memoryview, media_type: str) -> Any:
    async def answer(_: Request) -> Response:
        return Response(bytes(content), media_type=media_type)

    return answer


def _page(file: PageFile) -> Any:
    async def answer(request: Request) -> Response:
        headers = {"etag": file.etag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)

    return answer
