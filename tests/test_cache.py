"""`bertvision cache`: stores are extracted, listed, shown, checked and removed."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cache_runner import WINDOWS, answered, as_json
from cli_runner import bertvision, tree
from fsspec.implementations.memory import MemoryFileSystem
from store_cases import flip

from bertvision.cli.cache import ACTIONS
from bertvision.cli.cache.texts import age, short
from bertvision.states.shard import shard_name
from bertvision.states.store import open_store

HALF = ("--shard-tokens", "300")
SMALL = ("--dtype", "int8", "--layers", "0,-1", "--positions", "context")
Source = tuple[str | Path, ...]


def sentence(*words: str | Path) -> str:
    """The one sentence of a user's mistake."""
    outcome = bertvision("cache", *words)
    assert (outcome.code, outcome.out) == (2, ""), outcome
    assert re.fullmatch(r"error: [^\n]+\n", outcome.err), outcome.err
    return outcome.err


def files(folder: Path) -> dict[str, bytes | None]:
    return {name: content for name, content in tree(folder).items() if not name.endswith(".lock")}


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
def source(tiny_bert: Path, toy_squad: Path) -> Source:
    return (tiny_bert, "--data", toy_squad, *WINDOWS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, source: Source) -> Path:
    """Two stores: one of six shards that was last used years ago, and one of a single shard."""
    root = tmp_path_factory.mktemp("made") / "stores"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTVISION_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        for flags in (HALF, SMALL):
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


def test_help_lists_the_actions_and_describes_their_flags() -> None:
    listed = bertvision("cache").out
    assert listed == bertvision("cache", "--help").out == bertvision("cache", "-h").out
    for action, text in ACTIONS.items():
        assert re.search(rf"^  {action} +{re.escape(text)}$", listed, re.MULTILINE)
        shown = answered(action, "--help").out
        flags = re.findall(r"^  (--[a-z][\w.-]*)(.*\n(?: {6,}.*\n)*)", shown, re.MULTILINE)
        assert {"--store", "--json"} <= {flag for flag, _ in flags}
        for flag, said in flags:
            described = said.partition("(default:")[0].partition("(required)")[0]
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


MISTAKES = {
    "lst": "did you mean ls",
    "zzz": "known: extract, ls",
    "--store x ls": "'--store'",
    "extract embedded --data demo:dev --shard-tokens 0": "--shard-tokens",
    "extract embedded --data demo:dev --tokens-per-call -1": "--tokens-per-call",
    "extract embedded --data demo:dev --cache-gb -1": "--cache-gb",
    "extract embedded --data demo:dev --layers 0,9": "error: --layers names 9",
    "extract nowhere/bert --data demo:dev": "nowhere/bert",
    "extract embedded --data nowhere.json": "nowhere.json",
    "extract embedded --data demo:dev --store nothing://x": "nothing://x",
    "extract embedded --data demo:dev --store /dev/null/x": "cannot write /dev/null/x",
    "info abc": "'abc'",
    "info ./": "./ holds no stored states",
    "verify abc": "'abc'",
    "rm": "--all",
    "rm abc --all": "not both",
    "rm --older-than -1": "--older-than",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_sentence(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert MISTAKES[words] in sentence(*words.split())
    assert tree(tmp_path) == {}


def test_ages_and_names() -> None:
    shown = [age(seconds) for seconds in (3.4, 300, 10_800, 8 * 86_400, None)]
    assert shown == ["3 s", "5 min", "3 h", "8 d", "unknown"]
    names = ("/runs/a/finetune/snapshot-1/encoder", "embedded", "org/model", "demo:train")
    assert [short(name) for name in names] == ["finetune/snapshot-1", *names[1:]]


# ---- extract


def test_extract_announces_the_size_and_is_right(source: Source, tmp_path: Path) -> None:
    outcome = answered("extract", *source, "--store", tmp_path, *HALF, "--json")
    result = json.loads(outcome.out)
    shards = {name: len(content or b"") for name, content in tree(tmp_path).items() if "shard-" in name}
    assert (result["bytes"], result["shards"]) == (sum(shards.values()), len(shards)) == (result["bytes"], 6)
    assert Path(result["store"]) == tmp_path / result["key"]
    assert result["tokens"] == result["encoded_tokens"]
    before, _, after = outcome.err.partition("encode: ")
    assert "in 6 shards" in before
    assert re.search(r"to write to \S+; the disk has [\d.]+ \wB free", before)
    assert after
    again = as_json("extract", *source, "--store", tmp_path)
    assert (again["key"], again["encoded_tokens"]) == (result["key"], 0)


def test_extract_makes_only_what_is_missing(source: Source, root: Path, store: Path) -> None:
    before, opened = files(store), open_store(store)
    for number in (1, 4):
        (store / shard_name(number)).unlink()
    outcome = answered("extract", *source, "--store", root, "--shard-tokens", "500", "--json")
    wanted = sum(int(opened.windows.lengths[opened.plan.shards[number]].sum()) for number in (1, 4))
    assert json.loads(outcome.out)["encoded_tokens"] == wanted
    assert "encode: 4 of 6 shards are there" in outcome.err
    assert "begun with --shard-tokens 300" in outcome.err
    assert files(store) == before


# ---- ls and info


def test_ls_shows_the_last_used_first(
    root: Path, store: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = as_json("ls", "--store", root)
    assert (listed["root"], listed["free"] > 0) == (str(root), True)
    assert listed["bytes"] == sum(len(content or b"") for content in tree(root).values())
    names = ("key", "dtype", "positions", "layers", "hidden", "finished")
    assert [[one[name] for name in names] for one in listed["stores"]] == [
        [other.name, "int8", "context", [0, 2], 32, True],
        [store.name, "fp16", "all", [0, 1, 2], 32, True],
    ]
    assert listed["stores"][1]["age_seconds"] > 1e8
    (store / shard_name(2)).unlink()
    for width in (60, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        *rows, last = answered("ls", "--store", root).out.splitlines()
        assert max(map(len, rows)) <= width
        assert last.startswith(f"2 stores in {root}: ")
        assert "5/6" in next(line for line in rows if line.startswith(store.name[:12]))
    assert re.search(r"finished .* 2 x 32 .* int8 .* context +\S+/bert +\S+/toy.json", "\n".join(rows))


def test_nothing_is_shown_as_nothing(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        assert answered("ls", "--store", place).out.startswith(f"no stores in {place}; the disk has ")
    assert as_json("ls", "--store", tmp_path)["stores"] == []
    assert answered("verify", "--store", tmp_path).out == f"no stores in {tmp_path}\n"
    assert answered("rm", "--all", "--store", tmp_path).out == "nothing to remove\n"


def test_info_shows_everything(root: Path, store: Path, source: Source) -> None:
    shown, *others = (
        as_json("info", *words) | {"age_seconds": None}
        for words in ((store.name, "--store", root), (store.name[:6], "--store", root), (f"{store}/",))
    )
    assert others == [shown, shown]
    (store / shard_name(3)).unlink()
    text = answered("info", store).out
    for part in (
        store.name, str(source[0]), str(source[2]), shown["plan"]["identity"]["encoder"], r"doc stride +24",
        "layers +0, 1, 2", "hidden +32", "shards +5", "planned +6", "finished +False", rf"missing +1: {shard_name(3)}",
    ):  # fmt: skip
        assert re.search(part, text), part


def test_an_ambiguous_beginning_names_both(root: Path, store: Path) -> None:
    twin = store.name[:8] + "0" * 24
    shutil.copytree(store, root / twin)
    for action in ("info", "verify", "rm"):
        said = sentence(action, store.name[:8], "--store", root)
        assert store.name in said
        assert twin in said
    assert "cannot be empty" in sentence("rm", "", "--store", root)
    assert len(list(root.iterdir())) == 3


# ---- verify


@pytest.mark.parametrize("where", ["header", "middle", "cut", "longer"])
def test_a_damaged_shard_is_found_and_only_it_is_made_anew(
    where: str, root: Path, store: Path, source: Source
) -> None:
    before, path = files(root), store / shard_name(2)
    content = path.read_bytes()
    if where in ("cut", "longer"):
        path.write_bytes(content[:-1] if where == "cut" else content + b"x")
    else:
        flip(path, {"header": 20, "middle": len(content) // 2}[where])
    found = bertvision("cache", "verify", store.name[:5], "--store", root)
    assert found.code == 1
    assert "6 shards checked, 1 damaged" in found.out
    assert f"  {path}: " in found.out
    assert path.exists(), "without --drop nothing is removed"
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
    assert f"{path}: " in found.out
    assert found.out.count("every byte as written") == 1, "the other store is whole"
    assert "2 stores" in listed
    if name == "plan.json":
        assert f"{store.name[:12]} is damaged" in listed
        assert "damaged" in shown
    if damage == "closed":
        path.chmod(0o644)
    elif name == "windows.safetensors":
        answered("extract", *source, "--store", root)  # writes them again
    else:
        assert as_json("rm", "--unfinished", "--store", root)["removed"][0]["key"] == store.name
        return
    assert files(store) == whole


# ---- rm


def test_rm_removes_what_is_named_and_says_what_that_freed(root: Path, store: Path, other: Path) -> None:
    size = sum(len(content or b"") for content in tree(store).values())
    removed = as_json("rm", store.name[:4], store.name, store, "--store", root)
    assert (removed["freed"], [one["key"] for one in removed["removed"]]) == (size, [store.name])
    assert list(root.iterdir()) == [other]
    assert "1 store removed, " in answered("rm", "--all", "--store", root).out
    assert list(root.iterdir()) == []


def test_rm_picks_by_use_and_state(root: Path, store: Path, other: Path) -> None:
    def picked(*flags: str) -> list[str]:
        return [one["key"] for one in as_json("rm", *flags, "--store", root)["removed"]]

    assert picked("--older-than", "1e6") == picked("--unfinished") == []
    (other / shard_name(0)).unlink()
    assert picked("--unfinished", "--older-than", "1") == []
    assert picked("--older-than", "1") == [store.name]
    assert picked("--unfinished") == [other.name]


def test_rm_stops_at_what_is_not_ours(root: Path, store: Path) -> None:
    for name in ("thesis.tex", ".git", ".env", ".lock.bak", ".tmp-1"):
        (store / name).write_text("years of work")
        for words in ((store,), ("--all",)):
            assert f"holds {name}, which no store has" in sentence("rm", *words, "--store", root)
        (store / name).unlink()
    for ours in (".lock", ".shard-00007.safetensors.tmp-12"):
        (store / ours).touch()
    assert "2 stores removed" in answered("rm", "--all", "--store", root).out


@pytest.mark.parametrize("name", ["plan.json", "windows.safetensors", "shard-00000.safetensors"])
@pytest.mark.parametrize("content", ["{}", "not json", '{"schema": 2, "key": "mine"}'])
def test_a_folder_of_somebody_else_is_no_store(name: str, content: str, tmp_path: Path) -> None:
    project = tmp_path / "other" / "proj"
    project.mkdir(parents=True)
    (project / name).write_text(content)
    before = tree(tmp_path)
    assert as_json("ls", "--store", project.parent)["stores"] == []
    for flags in (("--unfinished",), ("--all",)):
        assert as_json("rm", *flags, "--store", project.parent)["removed"] == []
    assert "holds no stored states" in sentence("rm", project)
    assert tree(tmp_path) == before


def test_a_store_may_have_any_name_but_that_of_another(root: Path, store: Path) -> None:
    shutil.copytree(store, root / "my copy")
    twin = Path(shutil.copytree(store, root / ("0" * 32)))
    rows = {one["key"]: one["finished"] for one in as_json("ls", "--store", root)["stores"]}
    assert (rows["my copy"], rows[twin.name]) == (True, False)
    assert f"belongs to the store {store.name}" in answered("info", twin.name, "--store", root).out


def test_rm_leaves_a_store_that_another_process_writes(root: Path, store: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom filelock import FileLock\n"
        "with FileLock(Path(sys.argv[1]) / '.lock'):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "held\n"
        outcome = answered("rm", store.name, "--store", root)
        writer.communicate("")
    assert "is being written by another process and stays" in outcome.err
    assert outcome.out == "nothing to remove\n"
    assert (store / shard_name(0)).exists()
    assert "1 store removed" in answered("rm", store.name, "--store", root).out


# ---- elsewhere


def test_all_actions_at_an_address_of_fsspec(source: Source, store: Path, tmp_path: Path) -> None:
    address, memory = f"memory://{tmp_path.name}/stores", MemoryFileSystem()
    place = f"/{tmp_path.name}/stores/{store.name}"

    def there() -> dict[str, bytes]:
        return {Path(str(path)).name: memory.cat_file(path) for path in memory.ls(place, detail=False)}

    made = as_json("extract", *source, "--store", address, *HALF)
    assert made["key"] == store.name
    assert there() == files(store)
    listed = as_json("ls", "--store", address)
    assert [(one["key"], one["finished"]) for one in listed["stores"]] == [(store.name, True)]
    assert listed["free"] is None
    assert as_json("info", store.name[:6], "--store", address)["plan"] == as_json("info", store)["plan"]
    answered("verify", "--store", address)
    content = bytearray(memory.cat_file(f"{place}/{shard_name(1)}"))
    content[len(content) // 2] ^= 1
    memory.pipe_file(f"{place}/{shard_name(1)}", bytes(content))
    found = bertvision("cache", "verify", "--drop", "--store", address)
    assert found.code == 1
    assert f"{address}/{store.name}/{shard_name(1)}: " in found.out
    answered("extract", *source, "--store", address)
    assert there() == files(store)
    assert as_json("rm", store.name, "--store", address)["freed"] > made["bytes"]
    assert as_json("ls", "--store", address)["stores"] == []
