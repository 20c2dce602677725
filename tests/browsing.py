"""A page in a real browser, where there is one."""

import shutil
import subprocess
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def browse(text: str, folder: Path) -> tuple[str, list[str]]:
    """The page's text after its scripts ran, and what it wrote to the console."""
    assert CHROMIUM is not None
    folder.mkdir()
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    )
    command = [
        *(
            CHROMIUM,
            *flags.split(),
            "--disable-component-update",
            "--disable-sync",
            "--enable-logging=stderr",
        ),
        *(f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000", "--dump-dom", path.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
