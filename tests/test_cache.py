"""`bertvision cache`: stores are extracted, listed, shown, checked, removed, and read by a fit."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import cli_runner
import pytest
from cli_runner import bertvision, tree
from filelock import FileLock
from store_cases import flip, nobody
from text_tables import write_labels

from bertvision.encoder.encoder import Encoder
from bertvision.states.store import Store, open_store, shard_name

WINDOWS = ("--max-seq-length", "64", "--max-query-length", "16", "--doc-stride", "24")
SMALL = ("--dtype", "int8", "--layers", "0,-1")
Source = tuple[str | Path, ...]
answered, as_json = partial(cli_runner.answered, "cache"), partial(cli_runner.as_json, "cache")
refused = partial(cli_runner.refused, "cache")


def files(folder: Path) -> dict[str, bytes | None]:
    return {name: content for name, content in tree(folder).items() if not name.endswith(".lock")}


@pytest.fixture(scope="module")
def source(tiny_bert: Path, toy_squad: Path) -> Source:
    return (tiny_bert, "--data", toy_squad, *WINDOWS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, source: Source) -> Path:
    """Two stores: one of six shards that was last used years ago, and one of a single shard."""
    root = tmp_path_factory.mktemp("made") / "stores"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTVISION_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        for tokens, flags in ((300, ()), (32_768, SMALL)):
            patch.setattr(Store, "shard_tokens", tokens)
            answered("extract", *source, "--store", root, *flags)
    first, second = as_json("ls", "--store", root)["stores"]
    assert (second["planned"], first["planned"]) == (6, 1)
    plan = root / second["key"] / "plan.json"
    then = plan.stat().st_mtime - 4000 * 86_400
    os.utime(plan, (then, then))
    return root


@pytest.fixture
def root(made: Path) -> Iterator[Path]:
    """A copy of them that may be changed, in a folder that everybody may read."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(shutil.copytree(made, Path(name) / "stores"))
        for path in (Path(name) / "stores").rglob("*"):
            path.chmod(0o755)  # or it could not be removed


@pytest.fixture
def store(root: Path) -> Path:
    """The folder of the store of six shards."""
    return next(path for path in root.iterdir() if (path / shard_name(5)).exists())


@pytest.fixture
def other(root: Path, store: Path) -> Path:
    """The folder of the store of one shard."""
    return next(path for path in root.iterdir() if path != store)


# ---- help and mistakes


def test_looking_at_stores_needs_no_torch(root: Path, store: Path) -> None:
    code = (
        "import sys\nfrom bertvision.cli import main\nroot, key = sys.argv[1:]\nmain(['cache'])\n"
        "for words in (['ls'], ['info', key], ['rm', key]):\n"
        "    main(['cache', *words, '--store', root])\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(root), store.name], capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 stores removed" in done.stdout


MISTAKES = {
    "lst": "did you mean ls",
    "extract embedded --data demo:dev --tokens-per-call -1": "--tokens-per-call",
    "extract embedded --data demo:dev --layers 0,9": "error: --layers names 9",
    "extract embedded --data nowhere.json": "nowhere.json",
    "extract embedded --data demo:dev --store /dev/null/x": "cannot write /dev/null/x",
    "ls --store s3://x": "must be one on this machine",
    "info abc": "'abc'",
    "info ./": "'./' means no store",
    "rm": "--all",
    "rm abc --all": "or pick them with",
    "rm --older-than -1": "--older-than",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_sentence(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert MISTAKES[words] in refused(*words.split())
    assert tree(tmp_path) == {}


# ---- extract


def test_extract_announces_the_size_and_makes_only_what_is_missing(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "shard_tokens", 300)
    outcome = answered("extract", *source, "--store", tmp_path, "--json")
    result = json.loads(outcome.out)
    shards = {name: len(content or b"") for name, content in tree(tmp_path).items() if "shard-" in name}
    assert result["shards"] == len(shards) == 6
    assert 0 <= sum(shards.values()) - result["bytes"] < 400 * 6, "all but the headers"
    store = tmp_path / result["key"]
    assert (Path(result["store"]), result["tokens"]) == (store, result["encoded_tokens"])
    before, _, _ = outcome.err.partition("encode: ")
    assert re.search(r"in 6 shards, .* to write to \S+; the disk has [\d.]+ \wB free", before)
    whole, opened = files(store), open_store(store)
    for number in (1, 4):
        (store / shard_name(number)).unlink()
    monkeypatch.setattr(Store, "shard_tokens", 500)  # a store that was begun keeps its own
    again = answered("extract", *source, "--store", tmp_path, "--json")
    wanted = sum(int(opened.windows.lengths[opened.shards[number]].sum()) for number in (1, 4))
    assert json.loads(again.out)["encoded_tokens"] == wanted
    assert "encode: 4 of 6 shards are there" in again.err
    assert files(store) == whole


# ---- ls and info


def test_ls_shows_the_last_used_first(
    root: Path, store: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = as_json("ls", "--store", root)
    assert (listed["root"], listed["free"] > 0) == (str(root), True)
    assert listed["bytes"] == sum(len(content or b"") for content in tree(root).values())
    names = ("key", "dtype", "positions", "layers", "hidden", "finished")
    assert [[one[name] for name in names] for one in listed["stores"]] == [
        [other.name, "int8", "all", [0, 2], 32, True],
        [store.name, "fp16", "all", [0, 1, 2], 32, True],
    ]
    assert listed["stores"][1]["age_seconds"] > 1e8
    (store / shard_name(2)).unlink()
    monkeypatch.setenv("COLUMNS", "120")
    rows = answered("ls", "--store", root).out
    assert re.search(rf"^{store.name[:12]} .*5/6", rows, re.MULTILINE)
    assert re.search(r"finished .* 2 x 32 .* int8 .* all +\S+/bert +\S+/toy.json", rows)


def test_info_shows_everything(root: Path, store: Path, source: Source) -> None:
    shown, *others = (
        as_json("info", *words) | {"age_seconds": None}
        for words in ((store.name, "--store", root), (store.name[:6], "--store", root), (f"{store}/",))
    )
    assert others == [shown, shown]
    (store / shard_name(3)).unlink()
    text = answered("info", store).out
    for part in (str(source[0]), r"doc stride +24", "layers +0, 1, 2", rf"missing +{shard_name(3)}"):
        assert re.search(part, text), part


def test_an_ambiguous_beginning_names_both(root: Path, store: Path) -> None:
    assert as_json("rm", "--all", "--store", root / "nowhere")["removed"] == []
    twin = store.name[:8] + "0" * 24
    shutil.copytree(store, root / twin)
    for action in ("info", "verify", "rm"):
        said = refused(action, store.name[:8], "--store", root)
        assert store.name in said
        assert twin in said
    assert "means no store" in refused("rm", "", "--store", root)
    assert len(list(root.iterdir())) == 3


# ---- verify


@pytest.mark.parametrize("where", ["header", "longer"])
def test_a_damaged_shard_is_found_and_only_it_is_made_anew(
    where: str, root: Path, store: Path, source: Source
) -> None:
    before, path = files(root), store / shard_name(2)
    flip(path, 20) if where == "header" else path.write_bytes(path.read_bytes() + b"x")
    found = bertvision("cache", "verify", store.name[:5], "--store", root)
    assert (found.code, path.exists()) == (1, True), "without --drop nothing is removed"
    assert f"  {path} is damaged (" in found.out
    dropped = bertvision("cache", "verify", "--drop", "--json", "--store", root)
    assert dropped.code == 1
    shown = {one["key"]: one for one in json.loads(dropped.out)["stores"]}
    assert (list(shown[store.name]["damaged"]), shown[store.name]["dropped"]) == ([path.name], True)
    own = str(path.relative_to(root))
    assert files(root) == {name: content for name, content in before.items() if name != own}
    assert "1 not made yet" in answered("verify", store.name, "--store", root).out
    answered("extract", *source, "--store", root)
    assert files(root) == before
    found = as_json("verify", "--store", root)
    assert (found["damaged"], sorted(one["checked"] for one in found["stores"])) == (0, [1, 6])


@pytest.mark.parametrize("name", ["plan.json", "windows.safetensors"])
@pytest.mark.parametrize("damage", ["flipped", "missing", "closed"])
def test_a_damaged_store_is_shown(name: str, damage: str, root: Path, store: Path, source: Source) -> None:
    whole, path = files(store), store / name
    {"flipped": lambda: flip(path, 300), "missing": path.unlink, "closed": lambda: path.chmod(0)}[damage]()
    answered("ls", "--store", root)  # imports everything while we may
    with nobody():
        listed = answered("ls", "--store", root).out
        found = bertvision("cache", "verify", "--store", root)
        shown = answered("info", store.name[:5], "--store", root).out
    assert found.code == 1
    assert re.search(rf"^  {store}\b.*\b{name} ", found.out, re.MULTILINE)
    assert found.out.count("every byte as written") == 1, "the other store is whole"
    assert "2 stores" in listed
    if name == "plan.json":
        assert re.search(rf"^{store.name[:12]}: .*plan.json is", listed, re.MULTILINE)
        assert "plan.json is" in shown
    if damage == "closed":
        path.chmod(0o644)
    elif name == "windows.safetensors":
        answered("extract", *source, "--store", root)  # writes them again
    else:
        assert as_json("rm", "--unfinished", "--store", root)["removed"][0]["key"] == store.name
        return
    assert files(store) == whole


# ---- rm


def test_rm_picks_by_use_and_state(root: Path, store: Path, other: Path) -> None:
    def picked(*flags: str) -> list[str]:
        return [one["key"] for one in as_json("rm", *flags, "--store", root)["removed"]]

    assert picked("--older-than", "1e6") == picked("--unfinished") == []
    (other / shard_name(0)).unlink()
    assert picked("--unfinished", "--older-than", "1") == []
    assert picked("--older-than", "1") == [store.name]
    assert picked("--unfinished") == [other.name]


def test_rm_leaves_what_is_not_ours(root: Path, store: Path, other: Path) -> None:
    names = {"thesis.tex", ".env", ".lock.bak", ".tmp-1"}
    for name in names:
        (store / name).write_text("years of work")
    (store / ".git").mkdir()
    for ours in (".lock", ".shard-00007.safetensors.tmp-12"):
        (store / ours).touch()
    assert "2 stores removed" in answered("rm", "--all", "--store", root).out
    assert list(root.iterdir()) == [store]
    assert {path.name for path in store.iterdir()} == names | {".git"}


@pytest.mark.parametrize("name", ["plan.json", "shard-00000.safetensors"])
def test_a_folder_of_somebody_else_is_no_store(name: str, tmp_path: Path) -> None:
    (tmp_path / "proj").mkdir()
    for content in ("{}", "not json", '{"schema": 2, "key": "mine"}'):
        (tmp_path / "proj" / name).write_text(content)
        before = tree(tmp_path)
        assert as_json("ls", "--store", tmp_path)["stores"] == []
        assert as_json("rm", "--all", "--store", tmp_path)["removed"] == []
        assert "means no store" in refused("rm", tmp_path / "proj")
        assert tree(tmp_path) == before


def test_rm_leaves_a_store_that_is_being_written(root: Path, store: Path, other: Path) -> None:
    with FileLock(store / ".lock"):
        outcome = answered("rm", store.name, "--store", root)
    assert "is being written by another process and stays" in outcome.err
    assert (store / shard_name(0)).exists()
    size = sum(len(content or b"") for content in tree(store).values())
    removed = as_json("rm", store.name[:4], store.name, store, "--store", root)
    assert (removed["freed"], [one["key"] for one in removed["removed"]]) == (size, [store.name])
    assert list(root.iterdir()) == [other]


# ---- a fit reads what was extracted: by the same settings, or by the store's key alone


def forbid_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def layer_states(*_: object) -> None:
        raise AssertionError("the encoder was asked")

    monkeypatch.setattr(Encoder, "layer_states", layer_states)


def fitted(out: Path, *words: str | Path) -> str:
    """Where a fit found its states."""
    done = bertvision("fit", *words, "--epochs", "2", "--out", out, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)["states"]


@pytest.mark.parametrize(("how", "flags"), [("auto", ()), ("stored", ("layers", "0,2", "dtype", "int8"))])
def test_a_fit_after_an_extraction_does_not_encode(
    how: str, flags: tuple[str, ...], source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, _, data, *windows = source
    own = [f"--{word}" if i % 2 == 0 else word for i, word in enumerate(flags)]
    theirs = [word.replace("--", "--states.") for word in own]
    answered("extract", *source, "--store", tmp_path / "stores", "--max-examples", "20", *own)
    forbid_encoding(monkeypatch)
    fit = (encoder, "--train", data, *windows, "--heads", "learned_pooling", *theirs,
           "--states.store", tmp_path / "stores", "--states.source", how)  # fmt: skip
    assert fitted(tmp_path / "fit", *fit, "--max-train-examples", "20") == "stored"
    assert len(list((tmp_path / "stores").iterdir())) == 1
    with pytest.raises(AssertionError, match="the encoder was asked"):  # other data, another store
        fitted(tmp_path / "other", *fit, "--max-train-examples", "21")


def test_stores_of_texts(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[CLS] alone is enough for heads that read no more."""
    table = write_labels(tmp_path / "train.csv", 0)
    extract = ("extract", tiny_bert, "--data", table, *WINDOWS, "--store", tmp_path / "stores")
    small, whole = as_json(*extract, "--positions", "cls"), as_json(*extract)
    assert small["bytes"] < whole["bytes"] / 4
    forbid_encoding(monkeypatch)
    fit = (tiny_bert, "--train", table, *WINDOWS, "--states.source", "stored", "--states.store")
    for head in ("adapter_pooler:size=4", "mean_pooler"):
        fitted(tmp_path / head.partition(":")[0], *fit, tmp_path / "stores", "--heads", head)
