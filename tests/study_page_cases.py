"""A made-up study with every type of block, as crowded as a real one; no number of it was measured."""

import math
import random
from itertools import pairwise
from typing import Any

AXES = {
    "x": {"label": "GPU-seconds from the raw encoder", "log": True, "unit": "s"},
    "y": {"label": "F1 on dev"},
}
SPREAD = {
    "snapshot": "constant@0.{}",
    "head": "constant@1/adapter-{}-skip",
    "control": "last-state-mlp, {} wide",
}
SPREAD |= {"ensemble": "join of {} heads", "published": "paper, {} epochs", "other": "houlsby-{} + head"}


def crowd(count: int = 40, seed: int = 0) -> list[dict[str, Any]]:
    """Points of a cost figure: scores that rise with the logarithm of the time, many near each other."""
    draw = random.Random(seed)
    kinds = [*(["snapshot"] * 3), *(["head"] * 4), "control", "ensemble", "other", "other", "published"]
    points = []
    for i in range(count):
        kind = kinds[i % len(kinds)]
        seconds = math.exp(draw.uniform(math.log(40), math.log(1500)))
        score = 58 + 5.2 * math.log(seconds / 40) * draw.uniform(0.85, 1.0) + draw.gauss(0, 0.8)
        point = {"x": seconds, "y": min(score, 79.5), "kind": kind, "label": SPREAD[kind].format(i)}
        if i % 3 == 0:
            point |= {"low": point["y"] - 0.4, "high": point["y"] + 0.4}
        points.append(point)
    return points


def cost(count: int = 40) -> dict[str, Any]:
    lines_at = [
        {"y": 79.2, "label": "best full fine-tuning"},
        {"y": 78.9, "label": "best full fine-tuning − 0.3"},
    ]
    said = "Every system once: up and to the left is better. Bars: 95 % interval."
    points = crowd(count)
    return {"type": "scatter", "title": "F1 against GPU time", "caption": said, **AXES, "points": points,
            "front": True, "lines_at": lines_at}  # fmt: skip


def rows_table(count: int = 25) -> dict[str, Any]:
    draw = random.Random(1)
    columns = [{"name": "System", "align": "text"}, {"name": "snapshot", "align": "text"}]
    for group in ("threshold 0", "tuned threshold"):
        columns += [{"name": name, "align": "number", "group": group} for name in ("EM", "F1", "ΔF1")]
    columns += [
        {"name": n, "align": "number", "group": "cost"} for n in ("parameters", "FLOPs/token", "time")
    ]
    rows = []
    for i in range(count):
        kind = ("snapshot", "control", "head", "head", "ensemble")[i * 5 // count]
        cells: list[Any] = [
            {"text": f"{kind} {i} of a certain length", "sub": "3 seeds"},
            f"constant@{i % 3}",
        ]
        for _ in range(2):
            size = draw.gauss(0, 1)
            tone = "gain" if size > 0.5 else "loss" if size < -0.5 else "level"
            change = {"text": f"{size:+.1f}".replace("-", "−"), "sub": "−0.4 … +1.2", "tone": tone}
            cells += [
                f"{draw.uniform(60, 75):.1f}",
                {"text": f"{draw.uniform(65, 80):.1f}", "sub": "± 0.21"},
                change,
            ]
        cells += [
            f"{draw.randint(1000, 3_000_000):,}",
            {"text": f"{draw.uniform(1, 30):.1f} M", "tone": "muted"},
        ]
        cells.append(f"{draw.randint(2, 20)} min {draw.randint(0, 59)} s")
        rows.append({"cells": cells, "kind": kind, "strong": i == 12})
    said = "All systems at both thresholds, in percent; differences in points to the own snapshot."
    return {"type": "table", "caption": said, "columns": columns, "rows": rows}


def curve() -> dict[str, Any]:
    at = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 2]
    measured = [[x, 55 + 20 * (1 - math.exp(-2 * x))] for x in at]
    printed = [[x, 50 + 24 * (1 - math.exp(-2.2 * x))] for x in at]
    series = [
        {"name": "measured, three seeds", "kind": "snapshot", "points": measured,
         "band": [[x, y - 0.8, y + 0.8] for x, y in measured]},
        {"name": "published", "kind": "published", "points": printed, "dashed": True},
        {"name": "adapter-386-skip on it", "kind": "head", "points": [[x, y + 3 / (1 + x)] for x, y in measured]},
    ]  # fmt: skip
    axes = {"x": {"label": "epochs of fine-tuning"}, "y": {"label": "F1 on dev", "unit": "%"}}
    return {
        "type": "lines",
        "title": "The fine-tuning curve",
        "caption": "Constant rate.",
        **axes,
        "series": series,
    }


def bars(groups: list[str], kinds: list[str], top: float = 80.0) -> dict[str, Any]:
    draw = random.Random(2)
    series = []
    for kind in kinds:
        values: list[float | None] = [draw.uniform(top / 2, top) for _ in groups]
        if kind == "head":
            values[1] = None
        series.append({"name": f"the {kind}", "kind": kind, "values": values})
    return {"type": "bars", "title": "F1 by kind of question", "caption": "Tuned threshold.",
            "y": {"label": "F1 on dev"}, "groups": groups, "series": series}  # fmt: skip


def lengths() -> dict[str, Any]:
    edges = list(range(0, 420, 20))
    middle = [(a + b) / 2 for a, b in pairwise(edges)]
    counts = [[round(900 * math.exp(-(((x - m) / 60) ** 2))) for x in middle] for m in (120, 135)]
    series = [
        {"name": "all correct", "kind": "snapshot", "counts": counts[0]},
        {"name": "only the head", "kind": "head", "counts": counts[1]},
    ]
    return {"type": "histogram", "title": "Words of the paragraph", "caption": "Questions answered right.",
            "x": {"label": "words"}, "edges": edges, "series": series}  # fmt: skip


def differences(count: int = 10) -> dict[str, Any]:
    draw = random.Random(3)
    rows = []
    for i in range(count):
        size = draw.gauss(0.6, 0.9)
        rows.append(
            {
                "label": f"adapter-{64 + i} on constant@1",
                "difference": size,
                "low": size - 0.7,
                "high": size + 0.8,
            }
        )
    said = "Right of zero: better than the own snapshot on the same questions."
    return {
        "type": "intervals",
        "title": "Paired differences",
        "caption": said,
        "unit": "points F1",
        "rows": rows,
    }


def disagreements() -> dict[str, Any]:
    context = (
        "The market of Ebbe was moved to the quay in 1874, when the old square had become too small. " * 3
    )
    answers = [{"name": "head", "text": "1874", "right": True}, {"name": "snapshot", "text": "", "right": False},
               {"name": "second best", "text": "the quay", "right": False}]  # fmt: skip
    told = {"context": context, "gold": ["1874", "in 1874"], "answers": answers}
    return {
        "type": "examples",
        "items": [{"question": f"When was market {i} moved?", **told} for i in range(4)],
    }


QUESTION_WORDS = ["who", "what", "when", "where", "which", "why", "how", "other"]


def made_page() -> dict[str, Any]:
    """The whole study."""
    few = cost(9) | {"title": "F1 against parameters", "x": {"label": "trained parameters", "log": True}}
    few["points"] = [point | {"x": point["x"] * 1e5} for point in few["points"]]
    weights = bars(["input", *map(str, range(1, 13))], ["head"], 0.2) | {"title": "Layer weights"}
    words = "Set in words: `bertvision study --config study` wrote it, and nothing was tuned on dev."
    sections = [
        ("cost", "What quality costs", [cost(), few, few | {"title": "F1 against FLOPs"}]),
        ("scores", "The rows of the papers", [rows_table(), differences(), curve()]),
        ("kinds", "Kinds of questions", [bars(QUESTION_WORDS, ["snapshot", "head", "published"]), weights,
                                         bars(["has answer", "no answer"], ["snapshot", "head"])]),
        ("length", "Length of the paragraph", [lengths(), {"type": "text", "paragraphs": [words, words]}]),
        ("examples", "Where head and snapshot disagree", [disagreements()]),
        ("how", "How it was run", [{"type": "list", "items": [words, "The train set is a part of the official one."]},
                                   {"type": "code", "lines": ["bertvision study --config study \\", "  --out OUT"]}]),
    ]  # fmt: skip
    about = "One sentence that says what is shown here and on which questions, and one more on what to look at first."
    return {
        "schema": 1,
        "kind": "study",
        "bertvision": "0.1.0",
        "commit": "0123456789abcdef",
        "created": "2026-01-02T03:04:05+00:00",
        "command": "bertvision study --config study --encoder E --train T --dev D --out OUT",
        "title": "SQuAD 2.0, mpnet",
        "headline": "A head on 3/10 of an epoch comes within 0.3 F1 of full fine-tuning in 38 % of its time.",
        "lede": ["Against a snapshot at constant rate heads gain much; against a decayed one little.",
                 "All thresholds were tuned on a held-out part of `train`, never on dev."],
        "facts": [
            {"name": "GPU time", "value": "38 %", "note": "of the best full fine-tuning, for 0.3 F1 less"},
            {"name": "gain at 3/10", "value": "+9.8 EM", "note": "adapter-386-skip, threshold 0"},
            {"name": "gain when decayed", "value": "+0.6 F1", "note": "five seeds, interval +0.2 … +1.0"},
            {"name": "ensembles", "value": "+0.7 F1", "note": "over the best member"},
        ],
        "sections": [{"id": i, "title": title, "about": about, "blocks": blocks} for i, title, blocks in sections],
        "environment": {"torch": "2.13.0", "device": "a GPU", "seeds": [0, 1, 2], "precision": {"tuning": "bf16"}},
    }  # fmt: skip
