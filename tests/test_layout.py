"""The rules of the layout, read from the source: which room imports which, and what no file does."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bertvision

PACKAGE = Path(bertvision.__file__).parent
ROOT = Path(__file__).parents[1]
FLOW = ["data", "encoder", "states", "heads", "tasks", "train", "model", "report", "serve", "pipeline", "cli"]
"""Data walks through the rooms in this order; a room imports only from itself and from rooms before it."""
GROUND = {"errors", "options", "words", "console", "artifacts", "config", "shapes", "_version"}
"""Files that every room may use; they import no room."""
FRONT = {"__init__", "__main__"}
"""The front door names what is inside and imports it when asked."""
SOURCE = sorted(PACKAGE.rglob("*.py"))
BESIDE = [path for name in ("tests", "benchmarks", "papers", "tools") for path in (ROOT / name).glob("*.py")]
LONGEST = {"src": 500, "beside": 600}
"""Lines of the longest file."""
CALLS = {"print", "torch.save", "torch.load", "pickle.load", "pickle.dump", "pickle.loads"}
IMPORTS = {"pickle", "shelve", "joblib"}
PRINTS = {"console.py", "cli/__init__.py"}


def room(path: Path) -> str:
    """`train` for train/fit.py, `errors` for errors.py."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(tree: ast.AST) -> Iterator[str]:
    """The dotted name of every import, those inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole path"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def backward(path: Path) -> list[str]:
    """The rooms a file imports that do not come before its own."""
    own, rooms = room(path), {name.split(".")[1] for name in _own_imports(path)}
    if own in FRONT:
        return []
    before = [] if own in GROUND else FLOW[: FLOW.index(own) + 1]
    return sorted(rooms - GROUND - {*before})


def _own_imports(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return [name for name in imported(tree) if name.startswith("bertvision.")]


def broken(path: Path) -> Iterator[str]:
    """The bans that a file of the package breaks."""
    name, text = str(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8")
    tree = ast.parse(text, name)
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    yield from sorted(calls & CALLS)
    if name not in PRINTS:
        yield from (call for call in calls if call.startswith(("sys.stdout", "sys.stderr")))
    # The error may be caught: transformers raises it when it reads an old checkpoint.
    yield from (m for m in imported(tree) if m.split(".")[0] in IMPORTS and m != "pickle.UnpicklingError")
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.type and ast.unparse(node.type) == "Exception":
            yield "except Exception"
        if isinstance(node, ast.Call | ast.Compare) and room(path) in FLOW[FLOW.index("tasks") + 1 :]:
            code = ast.unparse(node)
            if re.fullmatch(r"isinstance\(.*Task\)|.*\btask\.kind [=!]= '\w+'", code):
                yield code
    if len(text.splitlines()) > LONGEST["src"]:
        yield f"{len(text.splitlines())} lines"
    if name != "_version.py" and not ast.get_docstring(tree):
        yield "no docstring"


def test_imports_go_forward() -> None:
    assert {room(path) for path in SOURCE} == {*FLOW, *GROUND, *FRONT}
    assert {str(path): found for path in SOURCE if (found := backward(path))} == {}


def test_no_file_breaks_a_ban() -> None:
    assert {str(path): found for path in SOURCE if (found := list(broken(path)))} == {}
    long = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in BESIDE}
    assert {name: lines for name, lines in long.items() if lines > LONGEST["beside"]} == {}


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("data/a.py", "def f():\n    from bertvision.train.fit import fit", "train"),
        ("errors.py", "import bertvision.data.tables", "data"),
        ("train/a.py", "print(isinstance(x, LabelTask))", "print isinstance(x, LabelTask) no docstring"),
        ("train/b.py", "try: pass\nexcept Exception: task.kind == 'span'", "except Exception task.kind == 'span'"),
    ],
)  # fmt: skip
def test_the_rules_can_fail(
    name: str, text: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert " ".join([*backward(path), *broken(path)]).startswith(found)


# ---- what an import brings along


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | environment,
    )  # fmt: skip


def test_the_library_needs_no_more_than_torch_and_transformers(tiny_bert: Path) -> None:
    """No command line, no report, no bars: every library room and every public name, and an encoder loaded."""
    blocked = {"tyro", "rich", "yaml", "jinja2", "matplotlib", "datasets", "jaxtyping", "tensorboard"}
    done = python(
        f"""
import importlib, os, pkgutil, sys
sys.modules.update(dict.fromkeys({blocked!r}))  # None: an import fails as if it were not installed
import bertvision
for name in bertvision.__all__:
    getattr(bertvision, name)
for room in {FLOW[: FLOW.index("model") + 1]!r}:
    package = importlib.import_module(f"bertvision.{{room}}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
del sys.modules["yaml"]  # a dependency of transformers itself
assert len(bertvision.Encoder.load(os.environ["TOY_ENCODER"]).fingerprint) == 32
try:
    import tyro
except ModuleNotFoundError:
    sys.exit(0)
sys.exit("nothing was blocked")
""",
        TOY_ENCODER=str(tiny_bert),
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_import_bertvision_imports_nothing_heavy() -> None:
    done = python("import sys, bertvision\nsys.exit(bool({'torch', 'numpy', 'tyro'} & sys.modules.keys()))")
    assert done.returncode == 0, done.stderr


def test_public_names() -> None:
    assert len(bertvision.__all__) <= 15
    for name in bertvision.__all__:
        assert getattr(bertvision, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        bertvision.nonsense  # noqa: B018
