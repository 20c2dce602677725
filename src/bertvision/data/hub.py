"""Data sets of the Hugging Face Hub, and folders written by `datasets`' save_to_disk.

Needs the extra `data`. Columns as in SQuAD: question, context, answers ({"text": [...], "answer_start":
[...]}), and id and title when there are any; or texts with labels or scores, as in `text_tables`.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from bertvision.data.building import Flaw, SpanBuilder
from bertvision.data.examples import SpanData
from bertvision.data.tabular import add_row
from bertvision.data.text_tables import Columns, texts_of_rows
from bertvision.data.texts import TextData, TextKind
from bertvision.errors import ConfigError, DataError

__all__ = [
    "hub_table",
    "hub_unreachable",
    "iterate",
    "read_hub",
    "read_saved",
    "saved_table",
    "spans_of_table",
    "texts_of_table",
]


def read_hub(name: str, *, split: str = "train", answers_required: bool = True) -> SpanData:
    """Load one split of a data set of questions by its name on the Hub."""
    table = hub_table(name, split=split)
    return spans_of_table(table, f"hub:{name}:{split}", answers_required=answers_required)


def hub_table(name: str, *, split: str = "train", subset: str | None = None) -> Any:
    """One split as a table; `datasets` keeps a copy for the next time."""
    datasets = _datasets()
    source = f"hub:{name}:{split}"
    from huggingface_hub.errors import HfHubHTTPError

    try:
        with _no_retries_offline():
            table = datasets.load_dataset(name, subset, split=split)
    except ConnectionError:
        raise DataError(
            f"{source}: the Hub cannot be reached and there is no copy on this machine; "
            "check the network, or give a local file"
        ) from None
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise DataError(
            f"{source} cannot be loaded ({_first_line(error)}); check its name and its split, hub:NAME:SPLIT"
        ) from None
    return table


def read_saved(folder: str | Path, *, answers_required: bool = True) -> SpanData:
    """Load a folder of questions written by `Dataset.save_to_disk`."""
    return spans_of_table(saved_table(Path(folder)), str(folder), answers_required=answers_required)


def saved_table(folder: Path) -> Any:
    """The table in a folder written by `Dataset.save_to_disk`."""
    if (folder / "dataset_dict.json").exists():
        splits = ", ".join(sorted(str(f.parent) for f in folder.glob("*/dataset_info.json"))) or "none found"
        raise DataError(f"{folder} holds several splits; name the folder of one of them ({splits})")
    if not (folder / "dataset_info.json").exists():
        raise DataError(
            f"{folder} is a folder but was not written by datasets' save_to_disk; name a data file in it"
        )
    datasets = _datasets()
    try:
        table = datasets.load_from_disk(str(folder))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} cannot be read ({_first_line(error)}); save the data set again") from None
    return table


def spans_of_table(table: Any, source: str, *, answers_required: bool) -> SpanData:
    missing = [c for c in ("question", "context", "answers") if c not in table.column_names]
    if missing and (missing != ["answers"] or answers_required):
        raise DataError(
            f"{source} has no column {' and '.join(missing)} (it has {', '.join(table.column_names)}); "
            "rename its columns to question, context and answers"
        )
    builder = SpanBuilder(source)
    kept = [c for c in ("id", "title", "question", "context", "answers") if c in table.column_names]
    for number, row in iterate(table, kept):
        try:
            add_row(builder, row, number=number, answers_required=answers_required)
        except Flaw as flaw:
            raise DataError(f"{source}: row {number}: {flaw}") from None
    try:
        return builder.build()
    except Flaw as flaw:
        raise DataError(f"{source}: {flaw}") from None


def texts_of_table(
    table: Any,
    source: str,
    *,
    kind: TextKind,
    columns: Columns,
    classes: tuple[str, ...] | None = None,
    labels_required: bool = True,
) -> TextData:
    """Texts with labels or scores; the classes are those the table declares, where it does."""
    found = columns.find(table.column_names, source, kind=kind, labels_required=labels_required)
    declared = getattr(table.features.get(found.label), "names", None)
    names = None
    if kind == "label" and isinstance(declared, list):
        names = {str(i): str(name) for i, name in enumerate(declared)} | {"-1": ""}
        classes = classes if classes is not None else tuple(map(str, declared))
    wanted = [name for name in (found.text, found.pair, found.label, found.id) if name]
    rows = ((f"{source}: row {number}", number, row) for number, row in iterate(table, wanted))
    if names is not None:
        # Numbers become the names they stand for; -1 is how a missing label is written.
        rows = (
            (place, number, row | {found.label: _declared(row[found.label], names)})
            for place, number, row in rows
        )
    return texts_of_rows(
        rows, source, kind=kind, columns=found, classes=classes, labels_required=labels_required
    )


def _declared(label: Any, names: dict[str, str]) -> Any:
    return names.get(str(label), label)


def iterate(table: Any, names: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The columns `names` row by row, numbered from 1."""
    number = 0
    # A thousand rows at a time: row by row is thirty times slower, all at once doubles the memory.
    for batch in table.select_columns(names).iter(batch_size=1000):
        for values in zip(*(batch[name] for name in names), strict=True):
            number += 1
            yield number, dict(zip(names, values, strict=True))


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            "data sets of the Hub need the package `datasets`: run `pip install 'bertvision[data]'`"
        ) from error
    return datasets


def hub_unreachable() -> bool:
    """True when the Hub cannot be reached: asking it all the same costs half a minute of retries."""
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


@contextmanager
def _no_retries_offline() -> Iterator[None]:
    """Tell `datasets` when there is no network, so that it looks only for a copy on this machine.

    It reads the variable HF_HUB_OFFLINE when it is imported; afterwards only its constants can be set.
    """
    from datasets import config
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    if hub_unreachable():
        constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
