"""What the tests of fine-tuning share: short runs of `tune`, toy texts with labels or scores, and a plain loop.

The loop is nothing but torch and transformers: texts come from the tokenizer, vectors from the model's own pooler,
heads and losses are written out. The library's own fine-tuning is compared with it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fit_helpers import WINDOWS as WINDOWS
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F
from toy import save_encoder

from bertvision.data.examples import TextData, TextExample
from bertvision.data.triplets import TripletData
from bertvision.encoder.encoder import Encoder
from bertvision.heads import Geometry
from bertvision.tasks.base import TextConfig
from bertvision.tasks.span import SpanTask
from bertvision.tasks.triplet import TripletTask
from bertvision.train.config import FinetuneConfig
from bertvision.train.finetune import tune
from bertvision.train.job import Batch, Batching, Job, Split, window_split
from bertvision.train.run_folder import RunFolder, read_metrics
from bertvision.train.steps import Steps

POLICIES = ("full", "none", "layers", "top-1", "cut-1", "houlsby-4", "houlsby-4+top-1", "lora-2", "bitfit")


# Fixtures, imported by conftest.py.


@pytest.fixture(scope="session", name="three_layers")
def fixture_three_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BERT with three layers and dropout."""
    return save_encoder(tmp_path_factory.mktemp("encoders") / "three", num_hidden_layers=3)


@pytest.fixture(scope="session", name="no_dropout")
def fixture_no_dropout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without dropout."""
    folder = tmp_path_factory.mktemp("encoders") / "plain"
    rates: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return save_encoder(folder, num_hidden_layers=3, **rates)


@pytest.fixture(scope="session", name="lively")
def fixture_lively(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without dropout and with large weights: its vectors differ from text to text, where those of an encoder as it is
    usually begun hardly do."""
    rates: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    folder = tmp_path_factory.mktemp("encoders") / "lively"
    return save_encoder(folder, num_hidden_layers=3, initializer_range=0.2, **rates)


def config_of(**values: Any) -> FinetuneConfig:
    settings: dict[str, Any] = {
        "batch_size": 8,
        "lr": 1e-3,
        "schedule": "constant",
        "warmup": 0.0,
        "log_every": 1,
    } | values
    return FinetuneConfig(**settings)


def tuned(folder: Path, train: Split, source: Path, *, dev: Split | None = None, **values: Any) -> RunFolder:
    """Fine-tune a freshly loaded encoder in `folder`."""
    encoder, config = Encoder.load(str(source)), config_of(**values)
    return tune(encoder, [Job.only(train, dev, config)], folder=folder, config=config)[0]


@contextmanager
def after_step(step: int, act: Callable[[Steps], None]) -> Iterator[None]:
    """Do something to a run when its step number `step`, counted from 1, is taken."""
    real = Steps.update

    def update(self: Steps) -> None:
        real(self)
        if self._step + 1 == step:
            act(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Steps, "update", update)
        yield


def losses(stage: RunFolder) -> list[float]:
    return [record["loss"] for record in read_metrics(stage.metrics) if "loss" in record]


def assert_same_tuning(ours: Path, theirs: Path, *, loose: tuple[str, ...] = ()) -> None:
    """Losses, scored tasks and weights of two fine-tunings up to rounding, but for tensors with names like `loose`."""
    logs = [read_metrics(out / "metrics.jsonl") for out in (ours, theirs)]
    curves = [[record["loss"] for record in log if "loss" in record] for log in logs]
    assert curves[0] == pytest.approx(curves[1], rel=1e-3, abs=1e-5)
    assert [record.get("task") for record in logs[0]] == [record.get("task") for record in logs[1]]
    files = sorted(theirs.glob("snapshot-*/**/*.safetensors"))
    assert files
    for file in (file for file in files if file.name != "logits.safetensors"):
        other = load_file(ours / file.relative_to(theirs))
        for name, tensor in load_file(file).items():
            if not name.endswith(loose):
                torch.testing.assert_close(other[name], tensor, rtol=1e-3, atol=5e-5, msg=f"{file} {name}")


def parameters(folder: Path | str) -> dict[str, Tensor]:
    """Of an encoder as it is loaded."""
    return {name: p.detach() for name, p in Encoder.load(str(folder)).model.named_parameters()}


def assert_equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert first, "nothing to compare"
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different, different


def largest_difference(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


# ---- toy texts, and the plain loop

_WORDS = (
    "the", "wind", "was", "cold", "and", "road", "long", "mill", "bridge", "tower", "barn", "chapel", "it", "stands",
    "near", "old", "in", "built", "by",
)  # fmt: skip
_NAMES = ("poor", "fair", "good", "great", "best")


def _text(random: np.random.Generator, mark: str) -> str:
    """Three to fourteen words, so that batches have pads, with a word that tells the label."""
    words = random.choice(_WORDS, random.integers(3, 15)).tolist()
    words[int(random.integers(len(words)))] = mark
    return " ".join(words)


def label_texts(count: int = 27, classes: int = 3, *, pairs: bool = False, seed: int = 0) -> TextData:
    """Texts whose label one of their words tells; of pairs, one of the second's."""
    random = np.random.default_rng([seed, classes])
    marks, made = ("arden", "brill", "corwen", "elham", "fowey"), []
    for i in range(count):
        label = int(random.integers(classes))
        told = _text(random, marks[label])
        first, second = (_text(random, "hythe"), told) if pairs else (told, None)
        made.append(TextExample(f"t{i}", first, second, label))
    return TextData(made, "label", _NAMES[:classes], name=f"labels{classes}")


def score_texts(count: int = 25, *, pairs: bool = True, seed: int = 0) -> TextData:
    """Pairs with a score from 0 to 5: how many of three words the second one has."""
    random = np.random.default_rng([seed, 7])
    made = []
    for i in range(count):
        score = float(random.integers(0, 11)) / 2
        first, second = _text(random, "hythe"), _text(random, "goring" if score > 2.5 else "dunster")
        made.append(TextExample(f"s{i}", first, second if pairs else None, score))
    return TextData(made, "score", name="scores", metric="pearson")


def write_table(path: Path, data: TextData) -> None:
    """The data as tab-separated lines."""
    names, rows = data.classes, ["sentence1\tsentence2\tlabel" if data.pairs else "sentence\tlabel"]
    for e in data.examples:
        label = names[int(e.label or 0)] if names else str(e.label)
        rows.append("\t".join([*filter(None, (e.first, e.second)), label]))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def split_of(data: Any, source: Path, *, apart: bool = False, **text: Any) -> Split:
    """The data in windows, one a text."""
    config = replace(WINDOWS, apart=apart)
    split = window_split(data, Encoder.load(str(source)), config, text=TextConfig(**text))
    assert not isinstance(data, TextData) or len(split.windows) == len(data) * split.task.group
    return split


def snapshot_weights(snapshot: Path) -> dict[str, Tensor]:
    """Every tensor of a snapshot, which may be a delta, and of its heads."""
    return {
        f"{file.parent.relative_to(snapshot)}/{name}": tensor
        for file in sorted(snapshot.rglob("*.safetensors"))
        if file.name != "logits.safetensors"
        for name, tensor in load_file(file).items()
    }


def steps_of(jobs: Sequence[Job], config: Any) -> list[Batch]:
    plan = Batching(jobs, config)
    return list(plan.steps(0, plan.step_of(config.epochs)))


def distances(model: Any, tokenizer: Any, data: TripletData, row: int) -> Tensor:
    """From an anchor's [CLS] to the others', text by text."""
    vectors = [
        model(**tokenizer(data.texts[i], return_tensors="pt")).last_hidden_state[0, 0]
        for i in data.groups[row]
    ]
    return torch.stack([(vectors[0] - v).square().sum().sqrt() for v in vectors[1:]])


def triplet_loss(found: Tensor, form: str, margin: float) -> Tensor:
    near, far = found[0], found[1:]
    inside = near - far.exp().sum().log() if form == "paper" else near + (-far).exp().sum().log()
    return F.relu(inside + margin)


class PlainTuning:
    """One encoder and a head for each job, in float32 on the CPU.

    Heads are cls_linear, minbert without dropout (of one vector or two), last_state, and none for triplets.
    """

    def __init__(
        self,
        source: Path,
        jobs: Sequence[Job],
        config: Any,
        *,
        frozen: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.encoder = Encoder.load(str(source))
        self.model, self.jobs, self.config = self.encoder.model, jobs, config
        self.model.eval()  # tests give it no dropout
        for name, p in self.model.named_parameters():
            p.requires_grad_(not frozen(name))
        self.heads = []
        for job in jobs:
            unit = job.task.unit
            geometry = Geometry(
                self.encoder.num_states, self.encoder.hidden, job.task.outputs, unit, unit == "window"
            )
            begun = job.spec.build(geometry, seed=config.seed)
            self.heads.append({n: p.detach().clone().requires_grad_() for n, p in begun.named_parameters()})
        own = [p for p in self.model.parameters() if p.requires_grad]
        if len(jobs) == 1:
            self.optimizers = [[self._optimizer([*own, *self.heads[0].values()])]]
        else:
            shared = self._optimizer(own)
            self.optimizers = [[shared, self._optimizer(list(head.values()))] for head in self.heads]
        self.losses: list[float] = []

    def _optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": self.config.weight_decay},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.config.lr, eps=self.config.eps)

    # ---- from texts to losses

    def _read(self, *texts: list[str]) -> Any:
        """The model's output for texts or pairs of them."""
        given = self.encoder.tokenizer(*texts, padding=True, return_tensors="pt")
        return self.model(**given)

    def _head(self, number: int, vectors: Tensor) -> Tensor:
        """A stack of Linear, LayerNorm and ReLU, where the head has one, and the output layer."""
        head = self.heads[number]
        for i in sorted({int(n.split(".")[1]) for n in head if n.startswith("blocks.")})[::2]:
            vectors = F.linear(vectors, head[f"blocks.{i}.weight"], head[f"blocks.{i}.bias"])
            norm = head[f"blocks.{i + 1}.weight"], head[f"blocks.{i + 1}.bias"]
            vectors = F.relu(F.layer_norm(vectors, vectors.shape[-1:], *norm))
        return F.linear(vectors, head["project.weight"], head["project.bias"])

    def loss(self, number: int, units: NDArray[np.int64]) -> Tensor:
        """The mean loss of examples (of spans: of windows)."""
        job = self.jobs[number]
        if isinstance(job.task, SpanTask):
            return self._span_loss(number, units)
        if isinstance(job.task, TripletTask):
            found = [distances(self.model, self.encoder.tokenizer, job.train.data, row) for row in units]
            return torch.stack([triplet_loss(own, job.task.form, job.task.margin) for own in found]).mean()
        examples = [job.train.data.examples[i] for i in units]
        firsts, seconds = [e.first for e in examples], [e.second or "" for e in examples]
        if job.task.group == 2:
            both = (self._read(texts).pooler_output for texts in (firsts, seconds))
            vectors = torch.cat(list(both), dim=-1)
        else:
            texts = (firsts, seconds) if job.train.data.pairs else (firsts,)
            vectors = self._read(*texts).pooler_output
        logits, labels = self._head(number, vectors), torch.tensor([e.label for e in examples])
        objective = getattr(job.task, "objective", "mse")
        if objective == "ce":
            return F.cross_entropy(logits, labels)
        if objective == "bce":
            return F.binary_cross_entropy_with_logits(logits[:, 0], labels.float())
        every = np.array([e.label for e in job.train.data.examples])
        return F.mse_loss(logits[:, 0], (labels.float() - float(every.mean())) / float(every.std()))

    def _span_loss(self, number: int, units: NDArray[np.int64]) -> Tensor:
        windows = self.jobs[number].train.windows
        pieces = [slice(windows.offsets[i], windows.offsets[i + 1]) for i in units]
        ids, types = (
            torch.nn.utils.rnn.pad_sequence(
                [torch.from_numpy(flat[p].astype(np.int64)) for p in pieces], True
            )
            for flat in (windows.ids, windows.types)
        )
        lengths = torch.tensor([p.stop - p.start for p in pieces])
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        last = self.model(input_ids=ids, attention_mask=mask.long(), token_type_ids=types).last_hidden_state
        logits = self._head(number, last).masked_fill(~mask[..., None], -1e30)
        target = torch.from_numpy(windows.labels[units].astype(np.int64))
        start, end = (F.cross_entropy(logits[..., i], target[:, i]) for i in (0, 1))
        return (start + end) / 2

    # ---- steps

    def step(self, number: int, units: NDArray[np.int64]) -> None:
        """One step on examples of one job."""
        loss = self.loss(number, units) * self.jobs[number].weight
        loss.backward()
        optimizers = self.optimizers[number]
        torch.nn.utils.clip_grad_norm_(
            [p for o in optimizers for group in o.param_groups for p in group["params"]], self.config.clip
        )
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.losses.append(loss.item())

    def weights(self) -> dict[str, Tensor]:
        """By the names they have in a snapshot."""
        found = {f"encoder/{n}": p.detach() for n, p in self.model.named_parameters()}
        for job, head in zip(self.jobs, self.heads, strict=True):
            folder = f"heads/{job.name}" if job.name else "head"
            found |= {f"{folder}/{n}": p.detach() for n, p in head.items()}
        return found
