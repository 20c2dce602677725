"""The evaluation of a run on texts with labels or scores: answers merged over windows, ensembles of their means."""

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
from bertvision.report.results import card_inputs
from bertvision.report.text_heads import write_text_results
from bertvision.report.text_results import TextEntry, TextScores, collect_texts, score_members
from bertvision.tasks.kinds import Task
from bertvision.tasks.text import TextAnswers, answer, joined_logits
from bertvision.train.run_folder import RunFolder
from bertvision.train.zoo import suited, zoo_members

__all__ = ["TextRun"]


def _is_control(head: Head) -> bool:
    """Whether it reads the last state alone."""
    return head.name.startswith(("cls_linear.", "cls_mlp.")) or bool(getattr(head.config, "last", False))


class TextRun(Stages[TextEntry]):
    """A run whose heads give a class or a score."""

    @staticmethod
    def settled(config: RunConfig, task: Task) -> RunConfig:
        if task.group > 1:
            raise ConfigError(
                "run fits heads on texts read together: leave out --apart, or use finetune, which trains a head for "
                "pairs encoded apart with its encoder"
            )
        if config.combine == "product":
            raise ConfigError("--combine product is for spans: labels and scores are joined by their mean")
        suited(config.states, zoo_members(config.fit, task), task)
        return dataclasses.replace(config, combine="mean")

    def evaluate(
        self, name: str, heads: Mapping[Path, Head], stage: RunFolder, logits: SplitLogits
    ) -> list[TextEntry]:
        answers = {
            split: {folder: self._answer(split, own) for folder, own in logits[split].items()}
            for split in self.eval_names
        }
        for folder in heads:
            write_text_results(
                folder, {split: (self.splits[split], logits[split][folder]) for split in self.eval_names}
            )
            write_text(folder / "README.md", card(*card_inputs(folder)))
        entries = []
        for label, members in by_label(name, heads, stage).items():
            infos = [info for folder in members if (info := stage.results["heads"].get(folder.name))]
            head = heads[members[0]]
            entries.append(
                TextEntry(
                    snapshot=name,
                    label=label,
                    kind="snapshot" if not infos else "control" if _is_control(head) else "head",
                    head=head,
                    folders=members,
                    infos=infos,
                    scores=self._score(
                        {split: [answers[split][folder] for folder in members] for split in self.eval_names}
                    ),
                )
            )
        return entries + self._ensembles(name, entries, logits)

    def collect(self, **measured: Any) -> dict[str, Any]:
        return collect_texts(self.entries, **measured)

    def _answer(self, split: str, logits: Any) -> TextAnswers:
        own = self.splits[split]
        return answer(own.windows, logits, own.texts, own.text_task)

    def _score(self, members: dict[str, list[TextAnswers]]) -> dict[str, TextScores]:
        return {split: score_members(found, self.splits[split].texts) for split, found in members.items()}

    def _ensembles(self, snapshot: str, entries: list[TextEntry], logits: SplitLogits) -> list[TextEntry]:
        joined = []
        for first, second, seeds, pairs in pairs_to_join(entries, lambda e: e.dev_score):
            members = {
                split: [
                    self._answer(
                        split,
                        joined_logits(
                            [logits[split][folder] for folder in pair], self.splits[split].text_task
                        ),
                    )
                    for pair in pairs
                ]
                for split in self.eval_names
            }
            joined.append(
                TextEntry(
                    snapshot=snapshot,
                    label=f"mean of {first.label} and {second.label}",
                    kind="ensemble",
                    head=None,
                    folders=[],
                    infos=[info for info in second.infos if info["seed"] in seeds],
                    scores=self._score(members),
                    members=[first.label, second.label],
                )
            )
        return joined
