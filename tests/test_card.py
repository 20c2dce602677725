"""Model cards as the Hub's client reads them, without gaps or places; pushes to a stand-in of the Hub on loopback."""

import base64
import hashlib
import json
import math
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
from cli_runner import bertvision, tree
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import EvalResult
from serve_cases import ALIKE, ANSWERABLE, MOOD, SAME, save_span, save_system

import bertvision as bv
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.model.export import push_to_hub
from bertvision.model.record import file_name, head_card, plain_command
from bertvision.tasks.base import Task
from bertvision.tasks.span import SPAN


def card_of(pkg: Path) -> ModelCard:
    return ModelCard.load(pkg / "README.md")


def results_of(card: ModelCard) -> list[EvalResult]:
    return card.data.eval_results or []  # type: ignore[attr-defined]


# ---- a head by itself


def config(task: Task, **more: Any) -> dict[str, Any]:
    return {
        "label": "tenney small",
        "head": {"name": "tenney_small.v1", "config": {"order": "first"}},
        "encoder": {"name": "org/encoder", "fingerprint": "abc123"},
        "parameters": 1234,
        "fit": {"lr": 1e-3, "epochs": 8},
        "task": task.config(),
    } | more


@pytest.mark.parametrize(
    ("task", "tag", "call"),
    [
        (SPAN, "question-answering", '"question", "context"'),
        (MOOD, "text-classification", '"text"'),
        (SAME, "text-classification", '"first", "second"'),
        (ANSWERABLE, "text-classification", '"question", "context"'),
        (ALIKE, "text-classification", '"text"'),
        (type(ALIKE)(pairs=True), "sentence-similarity", '"first", "second"'),
    ],
)
def test_the_card_of_a_head(task: Task, tag: str, call: str) -> None:
    """All metrics of the task in the table, those that the Hub knows in its block, test first."""
    scores = {
        split: {name: 0.8123456 + i for name in task.metrics} for i, split in enumerate(("dev", "test"))
    }
    tuning = {"on": "/home/me/dev.json", "threshold": -0.25}
    metrics = {
        "scores": scores,
        "tuning": tuning,
        "made": {"data": {"dev": "dev.json"}, "commands": ["bertvision x"]},
    }
    card = ModelCard(head_card(config(task, states={"layers": [0, 1], "positions": "cls"}), metrics))
    data: Any = card.data
    assert (data.library_name, data.pipeline_tag, data.base_model) == ("bertvision", tag, "org/encoder")
    known = [metric.hub for metric in task.metrics.values() if metric.hub]
    found = [(r.dataset_split, r.dataset_name, r.metric_type, r.metric_value) for r in results_of(card)]
    assert found == [("test", "test", name, 1.8123) for name in known] + [
        ("dev", "dev.json", name, 0.8123) for name in known
    ]
    rows = [line for line in card.text.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(task.metrics)
    shown = "1.8 | 0.8" if next(iter(task.metrics.values())).percent else "1.812 | 0.812"
    assert all(shown in row for row in rows[1:])
    assert f"model.predict({call})" in card.text
    assert all(name in card.text for name in task.classes)
    assert "/home/me" not in str(card)


@pytest.mark.parametrize(
    ("more", "metrics"),
    [
        ({"label": None, "encoder": None, "fit": None}, {}),
        ({"label": "a | b\n---\n<script>", "encoder": {"name": "/home/me/enc"}}, {"scores": {"dev": {}}}),
        (
            {"encoder": {"name": "org/encoder", "path": "../../tuned"}},
            {"scores": {"dev": {"accuracy": math.nan}}},
        ),
    ],
)
def test_gaps_are_survived_and_no_path_is_named(more: dict[str, Any], metrics: dict[str, Any]) -> None:
    text = head_card(config(MOOD, **more), metrics)
    card = ModelCard(text)
    assert not results_of(card)
    assert "/home/me" not in text
    assert "<script>" not in card.text
    assert "on the Hub." not in card.text, "no encoder of these is found by its name"


# ---- packages


def test_the_hubs_client_reads_what_metrics_say(finished_run: Path, toy_squad: Path, tmp_path: Path) -> None:
    out = tmp_path / "pkg"
    outcome = bertvision(
        "export", finished_run, "--out", out, "--license", "cc-by-sa-4.0", "--datasets", "org/data"
    )
    assert outcome.code == 0, outcome.err
    card = card_of(out)
    data: Any = card.data
    assert (data.license, data.library_name) == ("cc-by-sa-4.0", "bertvision")
    assert (data.datasets, data.pipeline_tag) == (["org/data"], "question-answering")
    systems = json.loads((finished_run / "results.json").read_text())["systems"]
    (folder,) = [finished_run / system["folder"] for system in systems if system["best"]]
    scores = json.loads((folder / "metrics.json").read_text())["scores"]["dev"]
    found = {str(result.metric_name).partition(" of ")[0]: result for result in results_of(card)}
    for name in ("exact", "f1", "tuned_exact", "tuned_f1"):
        result = found[SPAN.title(name)]
        assert result.metric_value == pytest.approx(scores[name], abs=1e-4)
        assert (result.dataset_name, result.dataset_split) == (toy_squad.name, "dev")
    text = card.text
    assert "bertvision run --encoder bert --train toy.json" in text, "the command, without folders"
    assert str(tmp_path) not in text


def test_several_heads_are_kept_apart(encoder: Encoder, tmp_path: Path) -> None:
    """Their results do not run into each other, and hostile names stay out of the markup."""
    qa = save_span(tmp_path / "qa", encoder, "adapter:size=4")
    own = json.loads((qa / "config.json").read_text())
    own["label"] = "evil | <script>\n# head"
    (qa / "config.json").write_text(json.dumps(own))
    scores = {"exact": 1.0, "f1": 2.0, "tuned_exact": 30.0, "tuned_f1": 40.0}
    metrics = {"scores": {"dev": scores, "test": scores | {"tuned_f1": 39.0}}}
    (qa / "metrics.json").write_text(json.dumps(metrics))
    heads = {"qa": qa}
    for name in ("mood", "mood2"):
        heads[name] = save_system(tmp_path / name, encoder, "mean_pooler", MOOD)
        labels = {"scores": {"dev": {"accuracy": 0.75, "f1": 0.5, "log_loss": 0.6}}}
        (heads[name] / "metrics.json").write_text(json.dumps(labels))
    bv.load(heads).save(tmp_path / "pkg")
    card = card_of(tmp_path / "pkg")
    found = {(r.metric_name, r.dataset_split): r.metric_value for r in results_of(card)}
    assert found["tuned F1 of qa", "test"] == 39.0
    assert found["tuned F1 of qa", "dev"] == 40.0
    assert found["accuracy of mood", "dev"] == found["accuracy of mood2", "dev"]
    assert len(found) == 2 * len(scores) + 2 * 2
    data: Any = card.data
    assert data.license is None
    assert data.base_model is None, "a folder on somebody's disk is nobody's base model"
    assert "<script>" not in card.text
    assert "\n# head" not in card.text


# ---- commands and data without places


def test_names_lose_their_folders() -> None:
    for name, plain in {
        "/home/me/dev.json": "dev.json",
        "hub:org/name:test": "hub:org/name:test",
        "glue:RTE:/data/RTE/dev.tsv": "glue:RTE:dev.tsv",
        "answerable:/data/dev.json": "answerable:dev.json",
    }.items():
        assert file_name(name) == plain
    hub = "bertvision export pkg --datasets org/data --push org/name"
    for command, plain in {
        "bertvision fit /home/me/enc --train '/my data/a.csv' --out=/tmp/x --heads adapter:size=4":
            "bertvision fit enc --train a.csv --out=x --heads adapter:size=4",
        "bertvision fit clients/acme/enc --train sst=glue:RTE:data/dev.tsv hub:org/name:test --out=runs/x/":
            "bertvision fit enc --train sst=glue:RTE:dev.tsv hub:org/name:test --out=x",
        f"{hub} --out clients/acme/pkg": f"{hub} --out pkg",
        "bertvision fit ../me/enc --train ~/a.csv answerable:/b/c.json":
            "bertvision fit enc --train a.csv answerable:c.json",
        "bertvision 'unclosed": "",
    }.items():  # fmt: skip
        assert plain_command(command) == plain
        assert plain_command(plain) == plain


def test_the_card_names_every_command_that_made_a_head(
    tiny_bert: Path, toy_squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuned, fitted and joined, each by its own command, in this order; no folder is named anywhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "questions").mkdir()
    data = tmp_path / "questions" / "toy.json"
    data.write_bytes(toy_squad.read_bytes())
    given = ("--train", "questions/toy.json", "--dev", data, "--max-seq-length", "96")
    small = ("--max-train-examples", "8", "--epochs", "0.5")
    for command in (
        ("finetune", "--encoder", tiny_bert, *given, "--out", "work/tuned", *small),
        ("fit", "work/tuned/snapshot-0.5", *given, "--out", "work/heads", "--heads", "last_state", "adapter:size=2"),
        ("ensemble", "work/heads", "--data", data, "--out", "work/both"),
        ("export", "work/both", "--out", "pkg"),
    ):  # fmt: skip
        outcome = bertvision(*command)
        assert outcome.code == 0, outcome.err
    card = card_of(tmp_path / "pkg")
    made = card.text.partition("## How it was made")[2]
    verbs = re.findall(r"^bertvision (\w+)", made, re.MULTILINE)
    assert verbs == ["finetune", "fit", "ensemble", "export"]
    assert "bertvision fit snapshot-0.5 --train toy.json --dev toy.json" in made
    for name, content in tree(tmp_path / "pkg").items():
        for place in (b"questions/", b"work/", bytes(tmp_path)):
            assert content is None or place not in content, name
    # A head of the fit alone names what made it and not the ensemble.
    bv.load(tmp_path / "work" / "heads" / "last-state.seed0").save(tmp_path / "one")
    verbs = re.findall(r"^bertvision (\w+)", (tmp_path / "one" / "README.md").read_text(), re.MULTILINE)
    assert verbs[:2] == ["finetune", "fit"]
    assert "ensemble" not in verbs


# ---- packages on the Hub: the real client against a stand-in, and what is refused


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
