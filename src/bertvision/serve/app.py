"""The routes of a server.

    POST /v1/predict          {"question", "context"} or {"text", "pair"?}, "tasks"?, "n_best"?  ->  {"predictions"}
    POST /v1/predict/batch    {"inputs": [the same, ...]}                                       ->  {"results"}
    POST /v1/explain          the same as predict                                               ->  what the heads read
    GET  /v1/models           the tasks and the limits
    GET  /health  /ready      whether the process lives; whether it answers
    GET  /metrics             counters for Prometheus
    GET  /openapi.json        this, exactly
    GET  /                    the page

Every refusal is {"error": one sentence}.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles

from bertvision._version import __version__
from bertvision.model.model import Model
from bertvision.serve.config import ServeConfig
from bertvision.serve.guard import OPEN, Guard
from bertvision.serve.metrics import METRICS_TYPE
from bertvision.serve.schemas import (
    Batch,
    BatchAnswer,
    Error,
    Explanation,
    Input,
    Models,
    PredictAnswer,
    Status,
    sentence,
)
from bertvision.serve.service import Query, Refusal, Service, failure
from bertvision.tasks.predictions import to_json

PAGE = Path(__file__).parent / "page"
_RETRY = {"Retry-After": {"required": True, "schema": {"type": "integer", "minimum": 1}}}
_NEEDS_KEY = {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}}
_REFUSALS: dict[int, tuple[str, dict[str, Any]]] = {
    401: ("The key is missing or wrong.", _NEEDS_KEY),
    408: ("The request did not arrive in time.", {}),
    413: ("The body is too long.", {}),
    415: ("The body is not application/json.", {}),
    421: ("The Host header names another machine.", {}),
    422: ("The body cannot be read, or is beyond a limit.", {}),
    429: ("Too many inputs wait already.", _RETRY),
    500: ("A defect; the server's log has it under the id in the sentence.", {}),
    503: ("The server is starting or stopping.", _RETRY),
    504: ("There was no answer in time.", {}),
}


def create_app(model: Model, config: ServeConfig | None = None, *, key: str | None = None) -> FastAPI:
    """An ASGI application that answers the tasks of a model."""
    config = config or ServeConfig()
    service = Service(model, config)
    service.warm_up((explanations, predictions, predictions))

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="bertvision",
        version=__version__,
        description="Tasks over one encoder.",
        docs_url=None,  # FastAPI's pages of documentation load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        responses={
            status: {"model": Error, "description": description, "headers": headers}
            for status, (description, headers) in _REFUSALS.items()
        },
    )
    _add_predictions(app, service, key)
    _add_status(app, service, key)
    _add_errors(app)
    page = _add_page(app)
    routes = frozenset(path for route in app.routes if (path := getattr(route, "path", "")))
    guard: dict[str, Any] = {"config": config, "key": key, "metrics": service.metrics}
    app.add_middleware(Guard, **guard, open_paths=OPEN | page, routes=routes)
    return app


# ---- what routes compute, in the thread that owns the model


def predictions(model: Model, queries: list[Query]) -> list[Any]:
    columns = [list(texts) for texts in zip(*(query.texts for query in queries), strict=True)]
    rows = model(*columns, **queries[0].options)
    return [{name: {"kind": found.kind, **to_json(found)} for name, found in row.items()} for row in rows]


def explanations(model: Model, queries: list[Query]) -> list[Any]:
    return [model.explain(*query.texts, **query.options) for query in queries]


# ---- routes


def _with_key(key: str | None) -> list[Any]:
    """Document that a route needs the key, where there is one; the guard checks it."""
    return [] if key is None else [Depends(HTTPBearer(auto_error=False))]


def _json_only(request: Request) -> None:
    """Browsers ask before they send JSON to another server; what they send without asking is refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "the body must be JSON: send the header Content-Type: application/json")


def _add_predictions(app: FastAPI, service: Service, key: str | None) -> None:
    options: dict[str, Any] = {"dependencies": [Depends(_json_only), *_with_key(key)]}

    @app.post("/v1/predict", response_model=PredictAnswer, summary="Answer one input", **options)
    async def predict(request: Request, one: Annotated[Input, Body()]) -> Response:
        (found,) = await service.answer([service.query(one, predictions)], request)
        return JSONResponse({"predictions": found})

    @app.post("/v1/predict/batch", response_model=BatchAnswer, summary="Answer several inputs", **options)
    async def predict_batch(request: Request, batch: Batch) -> Response:
        if len(batch.inputs) > service.config.max_batch:
            raise Refusal(422, f"inputs has more than {service.config.max_batch} entries: send fewer at once")
        queries = [service.query(one, predictions, f"inputs[{i}].") for i, one in enumerate(batch.inputs)]
        found = await service.answer(queries, request)
        return JSONResponse({"results": [{"predictions": one} for one in found]})

    @app.post("/v1/explain", response_model=Explanation, summary="Show what an answer was made of", **options)
    async def explain(request: Request, one: Annotated[Input, Body()]) -> Response:
        (found,) = await service.answer([service.query(one, explanations, alone=True)], request)
        return JSONResponse(found)


def _add_status(app: FastAPI, service: Service, key: str | None) -> None:
    config = service.config

    @app.get("/v1/models", response_model=Models, summary="The tasks", dependencies=_with_key(key))
    async def models() -> Response:
        limits = {"text": config.max_text, "batch": config.max_batch, "body": config.body_bytes}
        parameters = service.model.encoder.num_parameters
        answer = {"models": service.served(), "encoder_parameters": parameters, "limits": limits}
        return JSONResponse(answer | {"version": __version__})

    @app.get("/health", response_model=Status, summary="Whether the process lives")
    async def health() -> Response:
        return JSONResponse({"status": "alive"})

    @app.get("/ready", response_model=Status, summary="Whether it answers")
    async def ready() -> Response:
        if not service.ready:
            raise Refusal(503, "the server is starting or stopping: ask again later", {"retry-after": "5"})
        return JSONResponse({"status": "ready"})

    text = {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "For Prometheus."}
    options: dict[str, Any] = {"dependencies": _with_key(key), "responses": {200: text}}

    @app.get("/metrics", response_class=Response, summary="Counters", **options)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=METRICS_TYPE)


def _add_page(app: FastAPI) -> frozenset[str]:
    """Serve the files of the page, index.html at /; returns their paths."""
    files = StaticFiles(directory=PAGE)

    def add(path: str, name: str) -> str:
        async def answer(request: Request) -> Response:
            return await files.get_response(name, request.scope)

        app.add_route(path, answer, ["GET"], include_in_schema=False)
        return path

    names = sorted(file.name for file in PAGE.iterdir() if file.is_file())
    return frozenset(add("/" if name == "index.html" else f"/{name}", name) for name in names)


def _add_errors(app: FastAPI) -> None:
    """Answer every error with one sentence."""

    @app.exception_handler(Refusal)
    async def refuse(_: Request, refusal: Refusal) -> Response:
        return JSONResponse({"error": refusal.sentence}, refusal.status, refusal.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"error": sentence(error.errors())}, 422)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        status = 422 if error.status_code == 400 else error.status_code
        detail = {
            422: "the body is not JSON in UTF-8: send an object",
            404: "nothing is at this address: /openapi.json lists all routes",
            405: "Method not allowed: /openapi.json lists the methods of each route",
        }.get(status, error.detail)
        return JSONResponse({"error": detail}, status, error.headers)

    @app.exception_handler(Exception)
    async def defect(_: Request, error: Exception) -> Response:
        refusal = failure(error)
        return JSONResponse({"error": refusal.sentence}, refusal.status)
