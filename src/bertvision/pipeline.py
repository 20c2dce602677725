"""`run`: finetune, fit a zoo on every snapshot, evaluate, ensemble, report. Every stage can be killed and goes on.

OUT/config.yaml            the resolved settings, a recipe that repeats the run
OUT/finetune/snapshot-1/   encoder/ and head/ (and dev/, test/: logits and predictions of the head)
OUT/fit/snapshot-1/HEAD/   one folder a fitted head
OUT/results.json           every number of the report
OUT/report.html
"""

import dataclasses
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from bertvision.artifacts import check_output, read_json, write_json, write_text
from bertvision.config import dump_yaml, to_mapping
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder, Precision
from bertvision.errors import ConfigError
from bertvision.feed import Feed, FeedConfig, LiveFeed, open_feed
from bertvision.feed.choose import Source
from bertvision.feed.ranks import rank_and_world
from bertvision.heads.base import Head
from bertvision.heads.files import load_head
from bertvision.report.card import card
from bertvision.report.html import write_report
from bertvision.report.results import Entry, card_inputs, collect, write_head_results
from bertvision.tasks.span.decode import DecodeConfig
from bertvision.tasks.span.ensemble import combine
from bertvision.tasks.span.logits import SpanLogits
from bertvision.train.finetune import FinetuneConfig, tune
from bertvision.train.fit import FitConfig
from bertvision.train.scoring import SystemScores, logits_of, score_system
from bertvision.train.splits import Split, load_split
from bertvision.train.stage import Stage
from bertvision.train.zoo import fit_zoo, zoo_members

__all__ = ["RunConfig", "run"]

logger = logging.getLogger(__name__)

OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT")]


@dataclass(frozen=True)
class RunConfig:
    """Finetune an encoder, fit heads on its hidden states, evaluate, ensemble and report.

    Without --train the demo runs: the embedded encoder on the embedded data, offline, on a CPU.
    """

    encoder: str = "embedded"
    """embedded, a local folder in Hugging Face format, or a name on the Hub."""
    train: str = ""
    """SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT], demo:train or a saved datasets folder."""
    dev: str = ""
    """The same for dev: thresholds and the best head are chosen on it."""
    test: str = ""
    """The same for test, which nothing is chosen on; may be left out."""
    out: Path = Path("runs/latest")
    """Folder for everything the run writes."""
    max_train_examples: OptionalInt = None
    """Take only the first so many training questions."""
    max_dev_examples: OptionalInt = None
    """Take only the first so many dev questions."""
    max_test_examples: OptionalInt = None
    """Take only the first so many test questions."""
    seed: OptionalInt = None
    """Seed of the fine-tuning and of the order of data; overrides finetune.seed and fit.seed."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""
    combine: Literal["max", "mean", "product"] = "max"
    """How an ensemble joins its members' probabilities; max is the paper's."""
    overwrite: bool = False
    """Replace work in --out that was done with other settings."""
    tensorboard: bool = False
    """Write TensorBoard files beside metrics.jsonl."""
    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=WindowConfig)
    decode: Annotated[DecodeConfig, tyro.conf.arg(name="")] = field(default_factory=DecodeConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    fit: FitConfig = field(default_factory=FitConfig)
    feed: FeedConfig = field(default_factory=FeedConfig)

    def seeded(self) -> "RunConfig":
        """The same with `seed` handed down."""
        if self.seed is None:
            return self
        return dataclasses.replace(
            self,
            finetune=dataclasses.replace(self.finetune, seed=self.seed),
            fit=dataclasses.replace(self.fit, seed=self.seed),
        )


def run(config: RunConfig, *, command: str) -> dict[str, Any]:
    """Do the whole job; returns what results.json holds."""
    config = config.seeded()
    if not config.train or not config.dev:
        raise ConfigError("--train and --dev must both be given (or neither, which runs the demo)")
    if rank_and_world()[1] > 1:
        raise ConfigError("run works in one process: use finetune and fit, its stages, with several")
    zoo_members(config.fit)  # a mistyped head should fail now, not after the fine-tuning
    config.feed.reading.check_spans()
    began = time.monotonic()
    out = config.out
    check_output(out)
    encoder = Encoder.load(config.encoder, device=config.device, precision=config.precision)
    config.feed.reading.numbers(encoder.num_states)  # so should a layer there is not
    splits = _splits(config, encoder)
    record = _Record(config, command)
    record.begin()
    results = _Run(config, encoder, splits, out).results(record.command)
    results["seconds"] = record.seconds or time.monotonic() - began
    record.end()
    write_json(out / "results.json", results)
    write_report(results, out / "report.html")
    return results


def _splits(config: RunConfig, encoder: Encoder) -> dict[str, Split]:
    limits = {
        "train": config.max_train_examples,
        "dev": config.max_dev_examples,
        "test": config.max_test_examples,
    }
    sources = {"train": config.train, "dev": config.dev, "test": config.test}
    for name, source in sources.items():
        if source.startswith("store:"):
            raise ConfigError(
                f"--{name} {source} has no questions to ask: name the data, `fit --train` reads stores"
            )
    return {
        name: load_split(source, encoder, config.windows, max_examples=limits[name])
        for name, source in sources.items()
        if source
    }


class _Record:
    """config.yaml: the resolved settings as a recipe, under the command that gave them.

    It is written first only where there is none: a command that is refused because of its settings must not
    replace the record of the work that stands there. A repeated run keeps the command and the time of the first.
    """

    def __init__(self, config: RunConfig, command: str) -> None:
        self._path, self._config = config.out / "config.yaml", dataclasses.replace(config, overwrite=False)
        self.command, self.seconds = command, 0.0
        if self._path.is_file():
            first, _, rest = self._path.read_text(encoding="utf-8").partition("\n")
            if f"{first}\n{rest}" == self._text(first.removeprefix("# ")):
                self.command = first.removeprefix("# ")
                results = config.out / "results.json"
                self.seconds = read_json(results).get("seconds", 0.0) if results.is_file() else 0.0

    def _text(self, command: str) -> str:
        return dump_yaml(self._config, heading=f"{command}\nbertvision run --config {self._path}")

    def begin(self) -> None:
        if not self._path.exists():
            self.end()

    def end(self) -> None:
        write_text(self._path, self._text(self.command))


class _Run:
    """One run's stages, sharing the encoder, the splits and the feeds."""

    def __init__(self, config: RunConfig, encoder: Encoder, splits: dict[str, Split], out: Path) -> None:
        self.config, self.encoder, self.splits, self.out = config, encoder, splits, out
        self.eval_names = [name for name in ("dev", "test") if name in splits]
        self.entries: list[Entry] = []
        self.fits: list[Stage] = []

    def results(self, command: str) -> dict[str, Any]:
        about = {"name": self.encoder.name, "fingerprint": self.encoder.fingerprint}
        parameters = self.encoder.num_parameters
        geometry = (self.encoder.num_states, self.encoder.hidden)
        tuning, snapshots = self._finetune()
        for folder in snapshots:
            self._snapshot(folder)
        encoder = about | {"parameters": parameters, "states": geometry[0], "hidden": geometry[1]}
        return collect(
            self.entries,
            command=command,
            settings=to_mapping(self.config),
            encoder=encoder,
            splits=self.splits,
            finetune=tuning,
            fits=self.fits,
            out=self.out,
            device=str(self.encoder.device),
            precision=self.encoder.precision,
        )

    def _finetune(self) -> tuple[Stage | None, list[Path | None]]:
        """Snapshot folders in order; None stands for the encoder as it came."""
        config = self.config.finetune
        if config.epochs == 0:
            return None, [None]
        stage, folders = tune(
            self.encoder,
            self.splits["train"],
            folder=self.out / "finetune",
            config=config,
            feed=self.config.feed,
            overwrite=self.config.overwrite,
            tensorboard=self.config.tensorboard,
        )
        return stage, list(folders)

    def _snapshot(self, folder: Path | None) -> None:
        """Fit the zoo on one snapshot and evaluate everything on it."""
        name = folder.name if folder else "untuned"
        if folder is None:
            encoder, about = self.encoder, {"name": self.encoder.name}
        else:
            encoder = Encoder.load(
                str(folder / "encoder"), device=self.config.device, precision=self.config.precision
            )
            about = {"name": self.config.encoder, "path": f"../../../finetune/{name}/encoder"}
        feeds = _Feeds(encoder, self.config, self.splits)
        stage = fit_zoo(
            encoder,
            self.splits["train"],
            folder=self.out / "fit" / name,
            config=self.config.fit,
            encoder_about=about,
            feed=self.config.feed,
            dev=self.splits["dev"],
            dev_feed=lambda source: feeds("dev", source),
            decoding=self.config.decode,
            overwrite=self.config.overwrite,
            tensorboard=self.config.tensorboard,
        )
        self.fits.append(stage)
        heads = {
            stage.folder / head: load_head(stage.folder / head)[0].to(encoder.device)
            for head in stage.results["heads"]
        }
        if folder is not None:
            heads = {folder / "head": load_head(folder / "head")[0].to(encoder.device), **heads}
        self._evaluate(name, heads, stage, feeds)

    def _evaluate(self, name: str, heads: dict[Path, Head], stage: Stage, feeds: "_Feeds") -> None:
        logits = {split: self._logits(heads, stage, split, feeds) for split in self.eval_names}
        groups: dict[str, list[Path]] = {}
        for folder in heads:
            info = stage.results["heads"].get(folder.name)
            groups.setdefault(info["label"] if info else name, []).append(folder)
        entries = [
            self._entry(name, label, members, logits, heads, stage) for label, members in groups.items()
        ]
        self.entries += entries
        self._ensembles(name, entries, logits)

    def _logits(
        self, heads: dict[Path, Head], stage: Stage, split: str, feeds: "_Feeds"
    ) -> dict[Path, SpanLogits]:
        """Logits of all heads from one walk; from two where the zoo reads less than the snapshot's own head."""
        zoo = {path: head for path, head in heads.items() if path.parent == stage.folder or not feeds.cut}
        own = {path: head for path, head in heads.items() if path not in zoo}
        data = self.splits[split]
        logits = logits_of(own, data, split, lambda: feeds.whole(split))
        # A run that goes on walks over the states its fit has chosen, in their rounding.
        source = stage.choices.get("dev states") if split == "dev" else None
        return logits | logits_of(zoo, data, split, lambda: feeds(split, source))

    def _score(self, members: dict[str, list[SpanLogits]]) -> dict[str, SystemScores]:
        """Scores on dev, then on test at dev's thresholds."""
        scores = {"dev": score_system(members["dev"], self.splits["dev"], self.config.decode)}
        if "test" in members:
            scores["test"] = score_system(
                members["test"], self.splits["test"], self.config.decode, thresholds=scores["dev"].thresholds
            )
        return scores

    def _entry(
        self, snapshot: str, label: str, folders: list[Path], logits: dict[str, dict[Path, SpanLogits]],
        heads: dict[Path, Head], stage: Stage,
    ) -> Entry:  # fmt: skip
        scores = self._score(
            {split: [logits[split][folder] for folder in folders] for split in self.eval_names}
        )
        for i, folder in enumerate(folders):
            write_head_results(
                folder,
                {split: (s, i) for split, s in scores.items()},
                dev=self.splits["dev"].data.name,
                decode=self.config.decode,
            )
            write_text(folder / "README.md", card(*card_inputs(folder)))
        infos = [stage.results["heads"].get(folder.name) for folder in folders]
        head = heads[folders[0]]
        return Entry(
            snapshot=snapshot,
            label=label,
            kind="snapshot"
            if infos[0] is None
            else "control"
            if head.name.startswith("last_state")
            else "head",
            head=head,
            folders=folders,
            infos=[info for info in infos if info],
            scores=scores,
        )

    def _ensembles(
        self, snapshot: str, entries: list[Entry], logits: dict[str, dict[Path, SpanLogits]]
    ) -> None:
        """Best head with its snapshot, and the two best heads, seed by seed; chosen on dev."""
        heads = sorted((e for e in entries if e.kind == "head"), key=lambda e: -e.dev_f1)
        own = [e for e in entries if e.kind == "snapshot"]
        pairs = [(own[0], heads[0])] if own and heads else []
        pairs += [(heads[0], heads[1])] if len(heads) > 1 else []
        for first, second in pairs:
            seeds = [seed for seed in second.by_seed if first.kind == "snapshot" or seed in first.by_seed]
            pairs_by_seed = [
                (first.by_seed.get(seed, first.folders[0]), second.by_seed[seed]) for seed in seeds
            ]
            members = {
                split: [
                    combine(
                        [logits[split][folder] for folder in pair],
                        self.splits[split].windows,
                        how=self.config.combine,
                    )
                    for pair in pairs_by_seed
                ]
                for split in self.eval_names
            }
            if not seeds:
                continue  # the two heads share no seed that did not diverge
            label = f"{self.config.combine} of {first.label} and {second.label}"
            infos = [info for info in second.infos if info["seed"] in seeds]
            self.entries.append(
                Entry(
                    snapshot,
                    label,
                    "ensemble",
                    None,
                    [],
                    infos,
                    self._score(members),
                    members=[first.label, second.label],
                )
            )


class _Feeds:
    """Feeds of one encoder, opened when first asked for."""

    def __init__(self, encoder: Encoder, config: RunConfig, splits: dict[str, Split]) -> None:
        self.encoder, self.config, self.splits = encoder, config, splits
        self._kept: dict[str, Feed] = {}

    def __call__(self, name: str, source: Source | None = None) -> Feed:
        """Of one split; `source` where the fit has chosen it, else what suits one walk."""
        if name not in self._kept:
            split = self.splits[name]
            self._kept[name] = open_feed(
                self.encoder,
                split.windows,
                self.config.feed,
                label=f"states of {name}",
                passes=1,
                origin=split.origin,
                keep=False,
                source=source,
            )
        return self._kept[name]

    @property
    def cut(self) -> bool:
        """Whether fitted heads read only a part of the states."""
        return not self.config.feed.reading.whole(self.encoder.num_states)

    def whole(self, name: str) -> Feed:
        """All states, read once: for the snapshot's own head."""
        windows, tokens = self.splits[name].windows, self.config.feed.tokens_per_call
        return LiveFeed(self.encoder, windows, tokens_per_call=tokens)
