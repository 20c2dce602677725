"""A connection that hurries its client: uvicorn waits for a request's headers as long as anyone likes.

A client has so many seconds for the first line and the headers of each request, then the connection is closed; the
body has as many again (guard.py). What is no HTTP at all is refused like everything else: {"error": one sentence}.
"""

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertvision.serve.http.guard import HEADERS

__all__ = ["connection_of"]


class _Connection(H11Protocol):
    seconds = 0.0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # IDLE: the headers of the next request are not there yet, or not all of them.
        if self.conn.their_state is h11.IDLE:
            self._watch()
        else:
            self._unwatch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        body = json.dumps({"error": "this is no HTTP request, or its headers are too long"}).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        event = h11.Response(status_code=400, headers=list((headers | HEADERS).items()), reason="Bad Request")
        for part in (event, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(part) or b"")
        self.transport.close()

    def _watch(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self.seconds, self.transport.close)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def connection_of(seconds: float) -> Any:
    """The kind of connection whose clients have so long for the headers of a request."""
    return type("Connection", (_Connection,), {"seconds": seconds})
