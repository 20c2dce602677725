"""Write the versions that bertvision is installed with; `make lock`, `make latest` and `make lowest` call this.

python tools/lock.py                     # write constraints.txt: the newest versions that fit pyproject.toml
python tools/lock.py lowest              # print constraints: the lowest versions that pyproject.toml allows
python tools/lock.py report tests.xml    # print what differs from constraints.txt, and which tests failed
"""

import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "constraints.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]

# The version of torch that the tests run with. Change it on purpose: the last digits of results may follow.
TORCH = "2.13.0"
# A CUDA build of torch names these with exact versions itself. The tests run without them.
CUDA = ("cuda-", "nvidia-", "triton")
HEADER = """\
# The version of every package that the tests run with. Written by `make lock`; do not edit.
# Made with Python 3.11 on Linux. It covers every extra and dependency group of pyproject.toml, and what builds the
# package. pip itself is not in it.
"""


def normal(name: str) -> str:
    """The name of a package as an index spells it: `Jinja2` is `jinja2`, `typing_extensions` is `typing-extensions`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(*arguments: str) -> dict[str, str]:
    """Versions that pip would install into an empty environment; nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "--report", str(report), *arguments], cwd=ROOT, check=True)
        found = [entry["metadata"] for entry in json.loads(report.read_text())["install"]]
    # The CPU build is 2.13.0+cpu. Without the suffix the constraint fits the CUDA build too.
    return {normal(one["name"]): one["version"].split("+")[0] for one in found}


def write_lock() -> None:
    if sys.version_info[:2] != (3, 11):  # newer versions of some packages no longer install on 3.11
        sys.exit("the lock is made with Python 3.11, the oldest supported: make lock PYTHON=python3.11")
    extras = ",".join(name for name in EXTRAS if name != "embedded")
    groups = [word for name in PROJECT["dependency-groups"] for word in ("--group", name)]
    versions = resolve(f"torch=={TORCH}", f".[{extras}]", *groups, *PROJECT["build-system"]["requires"])
    # The wheel of the embedded encoder requires sentence-transformers, which nothing here imports.
    versions |= resolve("--no-deps", *EXTRAS["embedded"])
    del versions[PROJECT["project"]["name"]]
    lines = [f"{name}=={versions[name]}\n" for name in sorted(versions) if not name.startswith(CUDA)]
    LOCK.write_text(HEADER + "".join(lines))
    print(f"{LOCK.name}: {len(lines)} packages")


def locked() -> dict[str, str]:
    lines = LOCK.read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def lower_bounds(requirements: Iterable[str]) -> dict[str, str]:
    """The version after `>=` or `==` of every requirement that has one."""
    found = (re.match(r"([\w.-]+)(?:\[.*?\])?\s*[>=]=\s*([\w.]+)", line) for line in requirements)
    return {normal(match[1]): match[2] for match in found if match}


def print_lowest() -> None:
    """Direct dependencies at their lower bounds; the tools of the tests not above their locked versions.

    pip chooses the versions of everything else. torch has its locked version, because older CPU builds are not at hand.
    """
    versions = locked()
    extras = (requirement for many in EXTRAS.values() for requirement in many)
    direct = lower_bounds([*PROJECT["project"]["dependencies"], *extras]) | {"torch": versions["torch"]}
    tools = lower_bounds(PROJECT["dependency-groups"]["dev"])
    lines = [f"{name}=={version}" for name, version in direct.items()]
    lines += [f"{name}<={versions[name]}" for name in tools if name not in direct]
    print("\n".join(sorted(lines)))


def print_report(results: Path) -> None:
    """Say how this environment differs from the lock, and which tests failed in it."""
    here = {normal(one.name): one.version.split("+")[0] for one in importlib.metadata.distributions()}
    versions = locked()
    known = {name for name in here if name not in ("pip", PROJECT["project"]["name"])}
    print("\nVersions that differ from constraints.txt:")
    rows = [
        (name, versions.get(name, "-"), here[name])
        for name in sorted(known)
        if versions.get(name) != here[name]
    ]
    for name, ours, theirs in rows:
        print(f"  {name:<28} {ours:>16} -> {theirs}")
    if not rows:
        print("  none")
    print("\nTests:")
    if not results.exists():
        print("  did not run: see the errors above")
        return
    cases = xml.etree.ElementTree.parse(results).findall(".//testcase")
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    print(f"  {len(cases) - len(failed) - skipped} passed, {skipped} skipped, {len(failed)} failed")
    for case in failed:
        print(f"  FAILED {case.get('classname')}::{case.get('name')}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            write_lock()
        case ["lowest"]:
            print_lowest()
        case ["report", path]:
            print_report(Path(path))
        case _:
            sys.exit(__doc__)
