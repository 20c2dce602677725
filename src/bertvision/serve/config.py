"""The settings of a server: where it listens, who may ask, and how much at once. Needs none of the `serve` extra."""

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from bertvision.errors import ConfigError

_DAY = 86_400
_RANGES = {
    **{"port": (0, 65_535), "max_text": (1, 10**9), "max_batch": (1, 10**6), "max_connections": (1, 10**6)},
    **{"max_wait": (0.001, _DAY), "timeout": (0.001, _DAY), "batch_wait_ms": (0, 10_000)},
}


@dataclass(frozen=True)
class ServeConfig:
    host: str = "127.0.0.1"
    """The address to listen at; 0.0.0.0 lets other machines in."""
    port: int = 8000
    """The port; 0 takes any that is free."""
    max_body: str = "1MB"
    """The longest body of a request."""
    max_text: int = 100_000
    """Characters of the longest text."""
    max_batch: int = 64
    """The most inputs in a request and in a micro-batch."""
    queue: int = 256
    """The most inputs that wait; more are refused with 429."""
    max_wait: float = 5.0
    """Seconds: requests that would wait longer, at the recent speed of the model, are refused with 429."""
    batch_wait_ms: float = 5.0
    """How long an idle model waits for more inputs before it computes the first."""
    timeout: float = 30.0
    """Seconds after which a request is given up with 504, and a slow client is disconnected."""
    max_connections: int = 512
    """The most connections that are open at once; more are closed."""

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            if not low <= getattr(self, name) <= high:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} must be from {low:g} to {high:g}, not {getattr(self, name)}")
        if self.body_bytes < 1:
            raise ConfigError(f"--max-body must be at least one byte, not {self.max_body}")
        if self.queue < self.max_batch:
            raise ConfigError(
                f"--queue must hold a whole batch (--max-batch {self.max_batch}), not {self.queue} inputs"
            )

    @property
    def body_bytes(self) -> int:
        """Bytes of `1MB`, `512 kB`, `2MiB` or a plain number."""
        match = re.fullmatch(r"(\d{1,12}(?:\.\d+)?)\s*(?:([KMG])(I?))?B?", self.max_body.strip().upper())
        if match is None:
            raise ConfigError(f"--max-body cannot be {self.max_body!r}: give a size such as 1MB or 500kB")
        return int(float(match[1]) * (1024 if match[3] else 1000) ** " KMG".index(match[2] or " "))


def check_extra() -> None:
    """Refuse to serve where a package of the `serve` extra is missing; none is imported."""
    for name in ("fastapi", "uvicorn", "prometheus_client"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"serving needs {name}: run `pip install 'bertvision[serve]'`")


def read_key(path: Path | None) -> str | None:
    """The key that requests must carry: from a file, else from BERTVISION_API_KEY, else none."""
    key, source = os.environ.get("BERTVISION_API_KEY"), "BERTVISION_API_KEY"
    if path is not None:
        source = f"--api-key-file {path}"
        try:
            key = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source} cannot be read: name a text file that holds the key") from error
    # Only what an HTTP header can carry: any other key would lock everybody out.
    if key is not None and not re.fullmatch(r"[\x21-\x7e]{8,512}", key):
        raise ConfigError(
            f"{source} does not hold a key: write one line of 8 to 512 printable ASCII characters without spaces"
        )
    return key
