"""The page in a real browser for tests: Debian's Chromium through Playwright, and a small package to look into."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli_runner import bertvision

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
_FLAGS += " --disable-component-update --disable-sync"
SHORT = ("--max-seq-length", "64", "--max-query-length", "16", "--doc-stride", "24")


def make_package(folder: Path, encoder: Path, questions: Path) -> Path:
    """Two span heads and a label head over one encoder, with the readers of its layers, as the verbs make them."""
    moods, both = (
        folder / "moods.jsonl",
        [(thing, word) for word in ("good", "bad") for thing in ("mill", "road")],
    )
    rows = [{"text": f"the {thing} is {word}", "label": word} for thing, word in both * 4]
    moods.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
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
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS.split())
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
        for name, text in (("Passage", passage), ("Question", question)):
            self.page.get_by_label(name, exact=True).fill(text)
        with self.page.expect_response("**/v1/explain"):
            self.press("Answer")
        self.settled()

    def settled(self) -> None:
        self.page.locator('#result[aria-busy="false"]').wait_for()

    def marked(self) -> str:
        """The characters of the passage that are marked."""
        return "".join(self.page.locator("#passage .found").all_text_contents())

    def heat(self, side: str) -> list[float]:
        """How strongly each token is coloured."""
        read = f"n => n.map(t => Number(t.style.getPropertyValue('--{side}-p')))"
        return self.page.locator("#passage .token").evaluate_all(read)

    def slide(self, to: float) -> None:
        self.page.get_by_label("Threshold").fill(str(round(1000 * to)))

    def text(self, place: str) -> str:
        return self.page.locator(place).inner_text()

    def press(self, button: str) -> None:
        self.page.get_by_role("button", name=button, exact=True).click()

    def choose(self, head: str) -> None:
        self.page.get_by_role("radio", name=head, exact=True).check()


@contextlib.contextmanager
def visit(browser: Any, url: str, *, fails: bool = False, **options: Any) -> Iterator[Visit]:
    """Open the page in a context of its own; it shows an answer and ends without error, or `fails`."""
    context = browser.new_context(**({"viewport": {"width": 1240, "height": 900}} | options))
    context.set_default_timeout(20_000)
    page = context.new_page()
    seen = Visit(page)
    page.on("console", lambda message: seen.errors.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("request", lambda request: seen.addresses.append(f"{request.method} {request.url}"))
    try:
        page.goto(url)
        if not fails:
            seen.settled()
        yield seen
        assert fails or seen.errors == []
    finally:
        context.close()
