"""The states that training reads, the same for one process and for several.

A source that is measured is chosen once, by rank 0, and kept (`RunFolder.choose`): whoever continues the work must
read states of the same rounding. Several processes would each keep a copy of all states in memory, so they do not; a
store is filled by rank 0 while the others wait.
"""

import dataclasses
from typing import Any

from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.states.base import States
from bertvision.states.config import Source, StatesConfig
from bertvision.states.extract import make_all
from bertvision.states.source import choose_source, open_states
from bertvision.states.stored import StoredStates
from bertvision.train.parallel import Parallel
from bertvision.train.run_folder import RunFolder
from bertvision.train.splits import Split

__all__ = ["check_source", "training_states"]


def check_source(states: StatesConfig, parallel: Parallel) -> None:
    """Refuse, before anything is written, a source that several processes cannot share."""
    if states.source == "memory" and not parallel.alone:
        raise ConfigError(
            f"--states.source memory would keep all states in each of {parallel.world} processes: use live or stored"
        )


def training_states(
    encoder: Encoder,
    train: Split,
    states: StatesConfig,
    stage: RunFolder,
    *,
    choice: str,
    label: str,
    passes: int,
) -> tuple[States, Source]:
    """The states of `train` and their source; `choice` is the name it is written down under."""
    parallel = stage.parallel
    opening: dict[str, Any] = {"label": label, "passes": passes, "origin": train.origin, "store": train.store}
    possible = states if parallel.alone else dataclasses.replace(states, memory_gb=0.0)
    chosen = stage.choose(choice, lambda: choose_source(encoder, train.windows, possible, **opening))

    def open_() -> States:
        return open_states(encoder, train.windows, states, **opening, source=chosen)

    def fill() -> None:
        source = open_()
        if isinstance(source, StoredStates):
            make_all(source.store, source, label=label)

    if chosen == "stored" and not parallel.alone:
        parallel.on_main(fill)
    return open_(), chosen
