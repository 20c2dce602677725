"""The files of the page at /, which lie in serve/page: read once, handed out by their exact names."""

import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PageFile", "page_files"]

FOLDER = Path(__file__).parents[1] / "page"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
"""Told here, because what the system's own table says of scripts differs."""


@dataclass(frozen=True)
class PageFile:
    content: bytes
    media_type: str
    etag: str
    """Of the content, so that a browser asks for it once."""


def page_files(folder: Path = FOLDER) -> dict[str, PageFile]:
    """Every file of the page by its address; index.html is /."""
    found: dict[str, PageFile] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not path.is_file() or path.name.startswith((".", "_")) or path.suffix in (".py", ".md"):
            continue
        content = path.read_bytes()
        kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        etag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
        found["/" if path.name == "index.html" else f"/{path.name}"] = PageFile(content, kind, etag)
    return found
