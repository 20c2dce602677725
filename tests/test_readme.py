"""The README's own commands: they parse, their targets exist, its Python runs."""

import ast
import re
import shlex
from pathlib import Path

import pytest

import bertvision as bv
from bertvision.cli import VERBS, find_command
from bertvision.cli.flags import parse
from bertvision.heads import Geometry, cost, parse_head

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def shell_lines() -> list[str]:
    """Commands of the shell blocks, with lines that end in a backslash joined."""
    text = "".join(block.replace("\\\n", " ") for kind, block in BLOCKS if kind in ("bash", "sh", "console"))
    lines = (line.strip().removeprefix("$ ") for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def test_the_readme_shows_how_to_start() -> None:
    lines = shell_lines()
    assert any(line.startswith("make demo") for line in lines)
    assert any(line.startswith("make test") for line in lines)
    assert any(line.startswith("bertvision run") for line in lines)
    assert [kind for kind, _ in BLOCKS if kind == "python"]


def _parses(words: list[str]) -> None:
    assert words[0] in VERBS
    parse(*find_command(words))


@pytest.mark.parametrize("line", shell_lines())
def test_command(line: str) -> None:
    for command in re.split(r"\s*(?:&&|;|\|)\s*", re.sub(r"\s#.*", "", line)):
        program, *words = shlex.split(command)
        if program == "make":
            assert words
            assert set(words) <= set(TARGETS), f"no such target: {command}"
        elif program.endswith("bertvision"):
            _parses(words)
        elif program == "torchrun":
            assert "-m" in words
            assert words[words.index("-m") + 1] == "bertvision"
            _parses(words[words.index("-m") + 2 :])
        else:
            assert program in ("cd", "git", "pip", "python", "python3", "source"), (
                f"unknown command: {command}"
            )


def test_commands_in_the_text_exist() -> None:
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL))
    for span in spans:
        if span.startswith("make "):
            assert span.split()[1] in TARGETS, span
        if span.startswith("bertvision "):
            assert span.split()[1] in {*VERBS, "VERB", "--help"}, span
        if span.startswith("bv."):
            for name in re.findall(r"\bbv\.(\w+)", span):
                assert name in bv.__all__, span
            ast.parse(span)
    table = re.findall(r"^\| ((?:`\w+` ?)+)\|", README, re.MULTILINE)
    told = {verb for cell in table for verb in re.findall(r"`(\w+)`", cell)}
    assert told >= set(VERBS), "verbs missing in the README"


def test_python_blocks_run(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                           capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """With the toy run in the place of the demo's."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo").symlink_to(finished_run)
    monkeypatch.chdir(tmp_path)
    for kind, block in BLOCKS:
        if kind == "python":
            exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out


def test_head_sizes_in_the_table_are_true() -> None:
    rows = re.findall(
        r"^\| `(\w+(?::\w+=\d+)?)`( \(`,skip`\))? \|.*\| ([\d,]+)(?: \(([\d,]+)\))? \|$", README, re.MULTILINE
    )
    assert len(rows) >= 4
    geometry = Geometry(states=25, hidden=1024)
    for name, skip, size, with_skip in rows:
        assert f"{cost(parse_head(name), geometry, tokens=386).parameters:,}" == size
        if skip:
            assert f"{cost(parse_head(name + ',skip'), geometry, tokens=386).parameters:,}" == with_skip


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[tuple[Path, str]]:
    """(file, anchor) of every link of a page that stays in the repository."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    found = re.findall(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)", text)
    found += re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
    found += re.findall(r"(?:href|src)=\"([^\"]+)\"", text)
    inside = [target for target in found if not re.match(r"[a-z]+:", target)]
    return [((page.parent / file).resolve() if file else page, anchor)
            for file, _, anchor in (target.partition("#") for target in inside)]  # fmt: skip


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "") for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for file, anchor in links(page):
        assert file.exists(), f"{page.name} links to {file}, which does not exist"
        assert file.is_relative_to(ROOT), f"{page.name} links out of the repository"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page.name} links to #{anchor} of {file.name}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    """Told there or on a page that is; those of the parts one ships in the README itself."""
    direct = {file for file, _ in links(PAGES[0])}
    for name in ("evidence", "packages", "predict", "serve", "page"):
        assert ROOT / "docs" / f"{name}.md" in direct, f"the README does not link docs/{name}.md"
    reached, new = set(), {PAGES[0]}
    while new:
        reached |= new
        told = {file for page in new for file, _ in links(page)}
        new = {file for file in told if file.suffix == ".md"} - reached
    assert set(PAGES) <= reached, f"nobody links {sorted(page.name for page in set(PAGES) - reached)}"
