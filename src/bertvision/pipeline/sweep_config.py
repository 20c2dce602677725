"""The settings of a sweep."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from bertvision.options import FIXED, FLAT, HIDDEN, POSITIONAL, arg
from bertvision.pipeline.config import DataArgs, TrainArgs
from bertvision.states.config import StatesConfig
from bertvision.train.config import FitConfig
from bertvision.train.search import SearchConfig


@dataclass(frozen=True, kw_only=True)
class SweepConfig(TrainArgs, DataArgs):
    """Search for the best head: trials chosen by what earlier ones scored on dev, or with --grid all combinations in
    one pass over the states.

    What is varied stands under space: in a recipe, or after --vary: lr=1e-4..1e-2:log size=64,386.
    The same command continues a killed one; given in several terminals it shares the trials.
    """

    encoder: Annotated[str, POSITIONAL, arg(metavar="ENCODER")] = "embedded"
    """A snapshot folder, a folder in Hugging Face format, a name on the Hub, or embedded."""
    train: str = ""
    dev: str = ""
    """Data the heads are scored on: its scores choose the trial and the epoch, so they flatter."""
    out: Path = Path("runs/sweep")
    """Folder for the study, its trials and the report."""
    space: Annotated[dict, FIXED, HIDDEN] = field(default_factory=dict)
    vary: tuple[str, ...] = ()
    """What is varied, over what the recipe says: NAME=LOW..HIGH[:log][:step=S][:points=N] or NAME=A,B,C. Names are
    options of the heads and of their training, and batch_size."""
    grid: bool = False
    """Fit every combination in one pass, without optuna; a range needs a step or points."""
    keep_heads: bool = False
    """Keep the heads of all trials, not only of the best."""
    search: Annotated[SearchConfig, FLAT] = field(default_factory=SearchConfig)
    fit: Annotated[FitConfig, FLAT] = field(default_factory=FitConfig)
    """Settings of the fits; `heads` is what is searched, and the best epoch is kept whatever `keep` says."""
    states: StatesConfig = field(default_factory=StatesConfig)
