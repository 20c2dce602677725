"""Made-up results.json of the three kinds of tasks, and what a browser makes of a page."""

import random
from html.parser import HTMLParser
from typing import Any

from bertvision.tasks.metrics import LABEL, SCORE, SPAN

KINDS = ("span", "label", "score")
_METRICS = {"span": SPAN, "label": LABEL, "score": SCORE}
_FIRST = {"span": "tuned_f1", "label": "accuracy", "score": "pearson"}
_CLASSES = ("red", "green", "blue")
_SYSTEMS = (
    # name, kind, label, level of its scores between 0 and 1, parameters, seeds
    ("snapshot-1.0", "snapshot", "snapshot-1.0", 0.70, None, 0),
    ("s/last", "control", "linear on the last state", 0.701, 770, 3),
    ("s/adapter-64", "head", "adapter 64", 0.72, 25_346, 3),
    ("s/adapter-386", "head", "adapter 386 + skip", 0.74, 154_784, 3),
    ("s/mean", "head", "average pooling", 0.65, 771, 3),
    ("s/join", "ensemble", "mean of two", 0.745, 154_784, 3),
    ("nothing", "baseline", "always the same", 0.50, None, 0),
)


def make_results(kind: str = "span", *, test: bool = True) -> dict[str, Any]:
    """Results of seven systems; numbers come from a seed and are of no run."""
    draw = random.Random(kind)
    scale = 100 if kind == "span" else 1
    metric, splits = _FIRST[kind], ["dev", "test"] if test else ["dev"]
    known = dict(sorted(_METRICS[kind].items(), key=lambda item: (item[0] != metric, not item[1].selects)))

    def score(name: str, level: float, seeds: int) -> dict[str, Any]:
        mean = scale * ((level if known[name].higher else 1 - level) + draw.uniform(-0.01, 0.01))
        each = {str(i): mean + scale * d for i, d in enumerate((-0.004, 0.0, 0.004)[:seeds])}
        spread = {"sd": 0.004 * scale if seeds else None, "per_seed": each or None}
        return {"mean": mean, "interval": [mean - 0.02 * scale, mean + 0.02 * scale]} | spread

    def versus(level: float) -> dict[str, Any]:
        size = scale * (level - 0.7)
        one = {"difference": size, "low": size - 0.015 * scale, "high": size + 0.015 * scale}
        names = [name for name, m in known.items() if m.selects]
        found = {"baseline": "snapshot-1.0", "split": splits[-1], "metrics": dict.fromkeys(names, one)}
        return found | {"mcnemar_p": None if kind == "score" else 0.03}

    systems = [
        {
            "name": name, "kind": which, "label": label, "snapshot": None if which == "baseline" else "1.0",
            "parameters": size, "percent": size and 100 * size / 22_713_216,
            "total": size and size + 400 * (label == "adapter 64"),
            "flops_per_token": size and 2 * size, "seconds": size and 1.5, "seeds": list(range(seeds)) or None,
            "best": label.startswith("adapter 386"),
            "scores": {split: {m: score(m, level, seeds) for m in known} for split in splits},
            "versus": None if which in ("snapshot", "baseline") else versus(level),
        }
        for name, which, label, level, size, seeds in _SYSTEMS
    ]  # fmt: skip
    labels: dict[str, Any] = {
        "span": {"counts": {"answer": 480, "no answer": 320}},
        "label": {"counts": dict(zip(_CLASSES, (300, 250, 250), strict=True))},
        "score": {"range": {"low": 0.0, "mean": 2.5, "high": 5.0, "spread": 1.4}},
    }
    facts = {"examples": 800, "windows": 812, "tokens": 79_544} | labels[kind]
    classes = {"classes": list(_CLASSES)} if kind == "label" else {}
    epochs = range(1, 9)
    return {
        "schema": 2,
        "bertvision": "0.1.0",
        "command": "bertvision run --encoder made-up  # no numbers of a run",
        "created": "2026-02-03T04:05:06+00:00",
        "commit": "0123456789abcdef",
        "environment": {"python": "3.11.0", "device": "cpu"},
        "encoder": {"name": "org/made-up", "fingerprint": "f" * 32, "parameters": 22_713_216, "states": 7},
        "settings": {"states": {"layers": []}},
        "seconds": 100.0,
        "task": {"kind": kind, "metric": metric, "outputs": 2} | classes,
        "metrics": {
            name: {key: getattr(m, key) for key in ("title", "percent", "higher", "about")}
            for name, m in known.items()
        },
        "data": {split: {"name": f"made-up {split}"} | facts for split in ["train", *splits]},
        "finetune": {"lr": 1.5e-4, "schedule": "linear", "batch_size": 8, "epochs": 1.0, "seconds": 95.2},
        "fit": {"epochs": 8, "lr": 1e-3, "seconds": 71.4, "encode_seconds": 30.8, "states": ["memory"]},
        "systems": systems,
        "curves": {
            "finetune": [{"epoch": i / 40, "loss": 6 / (1 + i / 8), "lr": 1e-4 * (1 - i / 41)} for i in range(1, 41)],
            "fit": {s["name"]: [{"epoch": e, "loss": 2 / e, "score": scale * (0.7 - 0.1 / e)} for e in epochs]
                    for s in systems if s["seeds"] and s["kind"] != "ensemble"},
        },
        "layer_weights": {"s/adapter-386": [0.05, 0.05, 0.05, 0.1, 0.15, 0.25, 0.35], "s/mean": [1 / 7] * 7},
        "details": {name: {"seed": 1} | _details(kind, draw) for name in ("s/adapter-386", "snapshot-1.0")},
        "examples": _examples(kind),
    }  # fmt: skip


def _details(kind: str, draw: random.Random) -> dict[str, Any]:
    if kind == "span":
        return {"threshold": -0.31, "no_answer": {"slope": 0.8, "shift": 0.1}, "decode": {"n_best": 20}}
    if kind == "score":
        points = [[true, true + draw.gauss(0, 0.6)] for true in (draw.uniform(0, 5) for _ in range(300))]
        counts = [8 - abs(i - 8) for i in range(16)]
        return {"points": points, "errors": {"edges": [i / 4 - 2 for i in range(17)], "counts": counts}}
    bins = [
        {"low": i / 5, "high": (i + 1) / 5, "count": 0 if i < 2 else 40 * i}
        | {"confidence": i / 5 + 0.1, "accuracy": i / 5}
        for i in range(5)
    ]
    return {"confusion": [[123, 21, 6], [14, 101, 10], [5, 9, 111]], "calibration": bins}


def _examples(kind: str) -> list[dict[str, Any]]:
    won, lost = ({"head_right": right, "snapshot_right": not right} for right in (True, False))
    if kind == "span":
        context = "The Old Mill of Tarvin stands on the river Ebbe. A second mill, built in 1742, stands on the Sull."
        one = {"id": "q1", "texts": ["Which river does the Old Mill stand on?"], "context": context}
        return [
            one | {"truth": ["the river Ebbe", "Ebbe"], "head": "Ebbe", "snapshot": "Sull"} | won,
            one | {"truth": [], "head": "1742", "snapshot": ""} | lost,
        ]
    if kind == "label":
        one = {"id": "e1", "texts": ["It glows like a lamp", "in the dark"], "truth": "red"}
        return [one | {"head": "red", "snapshot": "blue"} | won]
    one = {"id": "e1", "texts": ["A man walks.", "Someone is walking."], "truth": 4.2}
    return [one | {"head": 4.0123, "snapshot": 2.5} | dict.fromkeys(won)]


def system(results: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in results["systems"] if one["name"] == name)


class Parsed(HTMLParser):
    """Rows of tables (the lines of their cells), text, tags and attributes; unclosed elements are an error."""

    EMPTY = frozenset({"meta", "link", "br", "img", "input", "hr", "wbr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self._text: list[str] = []
        self._open: list[str] = []
        self._cell = False
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    @property
    def text(self) -> str:
        """What a reader sees, spaces made one."""
        return " ".join("".join(self._text).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.EMPTY:
            self._open.append(tag)
        if tag == "wbr" and self._cell:  # a line may break there, and need not
            self.rows[-1][-1] = self.rows[-1][-1].removesuffix("\n")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._cell = True

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> is out of order"
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self._text.append(data)
        if self._cell:
            self.rows[-1][-1] += data + "\n"
