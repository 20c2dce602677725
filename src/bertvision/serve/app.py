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

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from bertvision._version import __version__
from bertvision.model.model import Model
from bertvision.serve.config import ServeConfig
from bertvision.serve.guard import OPEN, Guard
from bertvision.serve.schemas import (
    Batch,
    BatchAnswer,
    Error,
    Explanation,
    Input,
    Models,
    PredictAnswer,
    Status,
)
from bertvision.serve.service import Service, failure

PAGE = Path(__file__).parent / "page"
_REFUSALS = {
    400: "The body is not JSON in UTF-8.",
    401: "The key is missing or wrong.",
    408: "The request did not arrive in time.",
    413: "The body is too long.",
    421: "The Host header names another machine.",
    422: "The body cannot be read, or is beyond a limit.",
    429: "Too many inputs wait already; Retry-After says when to come back.",
    500: "A defect; the server's log has it under the id in the sentence.",
    503: "The server is starting or stopping.",
    504: "There was no answer in time.",
}


def create_app(model: Model, config: ServeConfig | None = None, *, key: str | None = None) -> FastAPI:
    """An ASGI application that answers the tasks of a model."""
    config = config or ServeConfig()
    service = Service(model, config)
    service.warm_up()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(service.run())
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
    # The guard checks the key; this documents it.
    locked = {} if key is None else {"dependencies": [Depends(HTTPBearer(auto_error=False))]}
    _add_predictions(app, service, locked)
    _add_status(app, service, locked)
    open_paths = OPEN | {_add_file(app, file) for file in PAGE.iterdir()}
    for kind in (HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _refuse)
    app.add_middleware(Guard, config=config, key=key, metrics=service.metrics, open_paths=open_paths)
    return app


def _add_predictions(app: FastAPI, service: Service, locked: dict[str, Any]) -> None:
    @app.post("/v1/predict", response_model=PredictAnswer, summary="Answer one input", **locked)
    async def predict(request: Request, one: Input) -> Response:
        (found,) = await service.answer([service.query(one)], request)
        return JSONResponse({"predictions": found})

    @app.post("/v1/predict/batch", response_model=BatchAnswer, summary="Answer several inputs", **locked)
    async def predict_batch(request: Request, batch: Batch) -> Response:
        most = service.config.max_batch
        if len(batch.inputs) > most:
            raise HTTPException(422, f"inputs has more than {most} entries: send fewer at once")
        found = await service.answer([service.query(one) for one in batch.inputs], request)
        return JSONResponse({"results": [{"predictions": one} for one in found]})

    @app.post("/v1/explain", response_model=Explanation, summary="Show what an answer was made of", **locked)
    async def explain(request: Request, one: Input) -> Response:
        (found,) = await service.answer([service.query(one, explain=True)], request)
        return JSONResponse(found)


def _add_status(app: FastAPI, service: Service, locked: dict[str, Any]) -> None:
    config = service.config

    @app.get("/v1/models", response_model=Models, summary="The tasks", **locked)
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
            raise HTTPException(503, "the server is starting or stopping: ask again later")
        return JSONResponse({"status": "ready"})

    text = {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "For Prometheus."}

    @app.get("/metrics", response_class=Response, summary="Counters", responses={200: text}, **locked)
    async def metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _add_file(app: FastAPI, file: Path) -> str:
    """Serve a file of the page, index.html at /; returns its path."""
    path = "/" if file.name == "index.html" else f"/{file.name}"

    @app.get(path, include_in_schema=False)
    async def answer() -> Response:
        return FileResponse(file)

    return path


async def _refuse(_: Request, error: Exception) -> Response:
    """Answer every error with one sentence."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"][1:]))[:80] or "the body"
        return JSONResponse({"error": f"{place}: {first['msg'].removeprefix('Value error, ')}"}, 422)
    refusal = error if isinstance(error, HTTPException) else failure(error)
    return JSONResponse({"error": refusal.detail}, refusal.status_code, refusal.headers)
