"""The layout's rules, read off the source: who may import whom, who may print, what nobody does."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bertvision

PACKAGE = Path(bertvision.__file__).parent
FLOW = [
    "data",
    "encoder",
    "states",
    "heads",
    "tasks",
    "train",
    "model",
    "report",
    "serve",
    "pipeline",
    "cli",
]
"""Data walks through the rooms in this order; a room imports only from itself and from rooms before it."""
GROUND = {"errors", "console", "artifacts", "config", "shapes", "words", "_version"}
"""What every room stands on; it imports no room."""
FILES = sorted(PACKAGE.rglob("*.py"))
TESTS = Path(__file__).parent
BESIDE = {
    folder: sorted(folder.glob("*.py"))
    for folder in (TESTS, TESTS.parent / "benchmarks", TESTS.parent / "papers")
}
"""Files around the package, which are no longer than its own."""
LONGEST = 600
"""Lines of the longest file that anyone still reads."""


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def room(path: Path) -> str:
    """`train` for train/fit.py, `errors` for errors.py, `bertvision` for the package's own __init__."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "bertvision" if parts[0] in ("__init__", "__main__") else parts[0]


def imported(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, dotted name) of every import, those inside functions too."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole path"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def rooms_imported(path: Path) -> list[tuple[int, str]]:
    names = [(line, name.split(".")) for line, name in imported(parsed(path))]
    return [(line, parts[1]) for line, parts in names if parts[0] == "bertvision" and len(parts) > 1]


def test_every_folder_and_file_has_its_place() -> None:
    assert {room(path) for path in FILES} == {*FLOW, *GROUND, "bertvision"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_forward(path: Path) -> None:
    own = room(path)
    if own == "bertvision":
        return  # the front door: it names what is inside and imports it when asked
    for line, other in rooms_imported(path):
        if other in GROUND or other == own:
            continue
        assert own not in GROUND, f"{path}:{line}: {own} must not import the room {other}"
        assert FLOW.index(other) < FLOW.index(own), f"{path}:{line}: {own} comes before {other}"


def test_the_rule_itself_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backwards import, hidden in a function, is found."""
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    for name, text in (
        ("data/a.py", "def f():\n    from bertvision.train.fit import fit"),
        ("errors.py", "import bertvision.data.hub"),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        with pytest.raises(AssertionError, match=r"comes before|must not import"):
            test_imports_go_forward(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nobody_prints_pickles_or_grows_too_long(path: Path) -> None:
    tree = parsed(path)
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not calls & {"print", "torch.save", "torch.load", "pickle.load", "pickle.dump", "pickle.loads"}
    if path != PACKAGE / "console.py" and path != PACKAGE / "cli" / "__init__.py":
        assert not [call for call in calls if call.startswith(("sys.stdout", "sys.stderr"))]
    modules = {name for _, name in imported(tree)}
    # The error may be caught; what raises it is transformers reading an old checkpoint, never we.
    assert not {m for m in modules if m.split(".")[0] in ("pickle", "shelve", "joblib")} - {
        "pickle.UnpicklingError"
    }
    assert lines(path) <= LONGEST
    if path.name != "_version.py":
        assert ast.get_docstring(tree), f"{path} does not say what it is"


def test_tests_and_benchmarks_do_not_grow_too_long_either() -> None:
    assert all(BESIDE.values()), "a folder without files"
    found = {path.name: lines(path) for paths in BESIDE.values() for path in paths}
    assert {name: count for name, count in found.items() if count > LONGEST} == {}


_WITHOUT = """
import importlib, os, pkgutil, sys

blocked = {blocked!r}
sys.modules.update(dict.fromkeys(blocked))  # None: an import fails as if it were not installed
import bertvision
for name in bertvision.__all__:
    getattr(bertvision, name)
for room in {rooms!r}:
    package = importlib.import_module(f"bertvision.{{room}}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
del sys.modules["yaml"]  # a dependency of transformers itself
encoder = bertvision.Encoder.load(os.environ["TOY_ENCODER"])
assert len(encoder.fingerprint) == 32
try:
    import tyro
except ModuleNotFoundError:
    sys.exit(0)
sys.exit("nothing was blocked")
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | environment,
    )  # fmt: skip


def test_the_library_needs_no_more_than_torch_and_transformers(tiny_bert: Path) -> None:
    """No command line, no report, no bars: every library room and every public name, and an encoder loaded."""
    blocked = {"tyro", "rich", "yaml", "jinja2", "matplotlib", "datasets", "jaxtyping", "tensorboard"}
    rooms = ["data", "encoder", "states", "heads", "tasks", "train", "model", "serve"]
    done = python(_WITHOUT.format(blocked=blocked, rooms=rooms), TOY_ENCODER=str(tiny_bert))
    assert done.returncode == 0, done.stderr[-2000:]


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys\nfrom bertvision.cli import main\nmain(['--help'])\nmain(['--version'])\n"
        "heavy = {'torch', 'transformers', 'numpy', 'matplotlib', 'datasets', 'rich', 'tyro', 'yaml'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert "usage: bertvision" in done.stdout


def test_import_bertvision_imports_nothing_heavy() -> None:
    done = python("import sys, bertvision\nsys.exit('torch' in sys.modules or 'numpy' in sys.modules)")
    assert done.returncode == 0, done.stderr


def test_public_names() -> None:
    assert len(bertvision.__all__) <= 15
    for name in bertvision.__all__:
        assert getattr(bertvision, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        bertvision.nonsense  # noqa: B018
