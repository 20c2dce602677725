"""Run the plan's commands, each once: what is done is not done again, and what was killed goes on.

A command that changed, or that builds on one, is run again from its start.

OUT/settings.json        encoder and data
OUT/data/                the training questions, those held out, and parts
OUT/JOB.sSEED/           what the command writes
OUT/JOB.sSEED.dev/NAME/  scores and answers on dev of every system in it
OUT/JOB.sSEED.json       the command and what it printed; it exists when all of this is done
"""

import contextlib
import hashlib
import io
import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from papers.answers import condense
from papers.data import Data, write_json
from papers.plan import Plan, PlanError, Step

_SCORED = ("finetune", "fit", "ensemble")


class Missing(Exception):
    """A command needs data that nobody named."""


class Runner:
    """Commands of one plan in one folder; `settings` has encoder, train, dev and maybe cs224n and glue."""

    def __init__(
        self, plan: Plan, out: Path, settings: Mapping[str, str], *, more: Sequence[str] = ()
    ) -> None:
        self.plan, self.out, self.settings, self.more = plan, out, settings, list(more)
        self.data = Data(Path(settings["train"]), out / "data")
        self.stamp = cache(self._stamp)

    def run(self, steps: Iterable[Step]) -> None:
        """Run every step that is not done; of those whose data is missing say so."""
        steps = list(steps)
        for i, step in enumerate(steps, start=1):
            if self.is_done(step):
                continue
            try:
                words = self.plan.words(step, lambda name, seed=step.seed: self._place(name, seed))
            except Missing as error:
                _say(f"[{i}/{len(steps)}] {step.path} is left out: {error}")
                continue
            _say(f"[{i}/{len(steps)}] {step.path}: bertvision {' '.join(words)}")
            self._do(step, words)

    def is_done(self, step: Step) -> bool:
        path = self.out / f"{step.path}.json"
        return path.exists() and json.loads(path.read_text("utf-8"))["stamp"] == self.stamp(step)

    def _stamp(self, step: Step) -> str:
        """What a step's outcome depends on: its command and those it builds on."""
        known = {**self.settings, "out": ""}
        words = self.plan.words(step, lambda name: known.get(name, name))
        parts = [*words, *map(self.stamp, self.plan.needs(step))]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def _place(self, name: str, seed: int) -> str:
        """What stands for {NAME} in a command."""
        if name in ("encoder", "dev", "cs224n", "glue"):
            if not self.settings.get(name):
                raise Missing(f"it needs --{name}")
            return self.settings[name]
        if name.startswith("train@"):
            return str(self.data.part(float(name.partition("@")[2]), seed))
        if name in ("train", "tune"):
            return str(getattr(self.data, name)())
        if name == "null_weight":
            return self.data.null_weight()
        if not re.search(r"\.s\d+$", name):
            raise PlanError(f"the plan names {{{name}}}, which nothing stands for")
        if not (self.out / f"{name}.json").exists():
            raise Missing(f"it needs {name}")
        return str(self.out / name)

    def _do(self, step: Step, words: list[str]) -> None:
        work, scores = self.out / step.path, self.out / f"{step.path}.dev"
        record, verb = self.out / f"{step.path}.json", words[0]
        if record.exists():  # of another command, or made of what has changed: nothing of it counts
            record.unlink()
            shutil.rmtree(work, ignore_errors=True)
            shutil.rmtree(scores, ignore_errors=True)
        if verb == "eval":
            words = [*words, "--out", str(scores)]
        elif verb == "ensemble":  # the folder's name is the system's
            words = words if not self.plan.jobs[step.job].score else [*words, "--out", str(work / "ensemble")]
            work.mkdir(parents=True, exist_ok=True)
        else:
            words = [*words, "--out", str(work)]
        printed = self._call(words)
        if verb in _SCORED and self.plan.jobs[step.job].score:
            folder = work / "ensemble" if verb == "ensemble" else work
            self._call(["eval", str(folder), "--data", self.settings["dev"], "--out", str(scores)])
        if scores.exists():
            condense(scores)
        content = {"stamp": self.stamp(step), "command": ["bertvision", *words], "printed": printed}
        write_json(record, content)

    def _call(self, words: Sequence[str]) -> Any:
        """Run one command in this process; what it prints as JSON. A mistake ends it all, as on the command line."""
        from bertvision.cli import main

        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            main([*words, "--json", *self.more])
        return json.loads(said.getvalue())


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
