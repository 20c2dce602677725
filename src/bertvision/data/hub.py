"""Data sets of the Hugging Face Hub, and folders written by `datasets`' save_to_disk. Needs the extra `data`."""

import os
import socket
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from bertvision.data.tables import Row, Table, class_labels
from bertvision.errors import ConfigError, DataError


def hub_table(source: str, name: str, split: str, *, subset: str | None = None) -> Table:
    """One split of a data set by its name on the Hub; messages call it `source`."""
    datasets = _datasets()
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    # `datasets` reads HF_HUB_OFFLINE when it is imported; afterwards only its constants can be set.
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    try:
        if hub_unreachable():
            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        dataset = datasets.load_dataset(name, subset, split=split)
    except ConnectionError:
        raise DataError(
            f"{source}: the Hub cannot be reached and there is no copy on this machine; "
            "check the network, or give a local file"
        ) from None
    except (OSError, ValueError, HfHubHTTPError) as error:
        problem = _first_line(error)
        raise DataError(f"{source} cannot be loaded ({problem}); check its name and its split") from None
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
    return _table(dataset, source)


def saved_table(folder: Path) -> Table:
    """The table in a folder written by `Dataset.save_to_disk`."""
    if (folder / "dataset_dict.json").exists():
        raise DataError(f"{folder} holds several splits; name the folder of one of them")
    if not (folder / "dataset_info.json").exists():
        raise DataError(
            f"{folder} is a folder but was not written by datasets' save_to_disk; name a data file in it"
        )
    try:
        dataset = _datasets().load_from_disk(str(folder))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} cannot be read ({_first_line(error)}); save the data set again") from None
    return _table(dataset, str(folder))


def _table(dataset: Any, source: str) -> Table:
    def read(names: Sequence[str]) -> Iterator[Row]:
        # A thousand rows at a time: row by row is thirty times slower, all at once doubles the memory.
        batches = dataset.select_columns(list(names)).iter(batch_size=1000)
        rows = chain.from_iterable(zip(*(batch[name] for name in names), strict=True) for batch in batches)
        return enumerate((dict(zip(names, row, strict=True)) for row in rows), start=1)

    return Table(source, dataset.column_names, read, classes=class_labels(dataset.features.to_dict()))


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            "data sets of the Hub need the package `datasets`: run `pip install 'bertvision[data]'`"
        ) from error
    return datasets


def hub_unreachable() -> bool:
    """Whether the Hub cannot be reached; asking it all the same would cost half a minute of retries."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return True
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return False
    url = urlparse(constants.ENDPOINT)
    try:
        socket.create_connection((url.hostname or "", url.port or 443), timeout=5).close()
    except OSError:
        return True
    return False


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
