"""`bertvision cache` among other people's files: what is no store stays, and what cannot be read is told."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cache_runner import WINDOWS, answered, as_json, forbid_encoding
from cli_runner import bertvision, tree
from fsspec.implementations.memory import MemoryFileSystem

from bertvision.errors import ArtifactError
from bertvision.states.folder import RemoteFolder
from bertvision.states.shard import shard_name
from bertvision.states.store import open_store


@contextmanager
def nobody() -> Iterator[None]:
    """Without the rights of root, if we have them."""
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture(scope="module")
def made(tiny_bert: Path, toy_squad: Path) -> Iterator[Path]:
    """A place that everybody may read: encoder, data, and stores/KEY of several shards."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        shutil.copytree(tiny_bert, place / "bert")
        shutil.copy(toy_squad, place / "toy.json")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BERTVISION_CACHE", str(place / "cache"))
            answered("extract", *source(place), "--store", place / "stores", "--shard-tokens", "300")
        for path in (place, *place.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield place


def source(place: Path) -> tuple[str | Path, ...]:
    return (place / "bert", "--data", place / "toy.json", *WINDOWS)


@pytest.fixture
def place(made: Path) -> Iterator[Path]:
    """A copy of it that may be changed."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        shutil.copytree(made, copy, dirs_exist_ok=True)
        copy.chmod(0o755)
        yield copy
        for path in (copy / "stores", *(copy / "stores").iterdir()):
            path.chmod(0o755)  # or it could not be removed


@pytest.fixture
def store(place: Path) -> Path:
    (folder,) = (place / "stores").iterdir()
    return folder


# ---- what is no store


@pytest.mark.parametrize("name", ["plan.json", "info.json", "windows.safetensors", "shard-00000.safetensors"])
@pytest.mark.parametrize("content", ["{}", "[1]", "not json", '{"schema": 1, "key": "mine"}'])
def test_a_folder_of_somebody_else_is_no_store(name: str, content: str, tmp_path: Path) -> None:
    project = tmp_path / "other" / "proj"
    (project / ".git").mkdir(parents=True)
    (project / ".git" / "HEAD").write_text("main")
    (project / name).write_text(content)
    before = tree(tmp_path)
    assert as_json("ls", "--store", tmp_path / "other")["stores"] == []
    for flags in (("--unfinished",), ("--all",)):
        assert as_json("rm", *flags, "--store", tmp_path / "other")["removed"] == []
    named = bertvision("cache", "rm", project)
    assert named.code == 2
    assert "holds no stored states" in named.err
    assert tree(tmp_path) == before


@pytest.mark.parametrize("hidden", [".git", ".env", ".lock.bak", ".tmp-1", ".thesis"])
def test_hidden_files_of_somebody_else_stop_rm(hidden: str, store: Path) -> None:
    (store / hidden).write_text("years of work")
    for words in ((store.name, "--store", store.parent), ("--all", "--store", store.parent)):
        outcome = bertvision("cache", "rm", *words)
        assert outcome.code == 2
        assert f"holds {hidden}, which no store has" in outcome.err
    assert (store / hidden).exists()


def test_hidden_files_of_a_store_do_not_stop_rm(store: Path) -> None:
    (store / ".lock").touch()
    (store / ".shard-00007.safetensors.tmp-host.1.2").touch()
    answered("rm", "--all", "--store", store.parent)
    assert not store.exists()


@pytest.mark.parametrize("left", ["plan.json", "info.json", shard_name(1)])
def test_a_store_of_any_name_is_known_by_what_its_files_say(left: str, store: Path) -> None:
    copy = Path(shutil.copytree(store, store.parent / "my copy"))
    assert sorted(one["finished"] for one in as_json("ls", "--store", store.parent)["stores"]) == [True, True]
    for path in copy.iterdir():
        if path.name != left:
            path.unlink()
    assert [one["key"] for one in as_json("rm", "--unfinished", "--store", store.parent)["removed"]] == [
        "my copy"
    ]


def test_a_store_under_the_key_of_another_is_damaged(store: Path) -> None:
    twin = Path(shutil.copytree(store, store.parent / ("0" * 32)))
    told = f"plan.json belongs to the store {store.name}"
    assert f"{twin.name[:12]} is damaged ({told})" in answered("ls", "--store", store.parent).out
    assert told in answered("info", twin.name, "--store", store.parent).out
    found = bertvision("cache", "verify", twin.name, "--store", store.parent)
    assert found.code == 1
    assert told in found.out
    assert open_store(twin).key == store.name, "a folder's own name does not count"
    with pytest.raises(ArtifactError, match=told):
        open_store(twin, key=twin.name)


# ---- what may not be read or written


@pytest.mark.parametrize("closed", ["folder", "plan.json", "windows.safetensors"])
def test_a_store_that_may_not_be_read_is_shown(closed: str, store: Path) -> None:
    root = store.parent
    (store if closed == "folder" else store / closed).chmod(0)
    root.chmod(0o777)  # a rename would be allowed
    answered("ls", "--store", root)  # imports everything while we may
    with nobody():
        listed = answered("ls", "--store", root).out
        rows = as_json("ls", "--store", root)["stores"]
        info = answered("info", store.name[:5], "--store", root).out
        removed = answered("rm", "--all", "--store", root)
        verified = bertvision("cache", "verify", "--store", root)
    assert f"{store.name[:12]} is unreadable: cannot read {store}" in listed
    assert [(one["key"], one["unreadable"], one["finished"]) for one in rows] == [(store.name, True, False)]
    assert "Permission denied" in info
    assert "Permission denied" in removed.err
    assert removed.out == "nothing to remove\n"
    assert verified.code == 1
    assert "was not checked" in verified.out
    assert "cache rm" not in verified.out
    assert [path.name for path in root.iterdir()] == [store.name]


def test_extract_reads_a_complete_store_where_nothing_can_be_written(
    place: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTVISION_CACHE", str(place / "cache"))
    extract = ("extract", *source(place), "--store", store.parent)
    answered(*extract)  # imports everything while we may
    for path in (store, store.parent):
        path.chmod(0o555)
    with nobody():
        assert as_json(*extract)["encoded_tokens"] == 0
    store.chmod(0o755)
    (store / shard_name(2)).unlink()
    store.chmod(0o555)
    forbid_encoding(monkeypatch)
    with nobody():
        refused = bertvision("cache", *extract)
    assert refused.code == 2
    assert f"cannot write {store.parent}: permission is denied" in refused.err


# ---- elsewhere


def test_ls_looks_once_at_a_folder_elsewhere(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = f"/{store.parent.parent.name}/stores"
    for path in store.iterdir():
        MemoryFileSystem().pipe_file(f"{root}/{store.name}/{path.name}", path.read_bytes())
    asked, real = [], MemoryFileSystem.ls

    def ls(self: MemoryFileSystem, path: str, *args: Any, **options: Any) -> Any:
        asked.append(path)
        return real(self, path, *args, **options)

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    monkeypatch.setattr(RemoteFolder, "size", lambda self, name: asked.append(name))
    (told,) = as_json("ls", "--store", f"memory:/{root}")["stores"]
    assert asked == [root, f"{root}/{store.name}"]
    assert told["bytes"] == sum(path.stat().st_size for path in store.iterdir())
    assert (told["key"], told["finished"]) == (store.name, True)


# ---- the flags it names


@pytest.mark.parametrize(
    "flags",
    [("--max-examples", "7"), ("--precision", "bf16"), ("--max-examples", "7", "--precision", "fp32")],
)
def test_the_flags_it_names_lead_to_its_store(
    flags: tuple[str, ...], made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = as_json("extract", *source(made), *flags, "--store", tmp_path / "stores")
    forbid_encoding(monkeypatch)
    fit = ("fit", made / "bert", "--train", made / "toy.json", "--heads", "last_state", "--json")
    fitted = bertvision(*fit, "--out", tmp_path / "h", *result["flags"].split())
    assert fitted.code == 0, fitted.err
    assert json.loads(fitted.out)["states"] == "stored"
    assert [path.name for path in (tmp_path / "stores").iterdir()] == [result["key"]]
