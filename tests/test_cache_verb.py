"""`bertvision cache`: states are extracted, listed, shown, checked and removed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_runner import WINDOWS, answered, as_json, forbid_encoding
from cli_runner import bertvision, tree
from safetensors.numpy import load_file

from bertvision.cli.cache import ACTIONS
from bertvision.cli.cache.told import age, short, size
from bertvision.states.live import LiveStates
from bertvision.states.shard import shard_name

HALF = ("--shard-tokens", "300")
SMALL = ("--dtype", "int8", "--layers", "0,-1", "--positions", "context")


def sentence(*words: str | Path) -> str:
    """The one sentence of a user's mistake."""
    outcome = bertvision("cache", *words)
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert re.fullmatch(r"error: [^\n]+\n", outcome.err), outcome.err
    return outcome.err


def files(folder: Path) -> dict[str, bytes | None]:
    return {name: content for name, content in tree(folder).items() if not name.endswith(".lock")}


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def source(tiny_bert: Path, toy_squad: Path) -> tuple[str | Path, ...]:
    return (tiny_bert, "--data", toy_squad, *WINDOWS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, source: tuple[str | Path, ...]) -> Path:
    """Two stores: one of six shards, and a newer one of a single shard."""
    root = tmp_path_factory.mktemp("made") / "stores"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTVISION_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        for flags in (HALF, SMALL):
            answered("extract", *source, "--store", root, *flags)
    first, second = as_json("ls", "--store", root)["stores"]
    assert (second["planned"], first["planned"]) == (6, 1)
    os.utime(root / second["key"] / "info.json", (1e9, 1e9))  # years ago
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy of them that may be changed."""
    return Path(shutil.copytree(made, tmp_path / "stores"))


@pytest.fixture
def store(root: Path) -> Path:
    """The folder of the store of six shards."""
    return next(path for path in root.iterdir() if (path / shard_name(5)).exists())


# ---- help and words


def test_the_actions_are_listed() -> None:
    listed = bertvision("cache").out
    assert listed == bertvision("cache", "--help").out == bertvision("cache", "-h").out
    assert listed.startswith("usage: bertvision cache [-h] ACTION")
    for action, text in ACTIONS.items():
        assert re.search(rf"^  {action} +{re.escape(text)}$", listed, re.MULTILINE)


@pytest.mark.parametrize("action", ACTIONS)
def test_help_of_every_action_describes_every_flag(action: str) -> None:
    told = answered(action, "--help").out
    assert told.startswith(f"usage: bertvision cache {action} [-h]")
    flags = re.findall(r"^  (--[a-z][\w.-]*)(.*\n(?: {6,}.*\n)*)", told, re.MULTILINE)
    assert {"--store", "--json"} <= {flag for flag, _ in flags}
    assert "--states." not in told.replace("--states.source stored", "")
    for flag, text in flags:
        described = text.partition("(default:")[0].partition("(required)")[0]
        assert len(re.findall(r"[a-z]{2,}", described)) >= 2, f"{flag} of {action} is not described"


def test_looking_at_stores_needs_no_torch(root: Path, store: Path) -> None:
    code = (
        "import sys\nfrom bertvision.cli import main\nroot, key = sys.argv[1:]\nmain(['cache'])\n"
        "for words in (['ls'], ['info', key], ['verify'], ['rm', key]):\n"
        "    main(['cache', *words, '--store', root])\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(root), store.name], capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 store removed" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("lst", "there is no action 'lst': did you mean ls?"),
        ("zzz", "`bertvision cache --help` lists the actions"),
        ("--store x ls", "there is no action '--store'"),
        ("extract", "ENCODER and --data are missing"),
        ("extract embedded --data demo:dev --dtype fp8", "--dtype cannot be 'fp8'"),
        ("extract embedded --data demo:dev --positions cl", "--positions cannot be 'cl'"),
        ("extract embedded --data demo:dev --shard-tokens 0", "--shard-tokens must be at least 1, not 0"),
        ("extract embedded --data demo:dev --tokens-per-call -1", "--tokens-per-call must not be negative"),
        ("extract nowhere/bert --data demo:dev", "nowhere/bert"),
        ("extract embedded --data nowhere.json", "nowhere.json"),
        ("extract embedded --data demo:dev --store nothing://x", "nothing://x"),
        ("extract embedded --data demo:dev --store /dev/null/x", "cannot write /dev/null/x"),
        ("info", "STORE is missing"),
        ("info abc", "no store begins with 'abc'"),
        ("info ./", "./ holds no stored states"),
        ("verify abc", "no store begins with 'abc'"),
        ("rm", "name the stores to remove, or pick them with --all"),
        ("rm abc --all", "not both"),
        ("rm --older-than -1", "--older-than must not be negative"),
        ("rm --older-than week", "--older-than cannot be 'week': give a number"),
        ("ls --stor x", "did you mean --store?"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert told in sentence(*words.split())
    assert tree(tmp_path) == {}


def test_layers_the_encoder_lacks(source: tuple[str | Path, ...], tmp_path: Path) -> None:
    said = sentence("extract", *source, "--store", tmp_path, "--layers", "0,9")
    assert "error: --layers names 9, but this encoder has the states 0 to 2" in said
    assert tree(tmp_path) == {}


def test_sizes_ages_and_names() -> None:
    assert [size(n) for n in (0, 999, 830_000, 5.2e12, None)] == [
        "0 B",
        "999 B",
        "830 kB",
        "5.20 TB",
        "unknown",
    ]
    told = [age(seconds) for seconds in (3.4, 300, 10_800, 8 * 86_400, None)]
    assert told == ["3 s", "5 min", "3 h", "8 d", "unknown"]
    assert short("/runs/a/finetune/snapshot-1/encoder") == "finetune/snapshot-1"
    assert [short(name) for name in ("embedded", "org/model", "demo:train")] == [
        "embedded",
        "org/model",
        "demo:train",
    ]


# ---- extract


def test_extract_tells_the_size_before_it_starts_and_is_right(
    source: tuple[str | Path, ...], tmp_path: Path
) -> None:
    outcome = answered("extract", *source, "--store", tmp_path, *HALF, "--json")
    result = json.loads(outcome.out)
    shards = {name: len(content or b"") for name, content in tree(tmp_path).items() if "shard-" in name}
    assert result["bytes"] == sum(shards.values())
    assert result["shards"] == len(shards) == 6
    assert Path(result["store"]) == tmp_path / result["key"]
    assert (result["finished"], result["missing"]) == (True, 0)
    assert result["tokens"] == result["encoded_tokens"]
    before, _, after = outcome.err.partition("encode: ")
    assert f"{size(result['bytes'])} in 6 shards" in before
    assert re.search(r"to write to \S+; the disk has [\d.]+ \wB free", before)
    assert after
    told = answered("extract", *source, "--store", tmp_path).out
    assert str(tmp_path / result["key"]) in told
    assert "encoded  nothing" in told
    assert "finished" in told


def test_extract_refuses_what_the_disk_cannot_hold(
    source: tuple[str | Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 5000, 5000))
    outcome = bertvision("cache", "extract", *source, "--store", tmp_path / "stores")
    assert outcome.code == 2
    assert outcome.out == ""
    last = outcome.err.splitlines()[-1]
    assert re.match(r"error: the states need \d+ kB and the disk of \S+ has 5\.00 kB free: make room", last)
    assert not (tmp_path / "stores").exists()


def test_extract_makes_only_what_is_missing(
    source: tuple[str | Path, ...], root: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(store)
    lengths = np.diff(load_file(store / "windows.safetensors")["offsets"])
    expected = 0
    for number in (1, 4):
        expected += int(lengths[load_file(store / shard_name(number))["windows"]].sum())
        (store / shard_name(number)).unlink()
    (store / "info.json").unlink()
    outcome = answered("extract", *source, "--store", root, "--shard-tokens", "500", "--json")
    assert json.loads(outcome.out)["encoded_tokens"] == expected
    assert "encode: 4 of 6 shards are there" in outcome.err
    assert "begun with --shard-tokens 300" in outcome.err
    assert files(store) == before
    forbid_encoding(monkeypatch)
    assert as_json("extract", *source, "--store", root)["encoded_tokens"] == 0


def test_an_interrupted_extraction_keeps_its_shards_and_goes_on(
    source: tuple[str | Path, ...], store: Path, tmp_path: Path
) -> None:
    root = tmp_path / "again"
    real, calls = LiveStates.read, []

    def read(self: LiveStates, indices: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, indices)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LiveStates, "read", read)
            outcome = bertvision("cache", "extract", *source, "--store", root, *HALF)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert outcome.code == 130
    assert outcome.err.splitlines()[-1].startswith("error: interrupted: run the same command again to go on")
    there = files(root / store.name)
    assert sorted(there) == ["plan.json", *map(shard_name, range(3)), "windows.safetensors"]
    answered("extract", *source, "--store", root, *HALF)
    assert files(root / store.name) == files(store)


# ---- ls


def test_ls_tells_the_newest_first(root: Path, store: Path) -> None:
    listed = as_json("ls", "--store", root)
    assert listed["root"] == str(root)
    assert listed["bytes"] == sum(len(content or b"") for content in tree(root).values())
    assert listed["free"] > 0
    new, old = listed["stores"]
    assert old["key"] == store.name
    assert (old["dtype"], old["positions"], old["layers"], old["hidden"]) == ("fp16", "all", [0, 1, 2], 32)
    assert (new["dtype"], new["positions"], new["layers"]) == ("int8", "context", [0, 2])
    assert old["finished"]
    assert old["age_seconds"] > 1e8
    (store / "info.json").unlink()
    (store / shard_name(2)).unlink()
    lines = answered("ls", "--store", root).out.splitlines()
    assert "5/6" in next(line for line in lines if line.startswith(store.name[:12]))
    assert re.search(r"finished .* 2 x 32 .* int8 .* context +\S+/bert +\S+/toy.json", "\n".join(lines))
    assert lines[-1].startswith(f"2 stores in {root}: ")
    assert lines[-1].endswith("free")


def test_ls_keeps_within_a_narrow_terminal(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    *rows, last = answered("ls", "--store", root).out.splitlines()
    assert max(map(len, rows)) <= 60
    assert "left out for want of width" in "".join(rows)
    assert "2 stores" in last


def test_ls_of_nothing_says_so(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        assert answered("ls", "--store", place).out.startswith(f"no stores in {place}; the disk has ")
    assert as_json("ls", "--store", tmp_path)["stores"] == []
    assert answered("verify", "--store", tmp_path).out == f"no stores in {tmp_path}\n"
    assert answered("rm", "--all", "--store", tmp_path).out == "nothing to remove\n"


PLANS = {
    "{": "plan.json is not valid JSON",
    "\xff": "plan.json is not valid JSON",
    "[]": "plan.json is not an object",
    '{"schema": 99}': "its layout is 99",
    '{"schema": 1, "key": "x"}': "plan.json does not say everything it must",
    "": "plan.json is missing",
}


@pytest.mark.parametrize(("content", "told"), PLANS.items())
def test_a_damaged_plan_is_shown(content: str, told: str, root: Path, store: Path) -> None:
    (store / "plan.json").write_bytes(content.encode("latin-1"))
    if not content:
        (store / "plan.json").unlink()
    listed = answered("ls", "--store", root).out
    assert f"{store.name[:12]} is damaged ({told}" in listed
    assert "2 stores" in listed
    assert told in answered("info", store.name, "--store", root).out
    found = bertvision("cache", "verify", "--store", root)
    assert found.code == 1
    assert f"{store}/plan.json: {told}" in found.out
    assert f"`bertvision cache rm {store.name[:12]}`" in found.out
    assert "every byte as written" in found.out, "the other store is whole"
    answered("rm", "--unfinished", "--store", root)
    assert not store.exists()
    assert len(list(root.iterdir())) == 1


# ---- info


def test_info_tells_everything(root: Path, store: Path, source: tuple[str | Path, ...]) -> None:
    told, *others = (
        as_json("info", *words) | {"age_seconds": None, "folder": None}
        for words in ((store.name, "--store", root), (store.name[:6], "--store", root), (f"{store}/",))
    )
    assert others == [told, told]
    states = np.concatenate([load_file(store / shard_name(n))["states"] for n in range(6)]).astype(np.float64)
    np.testing.assert_allclose(told["info"]["mean"], states.mean((0, 2)), atol=1e-4)
    np.testing.assert_allclose(told["info"]["std"], states.std((0, 2)), atol=1e-3)
    assert told["plan"]["identity"]["preprocessing"]["doc_stride"] == 24
    text = answered("info", store).out
    for part in (
        store.name, str(source[0]), str(source[2]), told["plan"]["identity"]["encoder"], "doc_stride 24",
        "0, 1, 2; 32 numbers each", "6 of 6 shards", shard_name(5), f"{told['info']['std'][1]:.5f}",
    ):  # fmt: skip
        assert part in text


def test_info_of_an_unfinished_store_names_what_is_missing(root: Path, store: Path) -> None:
    (store / "info.json").unlink()
    (store / shard_name(3)).unlink()
    assert f"missing    1: {shard_name(3)}" in answered("info", store.name, "--store", root).out
    told = as_json("info", store.name, "--store", root)
    assert (told["missing"], told["info"], told["finished"]) == ([shard_name(3)], None, False)


def test_an_ambiguous_beginning_names_both(root: Path, store: Path) -> None:
    twin = store.name[:8] + "0" * 24
    shutil.copytree(store, root / twin)
    for action in ("info", "verify", "rm"):
        said = sentence(action, store.name[:8], "--store", root)
        assert "2 stores begin with" in said
        assert store.name in said
        assert twin in said
    assert "cannot be empty" in sentence("rm", "", "--store", root)
    assert len(list(root.iterdir())) == 3


# ---- verify


def test_verify_finds_nothing_in_whole_stores(root: Path) -> None:
    before = files(root)
    assert answered("verify", "--store", root).out.count("every byte as written") == 2
    found = as_json("verify", "--store", root)
    assert found["damaged"] == 0
    assert sorted(one["checked"] for one in found["stores"]) == [1, 6]
    assert files(root) == before


@pytest.mark.parametrize("where", ["header", "first state", "middle", "last byte", "cut", "longer"])
def test_a_flipped_byte_is_found_and_only_its_shard_made_anew(
    where: str, root: Path, store: Path, source: tuple[str | Path, ...]
) -> None:
    before, path = files(store), store / shard_name(2)
    length = path.stat().st_size
    states_at = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    if where == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif where == "longer":
        path.write_bytes(path.read_bytes() + b"x")
    else:
        at = {"header": 20, "first state": states_at, "middle": length // 2, "last byte": length - 1}
        flip(path, at[where])
    found = bertvision("cache", "verify", store.name[:5], "--store", root)
    assert found.code == 1
    assert "Traceback" not in found.err
    assert "6 shards checked, 1 damaged" in found.out
    assert f"  {path}: " in found.out
    assert path.exists(), "without --drop nothing is removed"
    dropped = bertvision("cache", "verify", "--drop", "--json", "--store", root)
    assert dropped.code == 1
    told = {one["key"]: one for one in json.loads(dropped.out)["stores"]}
    assert told[store.name]["dropped"] == [path.name]
    others = {name: content for name, content in before.items() if name not in (path.name, "info.json")}
    assert files(store) == others
    assert "1 not made yet" in answered("verify", store.name, "--store", root).out
    made = as_json("extract", *source, "--store", root)
    lengths = np.diff(load_file(store / "windows.safetensors")["offsets"])
    assert made["encoded_tokens"] == int(lengths[load_file(path)["windows"]].sum())
    assert files(store) == before
    answered("verify", "--store", root)


def test_damage_beside_the_shards_is_found(root: Path, store: Path, source: tuple[str | Path, ...]) -> None:
    whole = files(store)
    (store / shard_name(4)).unlink()  # of a store that was finished
    found = bertvision("cache", "verify", store, "--json")
    assert found.code == 1
    assert json.loads(found.out)["stores"][0]["damaged"] == {shard_name(4): "the file is missing"}
    assert not json.loads(bertvision("cache", "ls", "--store", root, "--json").out)["stores"][1]["finished"]
    answered("extract", *source, "--store", root)
    for content in ("{", "[]", '{"shards": []}'):
        (store / "info.json").write_text(content)
        found = bertvision("cache", "verify", store, "--drop")
        assert found.code == 1
        assert "6 shards checked, 1 damaged" in found.out
        assert f"{store}/info.json: info.json " in found.out
        assert not (store / "info.json").exists()
    answered("extract", *source, "--store", root)
    assert files(store) == whole
    flip(store / "windows.safetensors", -1)
    found = bertvision("cache", "verify", store)
    assert found.code == 1
    assert f"{store}/windows.safetensors: it is not what was written" in found.out
    flip(store / "windows.safetensors", -1)
    plan = (store / "plan.json").read_text()
    (store / "plan.json").write_text(plan.replace('"hidden": 32', '"hidden": 33'))
    found = bertvision("cache", "verify", store)
    assert found.code == 1
    assert f"{store}/plan.json: plan.json is not what was written" in found.out


# ---- rm


def test_rm_removes_what_is_named_and_tells_what_that_freed(root: Path, store: Path) -> None:
    other = next(path for path in root.iterdir() if path != store)
    bytes_of = sum(len(content or b"") for content in tree(store).values())
    removed = as_json("rm", store.name[:4], store.name, store, "--store", root)
    assert removed["freed"] == bytes_of
    assert [one["key"] for one in removed["removed"]] == [store.name]
    assert list(root.iterdir()) == [other]
    assert "1 store removed, " in answered("rm", "--all", "--store", root).out
    assert list(root.iterdir()) == []


def test_rm_picks_by_age_and_state(root: Path, store: Path) -> None:
    other = next(path for path in root.iterdir() if path != store)
    assert as_json("rm", "--older-than", "1e6", "--store", root)["removed"] == []
    assert as_json("rm", "--unfinished", "--store", root)["removed"] == []
    (other / "info.json").unlink()
    assert as_json("rm", "--unfinished", "--older-than", "1", "--store", root)["removed"] == []
    assert [one["key"] for one in as_json("rm", "--older-than", "1", "--store", root)["removed"]] == [
        store.name
    ]
    assert [one["key"] for one in as_json("rm", "--unfinished", "--store", root)["removed"]] == [other.name]


def test_rm_leaves_what_is_not_ours(root: Path, store: Path) -> None:
    (store / "thesis.tex").write_text("years of work")
    assert "holds thesis.tex, which no store has" in sentence("rm", store, "--store", root)
    assert "thesis.tex" in sentence("rm", "--all", "--store", root)
    assert (store / "thesis.tex").exists()
    (root / "notes").mkdir()
    (root / "notes" / "todo.txt").write_text("keep")
    (store / "thesis.tex").unlink()
    assert "2 stores removed" in answered("rm", "--all", "--store", root).out
    assert list(tree(root)) == ["notes", "notes/todo.txt"]


def test_rm_leaves_a_store_that_another_process_writes(root: Path, store: Path) -> None:
    code = (
        "import os, sys\nfrom bertvision.states.claims import Claims\n"
        "from bertvision.states.folder import open_folder\n"
        "with Claims(open_folder(sys.argv[1])).claim(3) as ours:\n"
        "    print(ours, flush=True)\n    sys.stdin.read()\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "True\n"
        outcome = answered("rm", store.name, "--store", root)
        assert "is being written by another process and stays" in outcome.err
        assert outcome.out == "nothing to remove\n"
        assert (store / shard_name(0)).exists()
    finally:
        writer.communicate("")
    assert "1 store removed" in answered("rm", store.name, "--store", root).out


# ---- other addresses


def test_all_actions_at_an_address_of_fsspec(
    source: tuple[str | Path, ...], store: Path, tmp_path: Path
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    address, memory = f"memory://{tmp_path.name}/stores", MemoryFileSystem()
    made = as_json("extract", *source, "--store", address, *HALF)
    assert made["key"] == store.name
    place = f"/{tmp_path.name}/stores/{store.name}"
    assert {Path(str(path)).name: memory.cat_file(path) for path in memory.ls(place, detail=False)} == files(
        store
    )
    listed = as_json("ls", "--store", address)
    assert [(one["key"], one["finished"]) for one in listed["stores"]] == [(store.name, True)]
    assert listed["free"] is None
    assert "1 store in memory://" in answered("ls", "--store", address).out
    told = as_json("info", store.name[:6], "--store", address)
    assert (
        told["info"] == as_json("info", f"{address}/{store.name}")["info"] == as_json("info", store)["info"]
    )
    answered("verify", "--store", address)
    content = bytearray(memory.cat_file(f"{place}/{shard_name(1)}"))
    content[len(content) // 2] ^= 1
    memory.pipe_file(f"{place}/{shard_name(1)}", bytes(content))
    found = bertvision("cache", "verify", "--drop", "--store", address)
    assert found.code == 1
    assert f"{address}/{store.name}/{shard_name(1)}: " in found.out
    assert as_json("extract", *source, "--store", address)["finished"]
    assert {Path(str(path)).name: memory.cat_file(path) for path in memory.ls(place, detail=False)} == files(
        store
    )
    assert as_json("rm", store.name, "--store", address)["freed"] > made["bytes"]
    assert as_json("ls", "--store", address)["stores"] == []
