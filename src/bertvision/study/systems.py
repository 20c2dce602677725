"""Where the systems of a study lie: their logits, which stay, and their records, which the report is made from.

OUT/tune/PART.seedN/        a fine-tuning          OUT/fit/PART.seedN/      a fit
OUT/logits/NAME/            dev.safetensors, holdout.safetensors
OUT/records/NAME/           about.json, dev.safetensors, holdout.safetensors
"""

import re
from pathlib import Path

from bertvision.artifacts import read_json, remove, write_json
from bertvision.study.about import About
from bertvision.study.judge import Judges
from bertvision.study.material import Material
from bertvision.study.records import LabelRecord
from bertvision.tasks.span.logits import SpanLogits
from bertvision.tasks.text.answers import answer
from bertvision.tasks.text.logits import TextLogits

__all__ = ["PARTS", "Systems", "folder_name"]

PARTS = ("dev", "holdout")


def folder_name(key: str, seed: int) -> str:
    """Of a system: its key in letters that every file system takes."""
    plain = key.replace("/", "--").replace("<", "-from-").replace("#", "..").replace(":", "-")
    return f"{re.sub(r'[^-A-Za-z0-9._@+=~]', '_', plain)}.seed{seed}"


class Systems:
    """Keeps and finds what systems answered."""

    def __init__(self, out: Path, material: Material, judges: Judges) -> None:
        self.out, self.material, self.judges = out, material, judges

    def record(self, key: str, seed: int) -> Path:
        return self.out / "records" / folder_name(key, seed)

    def logits(self, key: str, seed: int) -> Path:
        return self.out / "logits" / folder_name(key, seed)

    def has(self, key: str, seed: int, made: str) -> bool:
        """Whether a system has answered, made as `made` says (`About.made`)."""
        folder = self.record(key, seed)
        names = ("about.json", *(f"{part}.safetensors" for part in PARTS))
        if not all((folder / name).exists() for name in names):
            return False
        return read_json(folder / "about.json").get("made", "") in ("", made)  # older records do not say

    def seeds(self, key: str) -> list[int]:
        """Those a system was answered with."""
        found = self.out.glob(f"records/{folder_name(key, 0).removesuffix('.seed0')}.seed*/about.json")
        return sorted(int(path.parent.name.rpartition(".seed")[2]) for path in found)

    def about(self, key: str, seed: int) -> About:
        file = self.record(key, seed) / "about.json"
        return About.read(read_json(file), str(file))

    def load(self, key: str, seed: int, part: str) -> SpanLogits:
        """Its logits on dev or on what is held out."""
        split = self.material.part(part, "span")
        return SpanLogits.load(self.logits(key, seed) / f"{part}.safetensors", split.fingerprint)

    def keep(self, about: About, logits: dict[str, SpanLogits | TextLogits]) -> None:
        """Keep what a system gave for every part of the data; its record comes when it is decoded."""
        remove(self.record(about.key, about.seed))  # of other settings: half of it would pass for this one's
        for part, values in logits.items():
            split = self.material.part(part, about.task)
            file = self.logits(about.key, about.seed) / f"{part}.safetensors"
            record = self.record(about.key, about.seed) / f"{part}.safetensors"
            values.save(file, split.fingerprint)
            if isinstance(values, SpanLogits):
                self.judges.send(part, file, about.variant, record)
            else:
                found = answer(split.windows, values, split.texts, split.text_task)
                assert found.probabilities is not None
                spans = split.texts.spans
                assert spans is not None
                LabelRecord(found.probabilities[:, 1].astype("float32")).save(record, spans.fingerprint)
        write_json(self.record(about.key, about.seed) / "about.json", about.as_dict())

    def again(self, about: About, of: str) -> None:
        """Another decoding of a system whose logits are there."""
        remove(self.record(about.key, about.seed))
        for part in PARTS:
            file = self.logits(of, about.seed) / f"{part}.safetensors"
            self.judges.send(
                part, file, about.variant, self.record(about.key, about.seed) / f"{part}.safetensors"
            )
        write_json(self.record(about.key, about.seed) / "about.json", about.as_dict())
