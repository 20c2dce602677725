"""The evaluation of a run on questions over paragraphs: decoding, thresholds tuned on dev, ensembles."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertvision.artifacts import write_text
from bertvision.errors import ConfigError
from bertvision.heads.base import Head
from bertvision.pipeline.config import RunConfig
from bertvision.pipeline.stages import SplitLogits, Stages, by_label, pairs_to_join
from bertvision.report.card import card
from bertvision.report.results import Entry, card_inputs, collect, write_head_results
from bertvision.tasks.kinds import Task
from bertvision.tasks.span.ensemble import combine
from bertvision.tasks.span.logits import SpanLogits
from bertvision.train.run_folder import RunFolder
from bertvision.train.scoring import SystemScores, score_system
from bertvision.train.splits import TextConfig

__all__ = ["SpanRun"]


class SpanRun(Stages[Entry]):
    """A run whose heads find answers in paragraphs."""

    @staticmethod
    def settled(config: RunConfig, task: Task) -> RunConfig:
        config.states.selection.check_spans()
        if dataclasses.replace(config.text, task="auto") != TextConfig():
            raise ConfigError(
                f"--text... says how texts with labels or scores are read, and {config.train} holds questions over "
                "paragraphs: leave it out"
            )
        return config

    def evaluate(
        self, name: str, heads: Mapping[Path, Head], stage: RunFolder, logits: SplitLogits
    ) -> list[Entry]:
        entries = [
            self._entry(name, label, members, logits, heads[members[0]], stage)
            for label, members in by_label(name, heads, stage).items()
        ]
        return entries + self._ensembles(name, entries, logits)

    def collect(self, **measured: Any) -> dict[str, Any]:
        return collect(self.entries, **measured)

    def _score(self, members: dict[str, list[SpanLogits]]) -> dict[str, SystemScores]:
        """Scores on dev, then on test at dev's thresholds."""
        scores = {"dev": score_system(members["dev"], self.splits["dev"], self.config.decode)}
        if "test" in members:
            scores["test"] = score_system(
                members["test"], self.splits["test"], self.config.decode, thresholds=scores["dev"].thresholds
            )
        return scores

    def _entry(
        self,
        snapshot: str,
        label: str,
        folders: list[Path],
        logits: SplitLogits,
        head: Head,
        stage: RunFolder,
    ) -> Entry:
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

    def _ensembles(self, snapshot: str, entries: list[Entry], logits: SplitLogits) -> list[Entry]:
        how, joined = self.config.combine, []
        for first, second, seeds, pairs in pairs_to_join(entries, lambda e: e.dev_score):
            members = {
                split: [
                    combine([logits[split][folder] for folder in pair], self.splits[split].windows, how=how)
                    for pair in pairs
                ]
                for split in self.eval_names
            }
            joined.append(
                Entry(
                    snapshot,
                    f"{how} of {first.label} and {second.label}",
                    "ensemble",
                    None,
                    [],
                    [info for info in second.infos if info["seed"] in seeds],
                    self._score(members),
                    members=[first.label, second.label],
                )
            )
        return joined
