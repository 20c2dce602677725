"""Short ways to call `bertvision cache`, and an encoder that must not be asked."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Outcome, bertvision

from bertvision.encoder.encoder import Encoder

WINDOWS = ("--max-seq-length", "64", "--max-query-length", "16", "--doc-stride", "24")


def answered(*words: str | Path) -> Outcome:
    outcome = bertvision("cache", *words)
    assert outcome.code == 0, outcome.err
    return outcome


def as_json(*words: str | Path) -> Any:
    return json.loads(answered(*words, "--json").out)


def forbid_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def layer_states(*_: object) -> None:
        raise AssertionError("the encoder was asked")

    monkeypatch.setattr(Encoder, "layer_states", layer_states)
