"""Fine-tuning on a GPU: replayed steps against plain ones, and every policy through them.

python -m pytest -m gpu tests/test_gpu_tuning.py
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy import save_encoder, squad_json
from tuning_helpers import WINDOWS, config_of, label_texts, losses, score_texts, snapshot_weights, split_of

from bertvision.encoder.encoder import Encoder
from bertvision.model.trained import load_encoder, logits_of_trained, read_trained
from bertvision.train import steps as steps_module
from bertvision.train.config import FinetuneConfig, MultitaskConfig
from bertvision.train.finetune import tune
from bertvision.train.job import Job, Split, load_split, logits_of
from bertvision.train.run_folder import RunFolder
from bertvision.train.steps import GraphSteps, Steps

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Encoders of four layers, with and without dropout and with large weights, and the toy questions."""
    folder = tmp_path_factory.mktemp("gpu")
    still: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    # Its vectors differ from text to text, where those of a usual beginning hardly do.
    save_encoder(folder / "lively", num_hidden_layers=4, initializer_range=0.2, **still)
    save_encoder(folder / "plain", num_hidden_layers=4, **still)
    save_encoder(folder / "noisy", num_hidden_layers=4)
    (folder / "toy.json").write_text(json.dumps(squad_json()), encoding="utf-8")
    return folder


def tuned(
    home: Path,
    out: Path,
    *,
    encoder: str = "plain",
    precision: Any = "fp32",
    dev: bool = False,
    **values: Any,
) -> tuple[RunFolder, list[Path], Split]:
    made = Encoder.load(str(home / encoder), device="cuda", precision=precision)
    train = load_split(str(home / "toy.json"), made, WINDOWS)
    config = config_of(**({"epochs": 4.0} | values))
    jobs = [Job.only(train, train if dev else None, config)]
    stage, folders = tune(made, jobs, folder=out, config=config)
    return stage, folders, train


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it to take steps one kernel at a time from there on, as a CPU does."""
    return lambda: monkeypatch.setattr(steps_module, "GraphSteps", Steps)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[GraphSteps]:
    """The steps of every run of a test."""
    made: list[GraphSteps] = []

    class Kept(GraphSteps):
        def __init__(self, *values: Any, **more: Any) -> None:
            super().__init__(*values, **more)
            made.append(self)

    monkeypatch.setattr(steps_module, "GraphSteps", Kept)
    return made


def assert_captured(replayed: list[GraphSteps], jobs: int = 1) -> None:
    (steps,) = replayed
    assert steps.graphs.possible
    assert {key[-1] for key in steps._static} == set(range(jobs)), "no gradients were captured"
    assert all(("update", job) in steps.graphs for job in range(jobs)), "no update was captured"


@pytest.mark.parametrize("policy", ["full", "top-1", "cut-2", "houlsby-8", "bitfit"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replayed_steps_are_plain_steps(
    home: Path, tmp_path: Path, plainly: Any, replayed: list[GraphSteps], policy: str, precision: Any
) -> None:
    captured, _, _ = tuned(home, tmp_path / "a", policy=policy, precision=precision)
    assert_captured(replayed)
    plainly()
    plain, _, _ = tuned(home, tmp_path / "b", policy=policy, precision=precision)
    tolerance = 1e-3 if precision == "fp32" else 0.05
    assert losses(captured) == pytest.approx(losses(plain), rel=tolerance)
    assert losses(captured)[-1] < 0.99 * losses(captured)[0]


def test_a_capture_that_fails_leaves_no_gradients_behind(
    home: Path, tmp_path: Path, replayed: list[GraphSteps], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the backward pass, as when memory is wanting: the run goes on as if nothing had been tried."""
    plain, _, _ = tuned(home, tmp_path / "a", precision="bf16", epochs=2.0)
    real = GraphSteps._gradients

    def failing(self: GraphSteps, *values: Any) -> Any:
        loss = real(self, *values)
        if torch.cuda.is_current_stream_capturing():
            for _, copied in self._pairs:
                copied.grad = torch.full_like(copied, 7.0)
            raise RuntimeError("no memory for this shape")
        return loss

    monkeypatch.setattr(GraphSteps, "_gradients", failing)
    again, _, _ = tuned(home, tmp_path / "b", precision="bf16", epochs=2.0)
    assert not replayed[-1].graphs.possible
    assert not len(replayed[-1].graphs)
    assert losses(again) == pytest.approx(losses(plain), rel=0.05)


@pytest.mark.parametrize("head", ["adapter:size=8", "learned_pooling"])
@pytest.mark.parametrize("policy", ["full", "cut-2"])
def test_heads_over_all_layers_train_with_the_encoder(
    home: Path, tmp_path: Path, plainly: Any, policy: str, head: str
) -> None:
    captured, folders, train = tuned(
        home, tmp_path / "a", policy=policy, head=head, precision="bf16", dev=True
    )
    plainly()
    plain, _, _ = tuned(home, tmp_path / "b", policy=policy, head=head, precision="bf16", dev=True)
    assert losses(captured) == pytest.approx(losses(plain), rel=0.05)
    again = logits_of_trained([read_trained(folders[-1])], train.data, device="cuda")[0][1]
    kept = logits_of({folders[-1] / "head": read_trained(folders[-1]).heads[0]}, train, "dev", _never)
    kept_logits = kept[folders[-1] / "head"]
    assert abs(again["start"] - kept_logits["start"]).max() < 0.1


def _never() -> Any:
    raise AssertionError("the logits of the snapshot were not kept")


@pytest.mark.parametrize("policy", ["full", "houlsby-8", "lora-4", "cut-2"])
def test_scores_on_the_way_do_not_disturb(home: Path, tmp_path: Path, policy: str) -> None:
    """Snapshots and evaluation between replays: the same losses as without them, dropout and all."""
    values: dict[str, Any] = {"encoder": "noisy", "policy": policy, "precision": "bf16"}
    alone, _, _ = tuned(home, tmp_path / "a", **values)
    scored, folders, _ = tuned(home, tmp_path / "b", snapshots=(0.5, 1.0, 2.5), dev=True, **values)
    assert losses(alone) == pytest.approx(losses(scored), rel=1e-3)
    assert len(scored.results["snapshots"]) == len(folders) == 4
    trained = read_trained(folders[-1])
    assert load_encoder(trained, device="cuda").fingerprint == trained.fingerprint


@contextmanager
def interrupted_at(step: int) -> Iterator[None]:
    """Ctrl-C at the update of a step, counted from 1."""
    real = GraphSteps.update

    def stop(self: GraphSteps) -> None:
        if self._step + 1 == step:
            raise KeyboardInterrupt
        real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphSteps, "update", stop)
        with pytest.raises(KeyboardInterrupt):
            yield


def test_a_run_goes_on_from_its_checkpoint(home: Path, tmp_path: Path) -> None:
    values: dict[str, Any] = {"encoder": "noisy", "precision": "bf16", "policy": "houlsby-8"}
    whole, _, _ = tuned(home, tmp_path / "a", **values)
    with interrupted_at(12):
        tuned(home, tmp_path / "b", checkpoint_seconds=0.0, **values)
    again, _, _ = tuned(home, tmp_path / "b", checkpoint_seconds=0.0, **values)
    assert losses(again) == pytest.approx(losses(whole), rel=0.02)


def test_steps_that_cannot_be_captured_are_taken_plainly(home: Path, tmp_path: Path) -> None:
    """Gradient checkpointing reads random states on the way and cannot be captured; it runs all the same."""
    plain, _, _ = tuned(home, tmp_path / "a", precision="bf16")
    again, _, _ = tuned(home, tmp_path / "b", precision="bf16", checkpointing=True)
    assert losses(plain) == pytest.approx(losses(again), rel=0.05)


# ---- labels, scores and several tasks

# Adam divides by the gradient's own size; a large eps keeps it from blowing rounding up.
STEADY: dict[str, Any] = {"eps": 1e-2, "lr": 1e-2, "weight_decay": 0.1, "batch_size": 8, "schedule": "constant",
                          "warmup": 0.0, "log_every": 1, "epochs": 6.0}  # fmt: skip
# In bf16 long steps lead two runs apart, whichever way they are taken.
GENTLE = {"fp32": {}, "bf16": {"lr": 1e-3}}


def way(snapshot: Path, encoder: Path) -> dict[str, torch.Tensor]:
    """How far the encoder's weights moved, those of the pooler apart."""
    model = Encoder.load(str(encoder), device="cpu").model
    begun = {f"encoder/{n}": p.detach() for n, p in model.named_parameters()}
    now = snapshot_weights(snapshot)
    moved = {n: (now[n].float() - begun[n]).flatten().double() for n in begun}
    return {
        part: torch.cat([t for n, t in moved.items() if ("pooler" in n) == (part == "pooler")])
        for part in ("pooler", "rest")
    }


def assert_same_curve(ours: list[float], theirs: list[float], precision: str) -> None:
    assert len(ours) == len(theirs)
    if precision == "fp32":
        assert ours == pytest.approx(theirs, rel=2e-3, abs=5e-4)
    else:  # single steps of small batches are rough; the curves are the same
        assert float(np.mean(np.abs(np.subtract(ours, theirs)))) < 0.1 * float(np.mean(theirs))


def assert_same_way(ours: Path, theirs: Path, encoder: Path, *, parts: tuple[str, ...]) -> None:
    one, other = way(ours, encoder), way(theirs, encoder)
    for part in parts:
        assert float(other[part].norm()) > 1e-2, f"{part} hardly moved"
        assert float((one[part] - other[part]).norm() / other[part].norm()) < 0.02, part


TEXTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "labels": (label_texts(43), {}, "cls_linear"),
    "bce": (label_texts(43, 2), {"loss": "bce"}, "minbert:dropout=0,blocks=1"),
    "scores": (score_texts(41), {}, "tenney_small"),
    "apart": (score_texts(41), {"apart": True}, "minbert:vectors=2,dropout=0,blocks=1"),
}


@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize("policy", ["full", "cut-2"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replayed_steps_on_texts_are_plain_steps(
    home: Path,
    tmp_path: Path,
    plainly: Any,
    replayed: list[GraphSteps],
    case: str,
    policy: str,
    precision: Any,
) -> None:
    """With a pooler, which trains with the whole encoder alone."""
    data, text, head = TEXTS[case]
    source = home / "lively"
    split = split_of(data, source, **text)
    stages = []
    for name in ("a", "b"):
        made = Encoder.load(str(source), device="cuda", precision=precision)
        settings = STEADY | GENTLE[precision] | {"policy": policy, "head": head}
        config = FinetuneConfig(**settings)
        jobs = [Job.only(split, split, config)]
        stages.append(tune(made, jobs, folder=tmp_path / name, config=config)[0])
        plainly()
    assert_captured(replayed)
    captured, plain = (losses(stage) for stage in stages)
    assert_same_curve(captured, plain, precision)
    if precision == "fp32":
        assert np.mean(captured[-5:]) < 0.9 * np.mean(captured[:5])
        parts = ("pooler", "rest") if policy == "full" else ("rest",)
        assert_same_way(tmp_path / "a" / "snapshot-6", tmp_path / "b" / "snapshot-6", source, parts=parts)
    # The snapshot answers as it was scored.
    ((_, again),) = logits_of_trained(
        [read_trained(tmp_path / "a" / "snapshot-6")], data, device="cuda", precision=precision
    )
    folder = tmp_path / "a" / "snapshot-6" / "head"
    kept = logits_of({folder: read_trained(folder).heads[0]}, split, "dev", _never)[folder]
    assert np.abs(again["values"] - kept["values"]).max() < (1e-2 if precision == "fp32" else 0.3)


def three_jobs(home: Path) -> list[Job]:
    source = home / "lively"
    spans = load_split(str(home / "toy.json"), Encoder.load(str(source), device="cpu"), WINDOWS)
    labels, scores = split_of(label_texts(43), source), split_of(score_texts(41), source, apart=True)
    apart = "minbert:vectors=2,dropout=0,blocks=1"
    return [
        Job(labels, None, name="mood", head="cls_linear", sampling="weighted"),
        Job(scores, None, name="near", head=apart, batch_size=6, weight=0.5),
        Job(spans, None, name="where"),
    ]


def together(home: Path, out: Path, *, precision: Any = "fp32", **values: Any) -> RunFolder:
    made = Encoder.load(str(home / "lively"), device="cuda", precision=precision)
    settings: dict[str, Any] = STEADY | GENTLE[precision] | {"order": "mixed"} | values
    config = MultitaskConfig(**settings)
    return tune(made, three_jobs(home), folder=out, config=config)[0]


@pytest.mark.parametrize(
    "values", [{}, {"accumulate": 2}, {"policy": "cut-2"}, {"order": "sequential"}], ids=str
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replayed_steps_of_several_tasks_are_plain_steps(
    home: Path, tmp_path: Path, plainly: Any, replayed: list[GraphSteps], precision: Any, values: Any
) -> None:
    """Each task has graphs of its own; its head, and the pooler that only labels and scores reach, rest meanwhile."""
    captured = together(home, tmp_path / "a", precision=precision, **values)
    assert_captured(replayed, 3)
    plainly()
    plain = together(home, tmp_path / "b", precision=precision, **values)
    assert_same_curve(losses(captured), losses(plain), precision)
    if precision == "fp32":
        parts = ("rest",) if "policy" in values else ("pooler", "rest")
        folders = (tmp_path / "a" / "snapshot-6", tmp_path / "b" / "snapshot-6")
        assert_same_way(*folders, home / "lively", parts=parts)
        ours, theirs = (snapshot_weights(folder) for folder in folders)
        for name in (n for n in theirs if n.startswith("heads/") and not n.endswith("bias")):
            assert float((ours[name] - theirs[name]).abs().max()) < 5e-3, name


def test_a_task_that_rests_keeps_its_weights_to_the_bit(home: Path, tmp_path: Path) -> None:
    """Task after task, for one long epoch: replays of one task do not touch the head of another."""
    jobs = three_jobs(home)
    first = -(-43 // 8)
    total = first + -(-41 // 6) + -(-len(jobs[2].train.windows) // 8)
    values = {"order": "sequential", "epochs": 1.0, "batch_size": 8, "snapshots": (first / total,)}
    together(home, tmp_path, **values)
    early, late = (snapshot_weights(tmp_path / f"snapshot-{mark:g}") for mark in (first / total, 1.0))
    own = [name for name in early if name.startswith("heads/mood/")]
    assert own
    assert all(torch.equal(early[name], late[name]) for name in own)
    assert not torch.equal(early["heads/where/project.weight"], late["heads/where/project.weight"])


def test_a_run_of_several_tasks_goes_on_from_its_checkpoint(home: Path, tmp_path: Path) -> None:
    values: dict[str, Any] = {"precision": "bf16", "checkpoint_seconds": 0.0}
    whole = together(home, tmp_path / "a", **values)
    with interrupted_at(30):
        together(home, tmp_path / "b", **values)
    again = together(home, tmp_path / "b", **values)
    assert_same_curve(losses(again), losses(whole), "bf16")
