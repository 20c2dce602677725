"""A head on disk: `config.json` and `model.safetensors`, never a pickle.

config.json holds the head's versioned name, config and geometry, the library version, and whatever the caller
adds (encoder and its fingerprint, windows, decoding, training settings).
"""

import dataclasses
from pathlib import Path
from textwrap import shorten
from typing import Any

from bertvision._version import __version__
from bertvision.artifacts import read_json, read_tensors, write_json, write_tensors
from bertvision.errors import ArtifactError, ConfigError
from bertvision.heads.base import Geometry, Head, head_class

SCHEMA = 1


def save_head(head: Head, folder: Path, *, about: dict[str, Any]) -> None:
    """Write the head's two files into `folder`; the caller makes the folder atomic."""
    config = {
        "bertvision": __version__,
        "schema": SCHEMA,
        "head": {"name": head.name, "config": dataclasses.asdict(head.config)},
        "geometry": dataclasses.asdict(head.geometry),
        "parameters": head.num_parameters,
        **about,
    }
    write_tensors(folder / "model.safetensors", head.state_dict())
    write_json(folder / "config.json", config)


def read_head_config(folder: Path) -> dict[str, Any]:
    """A head's config.json, checked for being one."""
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or "head" not in config or "geometry" not in config:
        raise ArtifactError(f"{folder / 'config.json'} does not describe a bertvision head: check the folder")
    if config.get("schema") != SCHEMA:
        raise ArtifactError(
            f"{folder} was written in head format {config.get('schema')} by bertvision {config.get('bertvision')}, "
            f"this is {__version__} and reads format {SCHEMA}: install that version"
        )
    return config


def load_head(folder: Path) -> tuple[Head, dict[str, Any]]:
    """The head in `folder` in evaluation mode, and its config."""
    config = read_head_config(folder)
    try:
        cls = head_class(config["head"]["name"])
        known = {field.name for field in dataclasses.fields(cls.config_class)}
        settings = {k: v for k, v in config["head"]["config"].items() if k in known}
        head = cls(cls.config_class(**settings), Geometry(**config["geometry"]))
    except (ConfigError, TypeError, KeyError) as error:
        raise ArtifactError(
            f"{folder / 'config.json'} names a head this version cannot build: {error}"
        ) from error
    tensors, _ = read_tensors(folder / "model.safetensors")
    try:
        head.load_state_dict(tensors)
    except RuntimeError as error:
        first = shorten(
            str(error).splitlines()[1].strip(), 200
        )  # one of them is enough: a large head has hundreds
        raise ArtifactError(
            f"{folder / 'model.safetensors'} and its config.json belong to different heads: {first}"
        ) from error
    return head.eval(), config
