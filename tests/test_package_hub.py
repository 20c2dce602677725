"""Packages on the Hub: the real client against a stand-in on loopback, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import bertvision
from hub_stand_in import hub_stand_in
from serve_cases import MOOD, SAME, save_span, save_system

import bertvision as bv
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.model.export import push_to_hub

SCRIPT = """
import sys, json
import bertvision as bv
from bertvision.cli import main
main(["export", *sys.argv[2:4], "--out", sys.argv[4], "--push", "org/name", "--private", "--bundle-encoder"])
bv.load({"only": sys.argv[2]}).push_to_hub("org/name", keep="bundle")
model = bv.load("hub:org/name")
found = model.predict("A fine mill.")
try:
    bv.load("hub:org/other")
except bv.BertvisionError as error:
    print(error, file=sys.stderr)
json.dump([type(model).__name__, found.label, found.probability], open(sys.argv[1], "w"))
"""


def test_a_package_is_pushed_and_loaded_again(tiny_bert: Path, tmp_path: Path) -> None:
    """In a process of its own, because the client reads its settings once. The second push replaces the first: what it
    does not hold is gone."""
    encoder = Encoder.load(str(tiny_bert))
    mood = save_system(tmp_path / "fit" / "mood", encoder, "mean_pooler", MOOD)
    same = save_system(tmp_path / "fit" / "same", encoder, "cls_linear", SAME, seed=1)
    with hub_stand_in() as hub:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        home = str(tmp_path / "hf")
        environment |= {"HF_ENDPOINT": hub.address, "HF_HOME": home, "HF_TOKEN": "hf_stand_in"}
        environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}
        told = tmp_path / "told.json"
        words = [told, mood, same, tmp_path / "first"]
        command = [sys.executable, "-c", SCRIPT, *map(str, words)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=120
        )
    assert done.returncode == 0, done.stderr
    expected = bv.load(mood).predict("A fine mill.")
    assert json.loads(told.read_text()) == ["Model", expected.label, expected.probability]
    assert hub.repos[0]["name"] == "name"
    assert hub.repos[0]["organization"] == "org"
    assert hub.repos[0].get("private") is True or hub.repos[0].get("visibility") == "private"
    bv.load({"only": mood}).save(tmp_path / "second", keep="bundle", title="name")
    on_disk = {
        path.relative_to(tmp_path / "second").as_posix(): path.read_bytes()
        for path in (tmp_path / "second").rglob("*")
        if path.is_file()
    }
    assert hub.files == on_disk
    assert "heads/only/config.json" in hub.files
    assert hub.validated, "the card went through the client's check"
    assert f"{hub.address}/org/name" in done.stdout
    assert not (tmp_path / "name").exists(), "what is pushed from Python leaves nothing here"
    assert "cannot load hub:org/other" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_network_it_is_told_so(tiny_bert: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(str(tiny_bert))
    head = save_span(tmp_path / "fit" / "qa", encoder)
    bv.load(head).save(tmp_path / "pkg")
    with pytest.raises(OutputError, match="cannot push to org/name: the Hub cannot be reached"):
        push_to_hub(tmp_path / "pkg", "org/name")
    with pytest.raises(ArtifactError, match=r"cannot load hub:org/name .*no network"):
        bv.load("hub:org/name")


def test_what_cannot_be_pushed_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(str(tiny_bert))
    head = save_span(tmp_path / "fit" / "qa", encoder)
    for name in ("noorg", "a/b/c", "org/na me"):
        outcome = bertvision("export", head, "--out", tmp_path / "pkg", "--push", name)
        assert outcome.code == 2
        assert f"--push {name!r} is no name on the Hub" in outcome.err
    assert not (tmp_path / "pkg").exists(), "refused before anything was written"
    with pytest.raises(ConfigError, match="hub: 'noorg' is no name"):
        bv.load("hub:noorg")
    bv.load(head).save(tmp_path / "pkg", keep="reference")
    with pytest.raises(ConfigError, match=r"folder on this machine.*--bundle-encoder"):
        push_to_hub(tmp_path / "pkg", "org/name")
    with pytest.raises(ArtifactError, match=r"is not a package, it has no package\.json"):
        push_to_hub(head, "org/name")
