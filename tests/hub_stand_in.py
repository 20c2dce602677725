"""A stand-in for the Hub on this machine: just enough of its HTTP interface to push a repository and fetch it again.

What huggingface_hub sends is kept as files; nothing is faked on the client's side, so a test that pushes and loads
through it goes through the real client, its cache and its checks.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse


class Hub:
    """What was pushed."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.repos: list[dict[str, Any]] = []
        """The bodies of requests to make a repository."""
        self.validated: list[str] = []
        """Cards that were sent to be checked."""
        self.address = ""

    @property
    def sha(self) -> str:
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()

    def commit(self, body: bytes) -> None:
        for line in body.splitlines():
            words = json.loads(line)
            value = words["value"]
            if words["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif words["key"] == "deletedFile":
                del self.files[value["path"]]


@contextmanager
def hub_stand_in() -> Iterator[Hub]:
    """Serve a hub on a free port of loopback."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _json(self, value: Any, status: int = 200) -> None:
            self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _missing(self, code: str) -> None:
            self._send(404, b"", {"X-Error-Code": code})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            path = urlparse(self.path).path
            if path == "/api/repos/create":
                words = json.loads(body)
                hub.repos.append(words)
                self._json({"url": f"{hub.address}/{words.get('organization')}/{words['name']}"})
            elif path == "/api/validate-yaml":
                hub.validated.append(json.loads(body)["content"])
                self._json({"warnings": [], "errors": []})
            elif "/preupload/" in path:
                asked = json.loads(body)["files"]
                about = {"uploadMode": "regular", "shouldIgnore": False}
                self._json({"files": [about | {"path": file["path"]} for file in asked]})
            elif "/commit/" in path:
                hub.commit(body)
                url = f"{hub.address}/org/name/commit/{hub.sha}"
                self._json({"success": True, "commitOid": hub.sha, "commitUrl": url})
            else:
                self._missing("EntryNotFound")

        def do_GET(self) -> None:
            path = unquote(urlparse(self.path).path)
            name = hub.repos[-1] if hub.repos else {}
            repo = f"{name.get('organization')}/{name.get('name')}"
            if found := re.fullmatch(rf"/{repo}/resolve/[^/]+/(.+)", path):
                if found[1] not in hub.files:
                    return self._missing("EntryNotFound")
                content = hub.files[found[1]]
                tag = f'"{hashlib.sha1(content).hexdigest()}"'
                return self._send(200, content, {"ETag": tag, "X-Repo-Commit": hub.sha})
            if path.startswith(f"/api/models/{repo}/tree/"):
                listed = [
                    (key, len(value), hashlib.sha1(value).hexdigest()) for key, value in hub.files.items()
                ]
                return self._json([{"type": "file", "path": a, "size": b, "oid": c} for a, b, c in listed])
            if path.startswith(f"/api/models/{repo}"):
                siblings = [{"rfilename": key} for key in hub.files]
                return self._json({"id": repo, "sha": hub.sha, "siblings": siblings, "private": True})
            return self._missing("RepoNotFound")

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
