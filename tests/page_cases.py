"""The page in a real browser for tests: Debian's Chromium through Playwright, and a small package to look into."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from browsing import CHROMIUM
from cli_runner import bertvision

SHORT = ("--max-seq-length", "64", "--max-query-length", "16", "--doc-stride", "24")
MOODS = [
    {"text": f"the {thing} is {word}", "label": word}
    for word in ("good", "bad")
    for thing in ("mill", "road")
]


def make_package(folder: Path, encoder: Path, questions: Path) -> Path:
    """Two span heads and a label head over one encoder, with the readers of its layers, as the verbs make them."""
    moods = folder / "moods.jsonl"
    moods.write_text("".join(json.dumps(row) + "\n" for row in MOODS * 4), encoding="utf-8")
    heads, labels, package = folder / "heads", folder / "mood", folder / "package"
    train = ("--train", questions, "--dev", questions, *SHORT)
    commands: list[tuple[str | Path, ...]] = [
        ("fit", encoder, *train, "--epochs", "2", "--lr", "1e-2", "--out", heads, "--heads", "learned_pooling",
         "adapter:size=4", "each_layer"),
        ("fit", encoder, "--train", moods, *SHORT, "--out", labels, "--heads", "tenney_small", "each_layer"),
        ("export", f"adapter={heads}/adapter-4.seed0", f"pooling={heads}/learned-pooling.seed0", f"mood={labels}",
         "--out", package, "--bundle-encoder"),
    ]  # fmt: skip
    for command in commands:
        done = bertvision(*command)
        assert done.code == 0, done.err
    return package


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        try:
            yield started
        finally:
            started.close()


@dataclass
class Visit:
    """A page that is open, and what it did."""

    page: Any
    errors: list[str] = field(default_factory=list)
    """What it wrote to the console, and what its scripts threw."""
    addresses: list[str] = field(default_factory=list)
    """Everything it asked for, with the method."""

    def ask(self, passage: str, question: str) -> None:
        """Fill in the form and wait for the answer."""
        self.page.get_by_label("Passage", exact=True).fill(passage)
        self.page.get_by_label("Question", exact=True).fill(question)
        with self.page.expect_response("**/v1/explain"):
            self.page.get_by_role("button", name="Answer", exact=True).click()
        self.settled()

    def settled(self) -> None:
        self.page.locator('#result[aria-busy="false"]').wait_for()

    def marked(self) -> str:
        """The characters of the passage that are marked."""
        return "".join(self.page.locator("#passage .found").all_text_contents())

    def heat(self, side: str) -> list[float]:
        """How strongly each token is coloured."""
        tokens = self.page.locator("#passage .token")
        return [
            float(p) for p in tokens.evaluate_all(f"n => n.map(t => t.style.getPropertyValue('--{side}-p'))")
        ]


@contextlib.contextmanager
def visit(browser: Any, url: str, *, wait: bool = True, **options: Any) -> Iterator[Visit]:
    """Open the page in a context of its own; unless told otherwise it is left only without an error."""
    context = browser.new_context(**({"viewport": {"width": 1240, "height": 900}} | options))
    context.set_default_timeout(20_000)
    page = context.new_page()
    seen = Visit(page)
    page.on("console", lambda message: seen.errors.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("request", lambda request: seen.addresses.append(f"{request.method} {request.url}"))
    try:
        page.goto(url)
        if wait:
            seen.settled()
        yield seen
    finally:
        context.close()
