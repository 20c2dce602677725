"""Several tasks over one encoder, as a recipe names them.

    tasks:
      - {name: sst, train: ["cs224n:sst:{data}/ids-sst-train.csv"], dev: ..., head: minbert}
      - {name: quora, train: [...], dev: ..., head: minbert, loss: bce, subset: 8000, sampling: weighted}

`{data}` is a folder that the command names. Each task has a head, a loss, a prompt and a way to draw its examples; the
encoder is one.
"""

from collections.abc import Sequence

from bertvision.data.load import load_data
from bertvision.data.texts import TextData, join_texts
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.tasks.settings import PLAIN, TextConfig
from bertvision.train.config import TaskSpec
from bertvision.train.job import Job
from bertvision.train.splits import Split, load_split, window_split

__all__ = ["load_jobs", "load_joined"]


def load_jobs(
    specs: Sequence[TaskSpec],
    encoder: Encoder,
    windows: WindowConfig,
    *,
    data: str = "",
    max_examples: int | None = None,
    max_dev_examples: int | None = None,
) -> list[Job]:
    """The tasks with their data in windows; `data` stands where their sources say {data}."""
    jobs = []
    for spec in specs:
        train = _train(spec, encoder, windows, data, max_examples)
        dev = None
        if spec.dev:
            dev = load_split(
                _placed(spec.dev, data), encoder, windows, max_examples=max_dev_examples, like=train
            )
        drawn = {name: getattr(spec, name) for name in ("batch_size", "sampling", "subset", "weight", "bins")}
        jobs.append(Job(train, dev, spec.name, spec.head, **drawn))
    return jobs


def _train(
    spec: TaskSpec, encoder: Encoder, windows: WindowConfig, data: str, max_examples: int | None
) -> Split:
    """The joined training sets; the classes are those of the first."""
    if len(spec.train) == 1:
        source = _placed(spec.train[0], data)
        return load_split(source, encoder, windows, max_examples=max_examples, text=spec)
    joined = load_joined([_placed(source, data) for source in spec.train], spec, max_examples=max_examples)
    return window_split(joined, encoder, windows, text=spec)


def load_joined(
    sources: Sequence[str], text: TextConfig = PLAIN, *, max_examples: int | None = None
) -> TextData:
    """Several sets of texts as one; the classes are those of the first."""
    parts: list[TextData] = []
    for source in sources:
        found = load_data(
            source,
            columns=text.columns,
            task=text.task,
            classes=parts[0].classes if parts and parts[0].classes else None,
            max_examples=max_examples,
        )
        if not isinstance(found, TextData):
            raise ConfigError(
                f"{source} has questions, which cannot be joined or mined: name texts with labels"
            )
        parts.append(found)
    return join_texts(parts)


def _placed(source: str, data: str) -> str:
    if "{data}" in source and not data:
        raise ConfigError(f"the recipe names {source}: say with --data which folder {{data}} is")
    return source.replace("{data}", data.rstrip("/"))
