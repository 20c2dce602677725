"""What stands in front of every request: who asks, how much it sends, and whether the server is stopping.

It reads the body itself, so that nothing behind it ever sees more than the limit, and nothing of a request without
the key. What it refuses it answers with one sentence: {"error": ...}.
"""

import asyncio
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from bertvision.serve.http.limits import ServeConfig

__all__ = ["HEADERS", "Guard", "Message", "Receive", "Scope", "Send", "send_error"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_SECRET = ("/v1/", "/metrics", "/openapi.json")
"""Addresses that need the key, where there is one: the page and the checks of health do not."""
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # The page loads nothing from elsewhere, and stands in no other page.
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
}
"""Sent with every answer."""


async def send_error(send: Send, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
    """An answer that says what is wrong."""
    body = json.dumps({"error": sentence}).encode()
    told = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    pairs = [(name.encode(), value.encode()) for name, value in told.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


class Guard:
    """ASGI around ASGI: refuses, or hands the request on with its body read."""

    def __init__(self, app: Any, config: ServeConfig, key: str | None, stopping: Callable[[], bool]) -> None:
        self.app, self.config, self.stopping = app, config, stopping
        self._key = None if key is None else _digest(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                if self.stopping():
                    more.append((b"connection", b"close"))
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await send_error(send_with_headers, *refusal)
            return
        try:
            body = await asyncio.wait_for(self._body(receive), self.config.timeout)
        except TimeoutError:
            sentence = f"the request did not arrive within {self.config.timeout:g} s: send it faster"
            await send_error(send_with_headers, 408, sentence, {"connection": "close"})
            return
        if body is None:
            await send_error(send_with_headers, *self._too_large(), {"connection": "close"})
            return
        await self.app(scope, _replay(body, receive), send_with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str, dict[str, str]] | None:
        """What the address and the headers alone are refused for."""
        path: str = scope["path"]
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self._key is not None and path.startswith(_SECRET):
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            # Of digests, so that not even the length of the key shows in the time this takes.
            same = hmac.compare_digest(_digest(given.strip()), self._key)
            if not (same and scheme.lower() == b"bearer"):
                sentence = "this server needs its key: send the header Authorization: Bearer KEY"
                return 401, sentence, {"www-authenticate": "Bearer"}
        if path.startswith("/v1/") and self.stopping():
            return 503, "the server is stopping: ask another one, or later", {"retry-after": "5"}
        length = headers.get(b"content-length", b"")
        if length.isdigit() and (len(length) > 18 or int(length) > self.config.body_bytes):
            return *self._too_large(), {"connection": "close"}
        return None

    def _too_large(self) -> tuple[int, str]:
        return 413, f"the body is longer than {self.config.max_body}: send less at once"

    async def _body(self, receive: Receive) -> bytes | None:
        """The whole body; None where it is longer than the limit."""
        parts: list[bytes] = []
        left = self.config.body_bytes
        while True:
            message = await receive()
            part = message.get("body", b"")
            left -= len(part)
            if left < 0:
                return None
            parts.append(part)
            # A client that went away sends no more; what it has sent is no request, and nobody hears the answer.
            if not message.get("more_body", False):
                return b"".join(parts)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body in one piece, then whatever comes after it: that the client went away."""
    given = False

    async def next_message() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message
