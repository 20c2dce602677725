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
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.types import ASGIApp

from bertvision._version import __version__
from bertvision.heads.spec import HeadSpec
from bertvision.model.model import Model
from bertvision.serve.config import ServeConfig
from bertvision.serve.server import guard
from bertvision.serve.service import Input, Service, failure

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


# ---- the application


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
