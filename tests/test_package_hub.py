"""Packages on the Hub: the real client against a stand-in on loopback, and what is refused."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
from cli_runner import bertvision
from serve_cases import MOOD, SAME, save_span, save_system

import bertvision as bv
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.model.export import push_to_hub


class Hub:
    """What was pushed: just enough of the Hub's HTTP interface to push a repository and fetch it again. Nothing is
    faked on the client's side: what goes through it goes through the real client, its cache and its checks."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.private: list[bool] = []
        """Of each request to make a repository."""
        self.validated: list[str] = []
        """Cards that were sent to be checked."""
        self.address = ""

    @property
    def sha(self) -> str:
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()

    def post(self, path: str, body: bytes) -> Any:
        if path == "/api/repos/create":
            asked = json.loads(body)
            self.private.append(asked.get("private") is True or asked.get("visibility") == "private")
            return {"url": f"{self.address}/{asked['organization']}/{asked['name']}"}
        if path == "/api/validate-yaml":
            self.validated.append(json.loads(body)["content"])
            return {"warnings": [], "errors": []}
        if "/preupload/" in path:
            about = {"uploadMode": "regular", "shouldIgnore": False}
            return {"files": [about | {"path": file["path"]} for file in json.loads(body)["files"]]}
        assert "/commit/" in path
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del self.files[value["path"]]
        url = f"{self.address}/org/name/commit/{self.sha}"
        return {"success": True, "commitOid": self.sha, "commitUrl": url}

    def get(self, path: str) -> Any:
        """JSON, the bytes of a file, or None."""
        if found := re.fullmatch(r"/org/name/resolve/[^/]+/(.+)", path):
            return self.files.get(found[1])
        if path.startswith("/api/models/org/name/tree/"):
            return [
                {"type": "file", "path": key, "size": len(value), "oid": hashlib.sha1(value).hexdigest()}
                for key, value in self.files.items()
            ]
        if path.startswith("/api/models/org/name"):
            siblings = [{"rfilename": key} for key in self.files]
            return {"id": "org/name", "sha": self.sha, "siblings": siblings, "private": True}
        return None


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub on a free port of loopback."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _send(self, value: Any) -> None:
            headers, status, body = {}, 200, b""
            if value is None:
                code = "EntryNotFound" if "/org/name/" in self.path else "RepoNotFound"
                status, headers = 404, {"X-Error-Code": code}
            elif isinstance(value, bytes):
                body, tag = value, f'"{hashlib.sha1(value).hexdigest()}"'
                headers = {"ETag": tag, "X-Repo-Commit": hub.sha}
            else:
                body, headers = json.dumps(value).encode(), {"Content-Type": "application/json"}
            self.send_response(status)
            for name, text in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, text)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._send(hub.post(urlparse(self.path).path, body))

        def do_GET(self) -> None:
            self._send(hub.get(unquote(urlparse(self.path).path)))

        do_HEAD = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield hub
        server.shutdown()


SCRIPT = """
import sys, json
import bertvision as bv
from bertvision.cli import main
main(["export", *sys.argv[2:4], "--out", sys.argv[4], "--push", "org/name", "--private", "--bundle-encoder"])
bv.load({"only": sys.argv[2]}).push_to_hub("org/name", keep="bundle")
found = bv.load("hub:org/name").predict("A fine mill.")
try:
    bv.load("hub:org/other")
except bv.BertvisionError as error:
    print(error, file=sys.stderr)
json.dump([found.label, found.probability], open(sys.argv[1], "w"))
"""


def test_a_package_is_pushed_and_loaded_again(hub: Hub, encoder: Encoder, tmp_path: Path) -> None:
    """In a process of its own, because the client reads its settings once. The second push replaces the first: what it
    does not hold is gone."""
    mood = save_system(tmp_path / "fit" / "mood", encoder, "mean_pooler", MOOD)
    same = save_system(tmp_path / "fit" / "same", encoder, "cls_linear", SAME, seed=1)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    home = str(tmp_path / "hf")
    environment |= {"HF_ENDPOINT": hub.address, "HF_HOME": home, "HF_TOKEN": "hf_stand_in"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}
    words = [tmp_path / "told.json", mood, same, tmp_path / "first"]
    command = [sys.executable, "-c", SCRIPT, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    expected = bv.load(mood).predict("A fine mill.")
    assert json.loads(words[0].read_text()) == [expected.label, expected.probability]
    assert hub.private == [True, False]
    second = tmp_path / "second"
    bv.load({"only": mood}).save(second, keep="bundle", title="name")
    assert hub.files == {
        path.relative_to(second).as_posix(): path.read_bytes() for path in second.rglob("*") if path.is_file()
    }
    assert hub.validated, "the card went through the client's check"
    assert f"{hub.address}/org/name" in done.stdout
    assert not (tmp_path / "name").exists(), "what is pushed from Python leaves nothing here"
    assert "cannot load hub:org/other" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_cannot_be_pushed_or_fetched_is_refused(encoder: Encoder, tmp_path: Path) -> None:
    """In these tests there is no network."""
    head, pkg = save_span(tmp_path / "fit" / "qa", encoder), tmp_path / "pkg"
    for name in ("noorg", "a/b/c", "org/na me"):
        outcome = bertvision("export", head, "--out", pkg, "--push", name)
        assert outcome.code == 2
        assert f"--push {name!r} is no name on the Hub" in outcome.err
    assert not pkg.exists(), "refused before anything was written"
    with pytest.raises(ConfigError, match="hub: 'noorg' is no name"):
        bv.load("hub:noorg")
    with pytest.raises(ArtifactError, match=r"is not a package, it has no package\.json"):
        push_to_hub(head, "org/name", private=False)
    bv.load(head).save(pkg, keep="reference")
    with pytest.raises(ConfigError, match=r"folder on this machine.*--bundle-encoder"):
        push_to_hub(pkg, "org/name", private=False)
    with pytest.raises(OutputError, match="cannot push to org/name: the Hub cannot be reached"):
        bv.load(head).push_to_hub("org/name")
    with pytest.raises(ArtifactError, match=r"cannot load hub:org/name .*no network"):
        bv.load("hub:org/name")
