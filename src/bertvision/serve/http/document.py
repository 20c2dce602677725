"""The OpenAPI document: what FastAPI finds out, with the bodies, the refusals and the key that it cannot know of."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from bertvision._version import __version__
from bertvision.serve.http.answers import ErrorAnswer
from bertvision.serve.http.requests import Requests

__all__ = ["BODIES", "document", "refusals"]

BODIES = {"/v1/predict": "one", "/v1/predict/batch": "several", "/v1/explain": "one"}
"""Which body each route reads."""
_WORDS = {
    401: "The key is missing or wrong.",
    408: "The request did not arrive in time.",
    413: "The body is too long.",
    415: "The body is not application/json.",
    422: "The body cannot be understood, or is beyond a limit.",
    429: "Too many inputs wait already.",
    500: "A defect; the log of the server tells more under the id that the sentence names.",
    503: "The server is stopping, or not ready yet.",
    504: "There was no answer in time.",
}
_HEADERS = {
    401: {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}},
    429: {"Retry-After": {"required": True, "schema": {"type": "integer", "minimum": 1}}},
    503: {"Retry-After": {"required": True, "schema": {"type": "integer", "minimum": 1}}},
}


def refusals(*more: int) -> dict[int | str, dict[str, Any]]:
    """What any route may answer instead, and what this one may besides."""
    return {
        status: {"model": ErrorAnswer, "description": _WORDS[status], "headers": _HEADERS.get(status, {})}
        for status in sorted({408, 413, 500, *more})
    }


def document(app: FastAPI, requests: Requests, *, key: bool) -> dict[str, Any]:
    """The whole document of an app."""
    made = get_openapi(
        title="bertvision",
        version=__version__,
        description="Tasks over one encoder: spans, labels and scores of texts.",
        routes=app.routes,
    )
    bodies, components = requests.schemas()
    made["components"]["schemas"] |= components
    for path, kind in BODIES.items():
        made["paths"][path]["post"]["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": bodies[kind]}},
        }
    if key:
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        error = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}}
        for path, operations in made["paths"].items():
            for operation in operations.values() if path.startswith("/v1/") or path == "/metrics" else ():
                operation["security"] = [{"key": []}]
                operation["responses"]["401"] = {
                    "description": _WORDS[401], "content": error, "headers": _HEADERS[401],
                }  # fmt: skip
    return made
