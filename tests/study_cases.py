"""A made-up study: random but plausible answers of many systems to few questions, with the keys of a real one.

    made_study(tmp_path)            written to tmp_path/records and read back
    made_study()                    the same, from memory
    made_study(skip=("join/",))     without the systems whose keys contain any of these

A system has a skill between 0 and 1; with it, candidates are right and no answer wins where it should
more often.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.artifacts import write_json
from bertvision.data.examples import Answer, Example, SpanData
from bertvision.study.about import About
from bertvision.study.records import LabelRecord, SpanRecord, answerable_of, half_unanswerable_threshold
from bertvision.study.view import LabelSystem, Study, System
from bertvision.tasks.span.score import question_score

QUESTIONS = 60
HELD = 48
STARTS = ("Who", "What", "When", "Where", "Which", "Why", "How many", "In what year", "Name a")
SEEDS = (0, 1)
ENVIRONMENT = {"device": "a made-up device", "torch": "2.x", "precision": "bf16"}

CURVE = {
    0.1: 0.3,
    0.2: 0.42,
    0.3: 0.5,
    0.4: 0.54,
    0.5: 0.58,
    0.6: 0.6,
    0.7: 0.62,
    0.8: 0.64,
    0.9: 0.66,
    1: 0.68,
    2: 0.7,
}
DECAYED = {0.3: 0.58, 0.5: 0.64, 1: 0.72, 2: 0.77, 3: 0.76}
OTHERS = {
    "houlsby-64@1": ("houlsby:size=64", 0.66),
    "lora-16@1": ("lora:rank=16", 0.65),
    "cut-6@1": ("top:layers=6", 0.66),
    "cut-3@1": ("top:layers=3", 0.6),
    "cut-6+head@1": ("top:layers=6", 0.67),
}
HULBURD = {"full": 0.62, "top-6": 0.58, "top-3": 0.5, "top-1": 0.4, "top-0": 0.1,
           "houlsby-64": 0.56, "houlsby-768": 0.58, "houlsby-64+full": 0.63}  # fmt: skip
CACNN = {f"cacnn-{kind}-{size}-{layers}@1": 0.3 + 0.015 * layers
         for kind in ("simple", "ctx") for size in ("5x4", "3x3") for layers in (0, 6, 12)}  # fmt: skip
PAPER_HEADS = ["learned-pooling", "average-pooling", *(f"adapter-{size}{unshared}{skip}" for size in (64, 386)
               for unshared in ("", "-unshared") for skip in ("", "-skip")), "pooled-adapter-386", "twin-adapter-386",
               "cnn-rows=2"]  # fmt: skip
CONTROLS = ["last-state", "last-state-mlp"]
NEW_HEADS = ["ladder-64", "recurrent-64", "layer-attention-64", "head2toe", "biaffine-64"]
BELOW = ["constant@0.3", "constant@1", "constant@2", "decayed-1@1", "decayed-2@2", "decayed-0.3@0.3", "decayed-0.5@0.5",
         "untuned"]  # fmt: skip
LABEL_HEADS = ["tenney-small", "adapter-pooler-386", "adapter-pooler-386-pooling=average", "xception-abbr",
               "xception-abbr-cls", "xception"]  # fmt: skip


def made_data(questions: int, seed: int, *, unanswerable: float, name: str) -> SpanData:
    """Questions over paragraphs of random length, of which a share has no answer."""
    random = np.random.default_rng(seed)
    paragraphs, examples = [], []
    for q in range(questions):
        words = [f"{'abcdefgh'[int(random.integers(8))]}{i:02d}" for i in range(int(random.integers(12, 60)))]
        paragraphs.append(" ".join(words))
        answers: tuple[Answer, ...] = ()
        if q >= questions * unanswerable:
            first = int(random.integers(len(words) - 3))
            text = " ".join(words[first : first + int(random.integers(1, 4))])
            answers = (Answer(text, len(" ".join([*words[:first], ""]))),)
        question = f"{STARTS[q % len(STARTS)]} is number {q} of {name}?"
        examples.append(Example(f"{name}-{q}", question, q, answers, title=f"title {q // 6}"))
    return SpanData(paragraphs, examples, name)


def made_record(data: SpanData, skill: float, seed: int, *, bias: float = 0.0) -> SpanRecord:
    """Candidates that are right, near or anywhere, and differences that grow with `bias` and with no answer.

    Every question has its own difficulty, the same for all systems.
    """
    random = np.random.default_rng(seed)
    difficulty = np.random.default_rng(5).random(len(data))
    rows = []
    for q, example in enumerate(data.examples):
        context = data.context(example)
        known = skill + 0.25 * random.normal() > difficulty[q]
        if example.answers and (known or random.random() < 0.3):
            begin = example.answers[0].start
            end = begin + len(example.answers[0].text) + (0 if known else 4)
        else:
            begin = 4 * int(random.integers(len(context) // 4))
            end = begin + 3
        end = min(end, len(context))
        side = (-1 if example.answerable else 1) * (1 if known else -0.5)
        rows.append(
            (3 * side + random.normal() + bias, *question_score(example, context[begin:end]), begin, end)
        )
    table = np.array(rows)
    diff, exact, f1 = table[:, :3].T.astype(np.float32)
    return SpanRecord(diff, exact, f1, table[:, 3:].astype(np.int32))


def made_labels(data: SpanData, skill: float, seed: int) -> LabelRecord:
    random = np.random.default_rng(seed)
    side = np.where(answerable_of(data), -1.0, 1.0) * skill * 2 + random.normal(size=len(data))
    return LabelRecord((1 / (1 + np.exp(-side))).astype(np.float32))


def _tuned(snapshot: str, policy: str = "full", **more: Any) -> dict[str, Any]:
    """Fields of a tuning, read off the snapshot's name."""
    family, _, at = snapshot.rpartition("@")
    if not family:
        return {"snapshot": snapshot, **more}
    length = float(family.rpartition("-")[2]) if family.startswith("decayed-") else max(1.0, float(at))
    return {
        "snapshot": snapshot,
        "policy": policy,
        "schedule": "constant" if family == "constant" else "linear",
        "lr": 1e-5 if family == "constant" else 5e-5,
        "epochs": length,
        "batch_size": 16,
        "tune_seconds": 200.0 * float(at),
        "encoder_flops_per_token": 170_000_000,
        **more,
    }


def _snapshot(snapshot: str, policy: str = "full", experiment: str = "tunings", **more: Any) -> About:
    trainable = {"full": 108_000_000, "head": 1538}.get(policy, 2_000_000)
    return About(
        experiment, "snapshot", snapshot, trainable=trainable, parameters=1538, flops_per_token=3072,
        inference_seconds=12.0, peak_bytes=9_000_000_000,
        history=tuple({"step": n, "epoch": n / 10, "loss": 3.0 / n, "lr": 1e-5} for n in (1, 2, 3)),
        **_tuned(snapshot, policy, **more),
    )  # fmt: skip


def _head(snapshot: str, label: str, experiment: str = "heads", **more: Any) -> About:
    size = 1538 if label.startswith("last-state") else 20_000 + 37 * sum(map(ord, label))
    weights: tuple[float, ...] = ()
    if "pool" in label and "average" not in label:
        raw = np.exp(np.linspace(0, 2, 13))
        weights = tuple((raw / raw.sum()).tolist())
    values: dict[str, Any] = {
        "parameters": size, "trainable": size, "flops_per_token": 2 * size, "fit_seconds": 20.0 + size / 1e4,
        "inference_seconds": 12.0 + size / 1e5, "peak_bytes": 3_000_000_000, "layer_weights": weights,
        "history": ({"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.5}),
    } | more  # fmt: skip
    kind = "control" if label in CONTROLS else "head"
    return About(experiment, kind, label, **_tuned(snapshot, **values))


def cases() -> Iterator[tuple[About, float]]:
    """What a study has, with the skill of each."""
    skills = {"untuned": 0.02}
    skills |= {f"constant@{at:g}": skill for at, skill in CURVE.items()}
    skills |= {f"decayed-{at:g}@{at:g}": skill for at, skill in DECAYED.items()}
    for snapshot, skill in skills.items():
        if snapshot != "untuned":
            yield _snapshot(snapshot), skill
    for snapshot, (policy, skill) in OTHERS.items():
        yield _snapshot(snapshot, policy, "policies"), skill
    for name, skill in HULBURD.items():
        policy = {"full": "full", "top-0": "head"}.get(name, name)
        yield _snapshot(f"hulburd-{name}@1", policy, "hulburd", data_fraction=0.2), skill
    for snapshot, skill in CACNN.items():
        yield _snapshot(snapshot, "top", "cacnn", data_fraction=0.1), skill
    for snapshot in BELOW:
        skill = skills[snapshot]
        for place, label in enumerate([*PAPER_HEADS, *CONTROLS, *NEW_HEADS]):
            gain = (0.05 if snapshot.startswith("constant") else 0.01) * (1 + place % 3) / 2
            gain = 0.2 if snapshot == "untuned" else gain / 3 if label in CONTROLS else gain
            yield _head(snapshot, label), skill + gain
    for fraction in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7):
        yield (
            _head("constant@1", "adapter-386-skip", "fractions", data_fraction=fraction),
            0.6 + 0.15 * fraction,
        )
    yield _head("constant@1", "adapter-386-skip", "transfer", fitted_on="constant@0.3"), 0.69
    for name, members, how, skill in (
        ("paper-0.3", ("constant@0.3", "constant@0.3/adapter-386-skip"), "max", 0.57),
        ("paper-1", ("constant@1", "constant@1/adapter-386"), "max", 0.74),
        ("paper-1-mean", ("constant@1", "constant@1/adapter-386"), "mean", 0.745),
        ("decayed-2", ("decayed-2@2", "decayed-2@2/adapter-386-skip"), "mean", 0.79),
    ):
        yield About("ensembles", "ensemble", name, members=members, how=how, inference_seconds=25.0), skill
    for at in ("0.3", "1"):
        base = skills[f"constant@{at}"]
        yield _snapshot(f"constant@{at}", variant="second"), base / 3
        yield _head(f"constant@{at}", "adapter-386", variant="second"), base / 3
        yield _snapshot(f"constant@{at}", variant="bertvision"), base - 0.04
        yield _head(f"constant@{at}", "adapter-386", variant="bertvision"), base


def label_cases() -> Iterator[tuple[About, float]]:
    """Systems of answer / no answer."""
    history = tuple({"epoch": e, "loss": 0.7 / e, "score": 0.6 + 0.04 * e, "seconds": 9.0} for e in (1, 2, 3))
    for at in (0.2, 1.0):
        snapshot = f"pooled@{at:g}"
        about = _snapshot(snapshot, experiment="answerable")
        yield replace(about, task="answerable"), 0.2 + 0.3 * at
        for place, label in enumerate(LABEL_HEADS):
            about = _head(snapshot, label, "answerable", history=history)
            yield replace(about, task="answerable"), 0.25 + 0.3 * at + 0.03 * place


def made_study(
    tmp_path: Path | None = None, *, seeds: Sequence[int] = SEEDS, skip: Sequence[str] = ()
) -> Study:
    """The whole study; of ensembles and other decodings one seed."""
    dev = made_data(QUESTIONS, 1, unanswerable=0.5, name="dev")
    holdout = made_data(HELD, 2, unanswerable=1 / 3, name="holdout")
    held = answerable_of(holdout)
    systems: list[System | LabelSystem] = []
    for place, (about, skill) in enumerate([*cases(), *label_cases()]):
        if any(part in about.key for part in skip):
            continue
        single = about.kind == "ensemble" or about.variant or about.experiment in ("hulburd", "cacnn")
        for seed in seeds[:1] if single else seeds:
            told = replace(
                about, seed=seed, environment=ENVIRONMENT, commit="0123abc",
                command=f"bertvision study --config study --out out --only {about.experiment}",
            )  # fmt: skip
            number, draw = f"{len(systems):04d}", 1000 * place + seed
            if about.task == "answerable":
                systems.append(LabelSystem(told, made_labels(dev, skill, draw), number))
                continue
            kept = made_record(holdout, skill, draw + 500, bias=-0.5)
            threshold = half_unanswerable_threshold(kept, held)
            systems.append(System(told, made_record(dev, skill, draw, bias=-0.5), kept, number, threshold))
    if tmp_path is None:
        return Study.of(dev, holdout, systems)
    for system in systems:
        write_system(tmp_path, system, dev, holdout)
    return Study.load(tmp_path, dev, holdout)


def write_system(folder: Path, system: System | LabelSystem, dev: SpanData, holdout: SpanData) -> None:
    """As a study leaves it on disk."""
    place = folder / "records" / system.number
    write_json(place / "about.json", system.about.as_dict())
    system.dev.save(place / "dev.safetensors", dev.fingerprint)
    if isinstance(system, System) and system.holdout is not None:
        system.holdout.save(place / "holdout.safetensors", holdout.fingerprint)
