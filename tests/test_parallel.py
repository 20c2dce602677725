"""Two processes fit and tune what one does: the same heads, losses and choices, through kills and mistakes."""

import functools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_runner import answered, refused
from killing import begin, finish, finish_all, free_port, logs, run_together
from safetensors.torch import load_file
from test_resume import WINDOWS as CUT
from tuning_helpers import WINDOWS, assert_same_tuning

from bertvision.artifacts import read_json
from bertvision.encoder.encoder import Encoder
from bertvision.heads.base import running_statistics
from bertvision.heads.layers import Dropout
from bertvision.states.base import LiveStates
from bertvision.train.config import FinetuneConfig, FitConfig
from bertvision.train.finetune import tune
from bertvision.train.fit import fit
from bertvision.train.job import Job, load_split
from bertvision.train.optim import rank_seed
from bertvision.train.parallel import Parallel
from bertvision.train.run_folder import RunFolder, read_metrics
from bertvision.train.steps import Steps
from bertvision.train.zoo import zoo_members

HEADS = ("last_state", "adapter:size=4,dropout=0", "head2toe")
"""The last has a penalty beside its loss."""
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


Command = Callable[..., list[str]]


@pytest.fixture(scope="module")
def command(tiny_bert: Path, toy_squad: Path) -> Command:
    """Words of a fit; the last of its batches has one window, so that one of two ranks has none."""

    def words(out: Path, *more: str, heads: tuple[str, ...] = HEADS) -> list[str]:
        data = ["fit", tiny_bert, "--train", toy_squad, "--dev", toy_squad, "--out", out, *CUT]
        how = "--epochs 2 --batch-size 7 --keep best --states.source live --device cpu".split()  # noqa: SIM905
        return [str(word) for word in (*data, *how, "--heads", *heads, *more)]

    return words


def fitted(folder: Path) -> dict[str, torch.Tensor]:
    """All weights of all heads but the bias of their logits.

    A shift of all logits changes no probability, so that bias has no gradient but rounding, which Adam makes large.
    """
    return {
        f"{file.parent.name}/{name}": tensor
        for file in sorted(folder.glob("*/model.safetensors"))
        for name, tensor in load_file(file).items()
        if name not in ("project.bias", "bias")
    }


def losses(folder: Path) -> dict[tuple[str, float], tuple[float, float]]:
    lines = read_metrics(folder / "metrics.jsonl")
    return {(line["head"], line["epoch"]): (line["loss"], line["score"]) for line in lines}


def assert_same(first: Path, second: Path) -> None:
    ours, theirs = fitted(first), fitted(second)
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-5, msg=name)
    assert losses(first).keys() == losses(second).keys()
    for key, values in losses(first).items():
        assert values == pytest.approx(losses(second)[key], abs=1e-4), key
    told = [read_json(folder / "stage.json")["results"] for folder in (first, second)]
    assert told[0]["dropped"] == told[1]["dropped"]
    best = [[head["best_epoch"] for head in results["heads"].values()] for results in told]
    assert best[0] == best[1]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, command: Command) -> Path:
    """What one process fits."""
    folder = tmp_path_factory.mktemp("single") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTVISION_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        answered(*command(folder))
    return folder


# ---- shares of a batch


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("unit", [1, 2])
def test_the_parts_of_all_ranks_are_the_batch_and_idle_no_rank_that_has_a_window(
    world: int, unit: int
) -> None:
    for size, accumulate in ((16, 4), (6, 4), (12, 1), (unit, 3)):
        batch = np.random.default_rng(size).permutation(40)[:size]
        ranks = [Parallel(rank, world).parts(batch, unit=unit, cut=accumulate) for rank in range(world)]
        assert len({len(parts) for parts in ranks}) == 1, "every rank calls the encoder equally often"
        assert all(len(part.indices) for parts in ranks for part in parts)
        neighbours = {tuple(pair) for pair in batch.reshape(-1, unit).tolist()}
        every = [part for parts in ranks for part in parts]
        assert {tuple(own) for part in every for own in part.indices.reshape(-1, unit).tolist()} <= neighbours
        counted = [[i for part in parts if part.weight for i in part.indices.tolist()] for parts in ranks]
        assert sorted(i for own in counted for i in own) == sorted(batch.tolist())
        units = [len(own) // unit for own in counted]
        assert max(units) - min(units) <= 1
        assert len(ranks[0]) == min(accumulate, max(units)), "a part without a window for anybody"
        assert max(len(part.indices) for part in ranks[0]) == unit * math.ceil(max(units) / len(ranks[0]))


def test_no_rank_has_the_noise_of_another_seed() -> None:
    drawn = [rank_seed(seed, rank) for seed in range(20) for rank in range(8)]
    assert len(set(drawn)) == len(drawn)
    assert [rank_seed(seed, 0) for seed in range(3)] == [0, 1, 2]
    assert all(0 <= value < 2**63 for value in drawn)


def test_an_incomplete_environment_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: Command
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = refused(*command(tmp_path / "out"))
    assert "WORLD_SIZE is 2 but no MASTER_ADDR and no MASTER_PORT is set" in said
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert "--use_fsdp splits an encoder" in refused(*command(tmp_path / "out"))


# ---- what ranks give each other


def _exchange(folder: str) -> None:
    """One rank: everything is compared with what it must be, worked out by hand."""
    torch.set_num_threads(1)
    with Parallel.start(CPU) as parallel:
        rank, world = parallel.rank, parallel.world
        tensors = [torch.full((3,), 30.0 + rank), torch.tensor(rank), torch.full((2, 3), rank + 0.5).double()]
        parallel.sum_(tensors)
        for ours, value in zip(tensors, (93.0, 3.0, 4.5), strict=True):
            assert bool((ours == value).all()), (ours, value)
        parallel.mean_(tensors[:1])
        assert tensors[0].tolist() == [93.0] * 3
        assert parallel.share({"text": "Zürich", "by": rank}) == {"text": "Zürich", "by": 0}
        assert parallel.on_main(lambda: ["rank", rank]) == ["rank", 0]
        assert [int(one) for one in parallel.every(torch.tensor([rank]))] == list(range(world))
        Path(folder, f"done-{rank}").touch()


def test_sums_and_words_reach_every_rank(tmp_path: Path) -> None:
    run_together(functools.partial(_exchange, str(tmp_path)), tmp_path, world=3)
    assert len(list(tmp_path.glob("done-*"))) == 3


# ---- fits


def test_two_processes_fit_what_one_fits(single: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "out"
    run_together(command(out), tmp_path)
    assert_same(out, single)
    told, silent = (log.read_text() for log in logs(tmp_path))
    assert "3 heads in" in told
    assert silent == "", "rank 1 shows nothing"
    assert {path.name for path in out.iterdir()} == {path.name for path in single.iterdir()}


def test_a_stack_a_store_and_a_head_that_diverges_change_nothing(
    single: Path, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "out"
    more = ("--states.source", "stored", "--states.store", str(tmp_path / "states"), "--states.dtype", "fp32")
    heads = (*HEADS, "adapter:size=4,dropout=0,lr=2e-3", "adapter:size=4,lr=1e30")  # the first in one stack
    run_together(command(out, "--stack", "on", *more, heads=heads), tmp_path)
    told, silent = (log.read_text() for log in logs(tmp_path))
    assert told.count("diverged (loss nan") == 1
    assert silent == ""
    ours, theirs = fitted(out), fitted(single)
    assert theirs.keys() < ours.keys()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-5, msg=name)


def _norms(encoder: str, data: str, folder: str) -> None:
    """One rank: fit heads with batch norm and dropout, and see that every rank ends with the same numbers."""
    torch.set_num_threads(1)
    with Parallel.start(torch.device("cpu")) as parallel:
        source = Encoder.load(encoder)
        windows = load_split(data, source, WINDOWS).windows
        config = FitConfig(heads=("cnn", "adapter:size=4,dropout=0.3"), batch_size=12)
        stage = RunFolder(Path(folder, "norms"), {}, parallel=parallel)
        heads = fit(LiveStates(source, windows), zoo_members(config), config, stage)
        for one in heads.values():
            own = torch.cat([value.double().flatten() for value in one.head.state_dict().values()])
            first, *others = parallel.every(own)
            assert all(torch.equal(first, other) for other in others), one.name
        assert any("running_mean" in name for one in heads.values() for name in one.head.state_dict())


def test_all_ranks_keep_the_same_heads(tiny_bert: Path, toy_squad: Path, tmp_path: Path) -> None:
    work = functools.partial(_norms, str(tiny_bert), str(toy_squad), str(tmp_path))
    run_together(work, tmp_path)


# ---- fine-tuning


@pytest.mark.parametrize(
    "more",
    [(), ("--policy", "lora-2", "--accumulate", "2"),
     ("--policy", "cut-1", "--head", "adapter:size=4")],
    ids=" ".join,
)  # fmt: skip
def test_two_processes_fine_tune_what_one_does(
    no_dropout: Path, toy_squad: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    """Dropout, which every rank draws for itself, would make them differ."""

    def words(out: str) -> list[str]:
        names = {"--encoder": no_dropout, "--train": toy_squad, "--out": tmp_path / out, "--device": "cpu"}
        names |= {"--epochs": 2, "--snapshots": 1, "--batch-size": 7, "--lr": 1e-3, "--log-every": 1}
        names |= {"--dev": toy_squad}
        return ["finetune", *(str(word) for pair in names.items() for word in pair), *CUT, *more]

    run_together(words("two"), tmp_path)
    assert finish(words("one"), tmp_path / "one.log", seconds=60) == 0
    # These have no gradient but rounding, which Adam makes large.
    loose = ("key.bias", "layer.2.output.LayerNorm.bias", "project.bias")
    assert_same_tuning(tmp_path / "two", tmp_path / "one", loose=loose)
    told = [read_json(tmp_path / out / "stage.json")["results"]["snapshots"] for out in ("two", "one")]
    assert told[0].keys() == {"snapshot-1", "snapshot-2"}
    for name in told[0]:
        assert [told[0][name][key] for key in ("exact", "f1")] == [
            told[1][name][key] for key in ("exact", "f1")
        ]
    if not more:  # another number of processes rounds in another way, and in bf16 computes on other weights
        assert finish(words("two"), tmp_path / "again.log", seconds=60) == 2
        assert "other settings (arithmetic)" in (tmp_path / "again.log").read_text()


def _head_of_each(folder: str, encoder: str, data: str, head: str) -> None:
    """One rank: a few steps of a head; its dropout keys and running statistics are written down."""
    torch.set_num_threads(1)
    with Parallel.start(torch.device("cpu")) as parallel:
        source = Encoder.load(encoder, device="cpu")
        train = load_split(data, source, WINDOWS)
        config = FinetuneConfig(policy="none", head=head, batch_size=8, lr=1e-3)
        seen: list[list[int]] = []
        real = Steps.update

        def update(self: Steps) -> None:
            seen.append([int(m.key) for m in self._head.modules() if isinstance(m, Dropout)])
            real(self)
            found = [t.tolist() for t in running_statistics(self._head)]
            Path(f"{folder}/rank{parallel.rank}.json").write_text(json.dumps([seen, found]))

        Steps.update = update
        jobs = [Job.only(train, None, config)]
        tune(source, jobs, folder=Path(folder) / "out", config=config, parallel=parallel)


@pytest.mark.parametrize("head", ["adapter:size=4,dropout=0.5", "cnn:dropout=0"])
def test_ranks_draw_their_own_noise_and_share_statistics(
    head: str, tiny_bert: Path, toy_squad: Path, tmp_path: Path
) -> None:
    work = functools.partial(_head_of_each, str(tmp_path), str(tiny_bert), str(toy_squad), head)
    run_together(work, tmp_path)
    (keys, ours), (other, theirs) = (
        json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)
    )
    assert ours == theirs
    if "0.5" in head:
        assert all(
            a != b for one, two in zip(keys, other, strict=True) for a, b in zip(one, two, strict=True)
        )
        assert len({key for one in (*keys, *other) for key in one}) == 2 * len(keys) * len(keys[0])
    else:
        assert ours, "this head gathers statistics"


# ---- kills and mistakes


@pytest.mark.parametrize(("killed", "again"), [(1, 2), (0, 1)])
def test_a_killed_rank_ends_the_other_and_the_work_goes_on(
    killed: int, again: int, single: Path, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "out"
    words = command(out, "--checkpoint-seconds", "0")
    processes = begin(words, tmp_path)
    until = time.monotonic() + 60
    while not (out / "checkpoint.safetensors").exists() and time.monotonic() < until:
        time.sleep(0.002)
    processes[killed].kill()
    codes = finish_all(processes, seconds=20)
    assert codes[killed] == -9
    assert codes[1 - killed] > 0
    assert (out / "checkpoint.safetensors").exists(), "it was killed in the middle"
    if again == 2:
        run_together(words, tmp_path)
    else:
        assert finish(words, tmp_path / "again.log", seconds=30) == 0
    assert_same(out, single)


@pytest.mark.parametrize(
    ("more", "sentence", "told"),
    [(("--heads", "nosuch"), "there is no head 'nosuch'", [1, 1]),
     (("--epochs", "9"), "holds work with other settings (fit.epochs)", [1, 0])],  # rank 0 alone looks at the folder
)  # fmt: skip
def test_a_mistake_ends_every_rank(
    more: tuple[str, ...], sentence: str, told: list[int], single: Path, tmp_path: Path, command: Command
) -> None:
    assert finish_all(begin(command(single, *more), tmp_path)) == [2, 2]
    printed = [log.read_text() for log in logs(tmp_path)]
    assert [
        text.count(f"error: {sentence}" if "no head" in sentence else sentence) for text in printed
    ] == told
    assert not any("Traceback" in text for text in printed)


_THREADS = """
import os, torch
from bertvision.train.parallel import Parallel
with Parallel.start(torch.device("cpu")) as parallel:
    import torch.distributed.nn  # some of its functions have the group, where there is one, as a default
    parallel.sum_([torch.ones(3)])
for thread in os.listdir("/proc/self/task"):
    print(open(f"/proc/self/task/{thread}/comm").read().strip())
"""


def test_no_thread_outlives_the_group() -> None:
    """A thread of gloo that still holds a tensor when the interpreter ends would abort the process."""
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _THREADS],
            env=os.environ | world | {"RANK": rank},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    for rank in ranks:
        threads, _ = rank.communicate(timeout=60)
        assert rank.returncode == 0
        assert "python" in threads
        assert "gloo" not in threads


# ---- launchers


def test_accelerate_launches_a_fit(single: Path, tmp_path: Path, command: Command) -> None:
    # --multi_gpu is what makes accelerate start several processes; without GPUs they take the CPU and gloo.
    launcher = ["-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu", "--num_processes", "2"]
    launcher += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launcher += ["--main_process_port", str(free_port()), "-m", "bertvision"]
    words = [sys.executable, *launcher, *command(tmp_path / "out"), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["heads"]) == 3, "told once, or it would not be JSON"
    assert_same(tmp_path / "out", single)
