"""Windows kept on disk, so that the same data is tokenised once.

One safetensors file for each set of windows: `CACHE/windows/FINGERPRINT.safetensors`, the arrays of `Windows` by name.
The fingerprint hashes the content of the data, the tokenizer, its templates, the window settings and the version of
this layout, never a file name. A checksum in the header guards each array: a file that was cut or damaged is made
again.
"""

import json
import logging
import os
import zlib
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bertvision.artifacts import atomic_file
from bertvision.data.examples import SpanData, content_hash
from bertvision.data.texts import TextData
from bertvision.data.tokenise import probe_template
from bertvision.data.windows import WindowConfig, Windows, make_windows
from bertvision.errors import OutputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


logger = logging.getLogger(__name__)

SCHEMA = 2
"""Raise it whenever `make_windows` gives other arrays for the same input."""


def default_cache_dir() -> Path:
    """The folder named by BERTVISION_CACHE, or ~/.cache/bertvision."""
    named = os.environ.get("BERTVISION_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "bertvision"


def windows_fingerprint(
    data: SpanData | TextData,
    tokenizer: "PreTrainedTokenizerBase",
    config: WindowConfig,
    *,
    tokenizer_fingerprint: str,
) -> str:
    """Hash of everything that decides the windows."""
    # Which token means "no answer" and whether there are segment ids stand in the tokenizer's config, which a hash of
    # its vocabulary alone does not see.
    templates = [asdict(probe_template(tokenizer, pair=pair)) for pair in (True, False)]
    return content_hash([SCHEMA, data.fingerprint, tokenizer_fingerprint, templates, config.settings])


def windows_for(
    data: SpanData | TextData,
    tokenizer: "PreTrainedTokenizerBase",
    config: WindowConfig,
    *,
    tokenizer_fingerprint: str,
    cache_dir: Path | None,
) -> Windows:
    """The windows of `data`: read from `cache_dir` where they are kept, else made and kept there.

    Args:
        tokenizer_fingerprint: Any hash of the tokenizer's files.
        cache_dir: Usually `default_cache_dir()`; None keeps nothing.
    """
    if cache_dir is None:
        return make_windows(data, tokenizer, config)
    key = windows_fingerprint(data, tokenizer, config, tokenizer_fingerprint=tokenizer_fingerprint)
    path = cache_dir / "windows" / f"{key}.safetensors"
    blob = b""
    with suppress(OSError):  # not there yet, or not to be read
        blob = path.read_bytes()
    windows = unpack_windows(blob)
    if windows is not None:
        return windows
    if blob or path.exists():
        logger.warning("%s is damaged; its windows are made again", path)
    windows = make_windows(data, tokenizer, config)
    try:
        with atomic_file(path) as temporary:
            temporary.write_bytes(pack_windows(windows))
    except (OutputError, OSError) as error:
        logger.warning("windows of %s are not kept: %s", data.name, error)
    return windows


def pack_windows(windows: Windows) -> bytes:
    """The arrays as one safetensors file, with a checksum each."""
    from safetensors.numpy import save

    arrays = {f.name: np.ascontiguousarray(getattr(windows, f.name)) for f in fields(Windows)}
    sums = {name: zlib.crc32(array.data) for name, array in arrays.items()}
    # One entry, because safetensors writes several in any order, and equal windows must be equal bytes.
    return save(arrays, metadata={"crc32": json.dumps(sums)})


def unpack_windows(blob: bytes) -> Windows | None:
    """The windows in such a file, or None where it was cut or damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(blob)
        header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
        sums = json.loads(header["__metadata__"]["crc32"])
        found = {f.name: arrays[f.name] for f in fields(Windows)}
        whole = all(sums[name] == zlib.crc32(array.data) for name, array in found.items())
    except (SafetensorError, ValueError, KeyError, TypeError):
        return None
    return Windows(**found) if whole else None
