"""A made-up run on labels or scores, collected as a real one is; only its numbers are invented."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from text_cases import make_texts, make_windows

from bertvision.data.texts import TextData
from bertvision.data.windows import WindowConfig
from bertvision.heads import Geometry, parse_head
from bertvision.report.text_results import TextEntry, collect_texts, score_members
from bertvision.tasks.text import TextAnswers, TextTask, task_of, truth
from bertvision.tasks.text.answers import softmax
from bertvision.train.splits import Split


def made_up_answers(seed: int, data: TextData, task: TextTask, *, skill: float) -> TextAnswers:
    """Answers that are right about as often as `skill` says, or scores that are nearer the higher it is."""
    random = np.random.default_rng(seed)
    ids, right = [example.id for example in data.examples], truth(data)
    if data.kind == "score":
        return TextAnswers(ids, task, None, right + random.normal(0, 3 * (1 - skill), len(data)))
    logits = random.normal(0, 1, (len(data), len(data.classes)))
    logits[np.arange(len(data)), right] += 4 * skill - 1
    probabilities = softmax(logits)
    return TextAnswers(ids, task, probabilities, probabilities.argmax(axis=1))


def make_split(data: TextData) -> Split:
    return Split(data, make_windows([1] * len(data)), "f" * 32, WindowConfig(), task=task_of(data))


def make_entry(
    label: str, kind: Any, splits: dict[str, Split], *, skill: float, seeds: int = 1, head: str = ""
) -> TextEntry:
    """A system as a run would have it; `head` is a spec of a label head on a made-up encoder."""
    task = splits["dev"].text_task
    geometry = Geometry(states=7, hidden=24, outputs=task.outputs, unit=task.unit, pooled=True)
    history = [{"epoch": e, "loss": 1 / e, "score": skill - 0.2 / e} for e in range(1, 5)]
    infos = [{"label": label, "seed": s, "seconds": 1.5 + s, "history": history} for s in range(seeds)]
    first = zlib.crc32(label.encode()) % 1000
    scores = {}
    for name in splits.keys() - {"train"}:
        data = splits[name].texts
        members = [made_up_answers(first + s, data, task, skill=skill) for s in range(seeds)]
        scores[name] = score_members(members, data)
    made = parse_head(head).build(geometry, seed=0) if head else None
    return TextEntry("snapshot-1.0", label, kind, made, [], infos if kind != "snapshot" else [], scores)


def make_run(
    *, classes: int, examples: int = 400, test: bool = True, snapshot: bool = True
) -> dict[str, Any]:
    """Results of a snapshot, a control and two heads with three seeds each."""
    names = ["train", "dev", "test"] if test else ["train", "dev"]
    splits = {
        name: make_split(make_texts(i, examples=examples, classes=classes)) for i, name in enumerate(names)
    }
    entries = [
        make_entry("cls linear", "control", splits, skill=0.74, seeds=3, head="cls_linear"),
        make_entry("tenney small", "head", splits, skill=0.86, seeds=3, head="tenney_small"),
        make_entry("adapter pooler", "head", splits, skill=0.7, seeds=3, head="adapter_pooler:size=8"),
    ]
    if snapshot:
        entries.insert(0, make_entry("snapshot-1.0", "snapshot", splits, skill=0.7, head="cls_linear"))
    return collect_texts(
        entries,
        command="bertvision run  # made-up numbers",
        settings={"finetune": {}, "fit": {"epochs": 4, "lr": 1e-3}},
        encoder={"name": "made-up", "fingerprint": "f" * 32, "parameters": 10_000, "states": 7, "hidden": 24},
        splits=splits,
        finetune=None,
        fits=[],
        out=Path("runs"),
        device="cpu",
        precision="float32",
    )
