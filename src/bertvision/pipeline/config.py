"""The settings of a whole run."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from bertvision.data.windows import WindowConfig
from bertvision.encoder.device import Precision
from bertvision.states.config import StatesConfig
from bertvision.tasks.settings import DecodeConfig, TextConfig
from bertvision.train.config import FinetuneConfig, FitConfig

__all__ = ["RunConfig"]

OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT")]


@dataclass(frozen=True)
class RunConfig:
    """Finetune an encoder, fit heads on its hidden states, evaluate, ensemble and report.

    On questions over paragraphs, or on texts with labels or scores (`--config glue`). Without --train the demo runs:
    the embedded encoder on the embedded data, offline, on a CPU.
    """

    encoder: str = "embedded"
    """embedded, a local folder in Hugging Face format, or a name on the Hub."""
    train: str = ""
    """Questions: SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT], demo:train, a saved datasets folder. Texts with labels or
    scores: glue:TASK:FILE, cs224n:SET:FILE, answerable:QUESTIONS, .csv, .tsv, .jsonl (--text.label names a column)."""
    dev: str = ""
    """The same for dev: thresholds and the best head are chosen on it."""
    test: str = ""
    """The same for test, which nothing is chosen on; may be left out."""
    out: Path = Path("runs/latest")
    """Folder for everything the run writes."""
    max_train_examples: OptionalInt = None
    """Take only the first so many training examples."""
    max_dev_examples: OptionalInt = None
    """Take only the first so many dev examples."""
    max_test_examples: OptionalInt = None
    """Take only the first so many test examples."""
    seed: OptionalInt = None
    """Seed of the fine-tuning and of the order of data; overrides finetune.seed and fit.seed."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""
    combine: Literal["auto", "max", "mean", "product"] = "auto"
    """How an ensemble joins its members' probabilities; auto: max for spans, as in the paper, and the mean of labels
    and scores, which know no other."""
    overwrite: bool = False
    """Replace work in --out that was done with other settings."""
    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=WindowConfig)
    text: TextConfig = field(default_factory=TextConfig)
    decode: Annotated[DecodeConfig, tyro.conf.arg(name="")] = field(default_factory=DecodeConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    fit: FitConfig = field(default_factory=FitConfig)
    states: StatesConfig = field(default_factory=StatesConfig)

    def seeded(self) -> "RunConfig":
        """The same with `seed` handed down."""
        if self.seed is None:
            return self
        return dataclasses.replace(
            self,
            finetune=dataclasses.replace(self.finetune, seed=self.seed),
            fit=dataclasses.replace(self.fit, seed=self.seed),
        )
