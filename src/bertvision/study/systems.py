"""Where the systems of a study lie: their logits, which stay, and their records, which the report is made from.

OUT/tune/PART.seedN/        a fine-tuning          OUT/fit/PART.seedN/      a fit
OUT/logits/NAME/            dev.safetensors, holdout.safetensors
OUT/records/NAME/           about.json, dev.safetensors, holdout.safetensors
"""

from pathlib import Path

from bertvision.artifacts import read_json, remove, write_json
from bertvision.study.about import About
from bertvision.study.judge import Judges
from bertvision.study.material import Material
from bertvision.study.names import folder_name
from bertvision.study.records import LabelRecord
from bertvision.tasks.span.logits import SpanLogits
from bertvision.tasks.text.answers import answer
from bertvision.tasks.text.logits import TextLogits

__all__ = ["PARTS", "Systems"]

PARTS = ("dev", "holdout")


class Systems:
    """Keeps and finds what systems answered."""

    def __init__(self, out: Path, material: Material, judges: Judges) -> None:
        self.out, self.material, self.judges = out, material, judges
        self._sent: dict[tuple[str, int], About] = {}
        """What is decoded now, or has been: its record may not be there yet."""

    def record(self, key: str, seed: int) -> Path:
        return self.out / "records" / folder_name(key, seed)

    def logits(self, key: str, seed: int) -> Path:
        return self.out / "logits" / folder_name(key, seed)

    def has(self, key: str, seed: int, made: str, older: str | None = None) -> bool:
        """Whether a system has answered, made as `made` says (`About.made`).

        `older` is what a record of an earlier version must say, whose `made` has no dot: "" anything.
        """
        if (key, seed) in self._sent:
            return self._sent[key, seed].made == made
        folder = self.record(key, seed)
        names = ("about.json", *(f"{part}.safetensors" for part in PARTS))
        if not all((folder / name).exists() for name in names):
            return False
        found = read_json(folder / "about.json").get("made", "")
        if found in ("", made):  # the oldest do not say
            return True
        return older is not None and "." not in found and older in ("", found)

    def has_logits(self, key: str, seed: int) -> bool:
        """Whether it can be joined and decoded; records that were carried here come without."""
        return all((self.logits(key, seed) / f"{part}.safetensors").exists() for part in PARTS)

    def seeds(self, key: str) -> list[int]:
        """Those a system was answered with."""
        found = self.out.glob(f"records/{folder_name(key, 0).removesuffix('.seed0')}.seed*/about.json")
        there = {int(path.parent.name.rpartition(".seed")[2]) for path in found}
        return sorted(there | {seed for sent, seed in self._sent if sent == key})

    def about(self, key: str, seed: int) -> About:
        if (key, seed) in self._sent:
            return self._sent[key, seed]
        file = self.record(key, seed) / "about.json"
        return About.read(read_json(file), str(file))

    def load(self, key: str, seed: int, part: str) -> SpanLogits:
        """Its logits on dev or on what is held out."""
        split = self.material.part(part, "span")
        return SpanLogits.load(self.logits(key, seed) / f"{part}.safetensors", split.fingerprint)

    def keep(self, about: About, logits: dict[str, SpanLogits | TextLogits]) -> None:
        """Keep what a system gave for every part of the data; its record comes when it is decoded."""
        self._forget(about)  # of other settings: half of it would pass for this one's
        place, record = self.logits(about.key, about.seed), self.record(about.key, about.seed)
        for part, values in logits.items():
            split = self.material.part(part, about.task)
            values.save(place / f"{part}.safetensors", split.fingerprint)
            if isinstance(values, TextLogits):
                found = answer(split.windows, values, split.texts, split.text_task)
                spans = split.texts.spans
                assert spans is not None
                answered = LabelRecord.of(found)
                answered.save(record / f"{part}.safetensors", spans.fingerprint)
        if about.task == "span":
            self._send(about, place)
        else:
            write_json(record / "about.json", about.as_dict())  # last: it says that all is there

    def again(self, about: About, of: str) -> None:
        """Another decoding of a system whose logits are there."""
        self._forget(about)
        self._send(about, self.logits(of, about.seed))

    def _forget(self, about: About) -> None:
        remove(
            self.record(about.key, about.seed) / "about.json"
        )  # first: what is left of it counts for nothing
        remove(self.record(about.key, about.seed))

    def _send(self, about: About, logits: Path) -> None:
        self._sent[about.key, about.seed] = about
        self.judges.send(logits, about.variant, self.record(about.key, about.seed), about.as_dict())
