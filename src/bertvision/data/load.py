"""One way in: a source as the user writes it becomes a `SpanData`."""

from pathlib import Path

from bertvision.data.examples import SpanData
from bertvision.errors import ConfigError, DataError

__all__ = ["SOURCES", "load_span_data"]

SOURCES = (
    "a .json file in SQuAD form, .jsonl, .csv, hub:NAME[:SPLIT], demo:train|dev|test "
    "or a folder saved by datasets"
)
_DEMO_SPLITS = ("train", "dev", "test")


def load_span_data(
    source: str, *, max_examples: int | None = None, answers_required: bool = True
) -> SpanData:
    """Load questions over paragraphs.

    Args:
        source: A path ending in .json (SQuAD v1.1 or v2.0), .jsonl or .csv; a folder written by `datasets`;
            hub:NAME[:SPLIT]; or demo:train, demo:dev, demo:test, the embedded set.
        max_examples: Take only the first so many questions.
        answers_required: False where the data is only predicted on; a file may then leave out its answers.
    """
    if max_examples is not None and max_examples < 1:
        raise ConfigError(
            f"--max-...-examples must be at least 1, not {max_examples}; leave it out to take all of {source}"
        )
    data = _load(source, answers_required=answers_required)
    if max_examples is not None and max_examples < len(data):
        data = data.take(range(max_examples))
    return data


def _load(source: str, *, answers_required: bool) -> SpanData:
    if source.startswith("demo:"):
        return _load_demo(source.removeprefix("demo:"))
    if source.startswith("hub:"):
        from bertvision.data.hub import read_hub

        name, _, split = source.removeprefix("hub:").partition(":")
        if not name:
            raise ConfigError(
                "hub: needs the name of a data set, for example hub:rajpurkar/squad_v2:validation"
            )
        return read_hub(name, split=split or "train", answers_required=answers_required)
    path = Path(source).expanduser()
    if path.is_dir():
        from bertvision.data.hub import read_saved

        return read_saved(path, answers_required=answers_required)
    match path.suffix.lower():
        case ".json":
            from bertvision.data.squad import read_squad

            return read_squad(path, answers_required=answers_required)
        case ".jsonl":
            from bertvision.data.tabular import read_jsonl

            return read_jsonl(path, answers_required=answers_required)
        case ".csv":
            from bertvision.data.tabular import read_csv

            return read_csv(path, answers_required=answers_required)
    raise DataError(f"{source!r} is not a data set bertvision can read; give {SOURCES}")


def _load_demo(split: str) -> SpanData:
    if split not in _DEMO_SPLITS:
        raise ConfigError(
            f"the embedded set has no part {split!r}; choose one of demo:train, demo:dev and demo:test"
        )
    from bertvision.data.demo import demo_data

    return demo_data(split)
