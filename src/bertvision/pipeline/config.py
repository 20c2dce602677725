"""The settings of each flow; the verb of the same name has one flag per field. This module imports no torch."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from bertvision.data.texts import Columns
from bertvision.data.windows import WindowConfig
from bertvision.encoder.device import DeviceConfig
from bertvision.options import (
    FIXED,
    FLAT,
    HIDDEN,
    POSITIONAL,
    OptionalFloat,
    OptionalInt,
    OptionalPath,
    OptionalText,
    arg,
)
from bertvision.states.config import SourceConfig, StatesConfig
from bertvision.tasks.base import DecodeConfig, TextConfig
from bertvision.train.config import FinetuneConfig, FitConfig, MultitaskConfig, SearchConfig, TaskSpec

Folders = Annotated[tuple[Path, ...], POSITIONAL, arg(metavar="FOLDER ...")]


# ---- shared flags


@dataclass(frozen=True, kw_only=True)
class TrainArgs(DeviceConfig):
    """Flags of every flow that trains."""

    out: Path
    """Folder for everything that is written."""
    encoder: str = "embedded"
    """embedded, a local folder in Hugging Face format (or a snapshot's), or a name on the Hub."""
    overwrite: bool = False
    """Replace work in --out that was done with other settings."""
    windows: Annotated[WindowConfig, FLAT] = field(default_factory=WindowConfig)


@dataclass(frozen=True, kw_only=True)
class DataArgs:
    """Flags of every flow that trains on one dataset."""

    train: str
    """Questions: SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT], demo:train, a saved datasets folder. Texts with labels or
    scores: glue:TASK:FILE, cs224n:SET:FILE, answerable:QUESTIONS, .csv, .tsv, .jsonl (--text.label names a column)."""
    dev: str = ""
    """The same for dev: heads and snapshots are scored on it, and thresholds, epochs and the best head chosen."""
    max_train_examples: OptionalInt = None
    """Take only the first so many training examples."""
    max_dev_examples: OptionalInt = None
    """Take only the first so many dev examples."""
    text: TextConfig = field(default_factory=TextConfig)


@dataclass(frozen=True, kw_only=True)
class ScoreArgs(DeviceConfig):
    """Flags of every flow that scores trained heads."""

    folders: Folders
    """What fit, finetune, ensemble or run wrote (of a fit, all its heads); heads on one encoder share one pass."""
    data: str
    """SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT], demo:test or a saved datasets folder; for labels and scores
    glue:TASK:FILE, cs224n:SET:FILE, .csv, .tsv, .jsonl or hub:NAME[:SPLIT] with columns of texts and labels."""
    encoder: OptionalText = None
    """Where the encoder is now, if it moved."""
    max_examples: OptionalInt = None
    """Take only the first so many examples."""
    decode: Annotated[DecodeConfig, FLAT] = field(default_factory=DecodeConfig)
    text: Columns = field(default_factory=Columns)
    states: SourceConfig = field(default_factory=SourceConfig)


# ---- one class per flow


@dataclass(frozen=True, kw_only=True)
class RunArgs(TrainArgs, DataArgs):
    """Finetune an encoder, fit heads on its hidden states, evaluate, ensemble and report.

    On questions over paragraphs, or on texts with labels or scores (`--config glue`). Without --train the demo runs:
    the embedded encoder on the embedded data, offline, on a CPU.
    """

    train: str = ""
    test: str = ""
    """The same for test, which nothing is chosen on; may be left out."""
    out: Path = Path("runs/latest")
    """Folder for everything the run writes."""
    max_test_examples: OptionalInt = None
    """Take only the first so many test examples."""
    seed: OptionalInt = None
    """Seed of the fine-tuning and of the order of data; overrides finetune.seed and fit.seed."""
    combine: Literal["auto", "max", "mean", "product"] = "auto"
    """How an ensemble joins the probabilities of its members; auto: max for spans, as in the paper, and mean for labels
    and scores, which allow nothing else."""
    decode: Annotated[DecodeConfig, FLAT] = field(default_factory=DecodeConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    fit: FitConfig = field(default_factory=FitConfig)
    states: StatesConfig = field(default_factory=StatesConfig)

    def seeded(self) -> "RunArgs":
        """The same settings with `seed` passed on to the stages."""
        own = {} if self.seed is None else {"seed": self.seed}
        finetune, fit = (dataclasses.replace(stage, **own) for stage in (self.finetune, self.fit))
        return dataclasses.replace(self, finetune=finetune, fit=fit)


@dataclass(frozen=True, kw_only=True)
class FitArgs(TrainArgs, DataArgs):
    """Fit several heads in one pass over the states of a frozen encoder (a snapshot's folder, or any encoder).

    --heads takes heads and sets of them: papers, pooling+adapters, controls, beyond, each_layer, all. Under
    `accelerate launch` or torchrun several devices fit the heads together.
    """

    encoder: Annotated[str, POSITIONAL, arg(metavar="ENCODER")] = field()
    """A snapshot folder, a folder in Hugging Face format, a name on the Hub, or embedded."""
    with_encoder: bool = False
    """Keep the encoder in --out, beside its heads: one folder that can be moved. Of a snapshot with adapters, LoRA or
    tuned biases that is a few MB; the encoder it was tuned from is still needed."""
    fit: Annotated[FitConfig, FLAT] = field(default_factory=FitConfig)
    states: StatesConfig = field(default_factory=StatesConfig)


@dataclass(frozen=True, kw_only=True)
class SweepArgs(TrainArgs, DataArgs):
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
    """What is varied, over what the recipe says: NAME=LOW..HIGH[:log] or NAME=A,B,C. Names are
    options of the heads and of their training, and batch_size."""
    grid: bool = False
    """Fit every combination of lists in one pass, without optuna."""
    keep_heads: bool = False
    """Keep the heads of all trials, not only of the best."""
    search: Annotated[SearchConfig, FLAT] = field(default_factory=SearchConfig)
    fit: Annotated[FitConfig, FLAT] = field(default_factory=FitConfig)
    """Settings of the fits; `heads` is what is searched, and the best epoch is kept whatever `keep` says."""
    states: StatesConfig = field(default_factory=StatesConfig)


@dataclass(frozen=True, kw_only=True)
class FinetuneArgs(TrainArgs, DataArgs):
    """Tune an encoder on questions, or on texts with labels or scores, keeping snapshots at fractions of an epoch
    (--snapshots 0.3 1.0).

    --policy says what of it trains; --compare runs several policies on the same data and prints one table. Under
    `accelerate launch` or torchrun several devices tune it together.
    """

    compare: tuple[str, ...] = ()
    """Policies to run one after another, such as full,top-6,houlsby-64,lora-16; needs --dev."""
    inference: bool = False
    """Also time the last snapshot on dev, as it is used later."""
    finetune: Annotated[FinetuneConfig, FLAT] = field(default_factory=FinetuneConfig)


@dataclass(frozen=True, kw_only=True)
class MultitaskArgs(TrainArgs):
    """Tune one encoder for several tasks at once, a head for each; the recipe names them (`bertvision recipes qabert`).

    Every snapshot holds the encoder and the heads of all tasks: `bertvision predict` answers all of them.
    """

    tasks: Annotated[tuple[TaskSpec, ...], HIDDEN] = ()
    data: str = ""
    """The folder that stands for {data} in the recipe's sources."""
    max_train_examples: OptionalInt = None
    """Take only the first so many examples of each training set."""
    max_dev_examples: OptionalInt = None
    """Take only the first so many dev examples of each task."""
    finetune: Annotated[MultitaskConfig, FLAT] = field(default_factory=MultitaskConfig)


@dataclass(frozen=True, kw_only=True)
class TripletArgs(TrainArgs):
    """Bring texts of one kind together and others apart, before the encoder is tuned for its tasks.

    An anchor has one positive and up to five negatives: three of its own set and one of each other set. The snapshots
    are encoders for finetune, multitask and fit. Distances and violations are logged in metrics.jsonl.
    """

    sst: tuple[str, ...] = ()
    """Texts with classes, such as cs224n:sst:FILE; several are joined."""
    sts: tuple[str, ...] = ()
    """Pairs with a score from 0 to 5, such as cs224n:sts:FILE."""
    quora: tuple[str, ...] = ()
    """Pairs that are paraphrases or not, such as cs224n:quora:FILE."""
    form: Literal["softmin", "paper"] = "softmin"
    """softmin: every negative must be farther than the positive; paper: one far negative is enough."""
    margin: OptionalFloat = None
    """How much farther; by default 1 for softmin and 0 for paper, which has none."""
    held_out: float = 0.05
    """Part of the triplets that is not trained on and whose distances are reported; most of their texts also occur in
    other triplets, which are trained on."""
    max_examples: OptionalInt = None
    """Take only the first so many triplets, after mixing."""
    windows: Annotated[WindowConfig, FLAT] = field(default_factory=lambda: WindowConfig(max_seq_length=128))
    finetune: Annotated[FinetuneConfig, FLAT] = field(default_factory=lambda: FinetuneConfig(lr=1e-5))


@dataclass(frozen=True, kw_only=True)
class EvalArgs(ScoreArgs):
    """Score trained heads, ensembles or runs on a dataset by all metrics of their task; spans at threshold 0 and at
    the threshold stored with each."""

    out: OptionalPath = None
    """Write metrics.json, and the answers and logits in the folder eval, here, a folder a head."""
    other_encoder: bool = False
    """Read --encoder even if the heads were fitted on other weights of the same size (a later snapshot, say)."""
    second_best: bool = False
    """Of spans: score each head's second choice, with its first start and its first end in every window ruled out."""
    scorer: Literal["official", "wordpiece"] = "official"
    """wordpiece = the paper's scores on word pieces, which are not official SQuAD scores."""
    text_merge: Literal["stored", "mean", "min", "max", "any_null"] = "stored"
    """How the windows of long texts become one answer: as the head says, or another way (any_null: the papers')."""


@dataclass(frozen=True, kw_only=True)
class EnsembleArgs(ScoreArgs):
    """Join the probabilities (or scores) of several heads, score the result and its members, and tune its threshold.

    With --out the threshold stored with the ensemble is tuned on --data, so give dev. All heads must read the same
    windows.
    """

    out: OptionalPath = None
    """Write the ensemble here, to be used by eval and predict."""
    how: Literal["auto", "max", "mean", "product"] = "auto"
    """Element-wise max of the probabilities (the paper's), their mean or their product; auto: max for spans, mean for
    labels and scores, which allow nothing else."""
