"""ASGI middleware around every request: key, Host header, limits of the body, security headers, counters.

Every route needs the key, but for those in `OPEN` and the files of the page. A refusal that leaves a body unread closes
the connection, so that nobody can hold it or keep sending.
"""

import asyncio
import hashlib
import hmac
import time

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertvision.serve.config import ServeConfig
from bertvision.serve.metrics import Metrics

OPEN = frozenset({"/health", "/ready"})
"""Routes that need no key, besides the files of the page."""
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


class Guard:
    def __init__(
        self,
        app: ASGIApp,
        *,
        config: ServeConfig,
        key: str | None,
        metrics: Metrics,
        open_paths: frozenset[str],
    ) -> None:
        self.app, self.config, self.metrics, self.open_paths = app, config, metrics, open_paths
        self._key = None if key is None else _digest(key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, headers = time.perf_counter(), Headers(scope=scope)
        unread = headers.get("content-length", "0").strip("0") != "" or "transfer-encoding" in headers

        async def send_guarded(message: Message) -> None:
            # What no route answers is counted together.
            route = getattr(scope.get("route"), "path", "other")
            if message["type"] == "http.response.start":
                more = _HEADERS | ({"connection": "close"} if unread else {})
                made = {**more, **Headers(raw=message["headers"])}
                message["headers"] = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in made.items()]
                self.metrics.requests.labels(route, str(message["status"])).inc()
            elif not message.get("more_body", False):
                self.metrics.seconds.labels(route).observe(time.perf_counter() - began)
            await send(message)

        try:
            self._check(scope["path"], headers)
            if scope["method"] == "POST" and scope["path"].startswith("/v1/"):
                receive = await self._body_read(receive, headers)
                unread = False
            await self.app(scope, receive, send_guarded)
        except HTTPException as refusal:
            answer = JSONResponse({"error": refusal.detail}, refusal.status_code, refusal.headers)
            await answer(scope, receive, send_guarded)

    def _check(self, path: str, headers: Headers) -> None:
        """Refuse what path and headers alone decide."""
        # A page on the web may point its own name at this machine; its requests then carry that name.
        host = headers.get("host", "").rpartition(":")[0] or headers.get("host", "")
        if self.config.host in LOOPBACK and host.lower() not in LOOPBACK:
            raise HTTPException(421, "this server answers only as localhost: send the header Host: localhost")
        if self._key is not None and path not in self.open_paths:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            # Compare SHA-256 digests in constant time, so timing reveals neither key nor length.
            if not hmac.compare_digest(_digest(given.strip()), self._key) or scheme.lower() != "bearer":
                error = "this server needs its key: send the header Authorization: Bearer KEY"
                raise HTTPException(401, error, {"www-authenticate": "Bearer"})

    async def _body_read(self, receive: Receive, headers: Headers) -> Receive:
        """Read the whole body, within limits of its length and time; returns what hands it to the app."""
        limit, body, more = self.config.body_bytes, bytearray(), True
        announced = int(headers.get("content-length", "0"))  # h11 lets nothing but digits through
        try:
            async with asyncio.timeout(self.config.timeout):
                while more:
                    if max(announced, len(body)) > limit:
                        long = f"the body is longer than {self.config.max_body}: send less at once"
                        raise HTTPException(413, long)
                    message = await receive()
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
        except TimeoutError:
            late = f"the request did not arrive within {self.config.timeout:g} s: send it faster"
            raise HTTPException(408, late) from None
        waiting: list[Message] = [{"type": "http.request", "body": bytes(body)}]

        async def hand_out() -> Message:
            return waiting.pop() if waiting else await receive()

        return hand_out


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("latin-1")).digest()
