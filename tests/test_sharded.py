"""An encoder shared out over two processes (FSDP on gloo) trains, is saved and goes on as a whole one does."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from killing import run_together
from safetensors.torch import load_file
from torch import Tensor, nn
from toy import toy_config

from bertvision.artifacts import read_json, write_json
from bertvision.train.parallel import ALONE, Parallel, clip_, gathered_tensors, is_sharded, shard
from bertvision.train.run_folder import RunFolder

WORDS, BATCH, CLIP = 50, 5, 0.5
STEPS = 4
CPU = torch.device("cpu")


class Toy(nn.Module):
    """An encoder and an output layer that reads two of its states, with what a policy would leave trainable."""

    def __init__(self, architecture: str, policy: str) -> None:
        from transformers import AutoModel

        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            config = toy_config(
                architecture, WORDS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
            )
            self.encoder = AutoModel.from_config(config, add_pooling_layer=False)
            self.head = nn.Linear(64, 2)
        if policy == "norms":  # some parameters of every module train, the others do not
            self.encoder.requires_grad_(False)
            for name, parameter in self.encoder.named_parameters():
                parameter.requires_grad_("LayerNorm" in name or "bias" in name)
        elif policy == "frozen embeddings":
            self.encoder.embeddings.requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        states = self.encoder(input_ids=ids, output_hidden_states=True).hidden_states
        assert len(states) == 3, "every state is there, shared out or not"
        return self.head(torch.cat([states[1][:, 0], states[-1][:, 0]], dim=-1))


def optimizer_of(toy: Toy) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in toy.parameters() if parameter.requires_grad]
    # A bias of keys has no gradient but rounding, which a smaller eps would blow up to whole steps.
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.01, eps=1e-4, fused=True)


def take_steps(toy: Toy, optimizer: torch.optim.Optimizer, steps: range, parallel: Parallel) -> list[float]:
    """Steps `steps` of the run; the batch of the third has one window. Returns losses and norms."""
    told: list[float] = []
    for step in steps:
        random = torch.Generator().manual_seed(step)
        size = 1 if step == 2 else BATCH
        ids = torch.randint(0, WORDS, (size, 7), generator=random)
        labels = torch.randint(0, 2, (size,), generator=random)
        part = parallel.parts(np.arange(size))[0]
        logits = toy(ids[part.indices])
        loss = nn.functional.cross_entropy(logits, labels[part.indices], reduction="sum") / size * part.weight
        loss.backward()
        total = loss.detach().clone()
        parallel.sum_([total])
        norm = clip_([p for group in optimizer.param_groups for p in group["params"]], CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        told += [float(total), float(norm)]
    return told


def share_out(toy: Toy, parallel: Parallel) -> Toy:
    from bertvision.encoder.freeze import layers_of

    shard(toy.encoder, layers_of(toy.encoder), parallel, CPU)
    shard(toy.head, [], parallel, CPU)
    assert all(is_sharded(parameter) for parameter in toy.parameters())
    assert type(toy.encoder).__name__.endswith("Model"), "config.json names the class"
    assert not type(toy.encoder).__name__.startswith("FSDP")
    return toy


# ---- training


def _train(architecture: str, policy: str, folder: str) -> None:
    """One rank: the same steps shared out, and alone for comparison."""
    torch.set_num_threads(1)
    with Parallel.start(CPU) as parallel:
        toy = share_out(Toy(architecture, policy), parallel)
        held = sum(parameter.to_local().numel() for parameter in toy.parameters())  # pyright: ignore
        told = take_steps(toy, optimizer_of(toy), range(STEPS), parallel)
        tensors = gathered_tensors(toy.state_dict())
        assert bool(tensors) == parallel.main
        reference = Toy(architecture, policy)
        assert held < 0.6 * sum(parameter.numel() for parameter in reference.parameters())
        expected = take_steps(reference, optimizer_of(reference), range(STEPS), ALONE)
        np.testing.assert_allclose(told, expected, rtol=1e-4)
        if parallel.main:
            before = Toy(architecture, policy).state_dict()
            assert tensors.keys() == before.keys()
            for name, parameter in reference.named_parameters():
                torch.testing.assert_close(tensors[name], parameter.data, rtol=1e-4, atol=1e-5, msg=name)
                assert torch.equal(tensors[name], before[name]) != parameter.requires_grad, name
        Path(folder, f"done-{parallel.rank}").touch()


@pytest.mark.parametrize(
    ("architecture", "policy"), [("bert", "norms"), ("bert", "frozen embeddings"), ("albert", "full")]
)
def test_two_processes_train_what_one_trains(architecture: str, policy: str, tmp_path: Path) -> None:
    work = functools.partial(_train, architecture, policy, str(tmp_path))
    run_together(work, tmp_path)
    assert len(list(tmp_path.glob("done-*"))) == 2


# ---- checkpoints


def _run(path: str, resumed: bool) -> None:
    """One rank: two steps and a checkpoint, or what that holds; then the rest of the steps."""
    torch.set_num_threads(1)
    with Parallel.start(CPU) as parallel:
        torch.manual_seed(100 + parallel.rank)
        toy = share_out(Toy("bert", "norms"), parallel)
        optimizer, folder = optimizer_of(toy), RunFolder(Path(path), {}, parallel=parallel)
        if resumed:
            for parameter in toy.parameters():
                if parameter.requires_grad:
                    parameter.data.zero_()  # all that trains must come from the file
            assert folder.resume({"all": toy}, {"all": optimizer}) == {"step": 2}
        else:
            take_steps(toy, optimizer, range(2), parallel)
            folder.save({"all": toy}, {"all": optimizer}, {"step": 2})
        drawn = torch.rand(3).tolist()
        take_steps(toy, optimizer, range(2, STEPS), parallel)
        whole = gathered_tensors(dict(toy.named_parameters()))
        end = [value for tensor in whole.values() for value in tensor.flatten().tolist()]
        write_json(Path(path, f"{'again' if resumed else 'whole'}-{parallel.rank}.json"), [drawn, end])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two ranks with a checkpoint, beside what they ended with."""
    folder = tmp_path_factory.mktemp("saved")
    run_together(functools.partial(_run, str(folder), False), folder)
    return folder


def test_two_processes_go_on_exactly(saved: Path, tmp_path: Path) -> None:
    run_together(functools.partial(_run, str(saved), True), tmp_path)
    whole, again = (
        [read_json(saved / f"{run}-{rank}.json") for rank in (0, 1)] for run in ("whole", "again")
    )
    assert again == whole, "to the bit, and each rank draws from its own stream"
    assert whole[0][0] != whole[1][0]


@pytest.mark.parametrize("world", [1, 3])
def test_another_number_of_processes_goes_on(world: int, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes((saved / "checkpoint.safetensors").read_bytes())
    write_json(tmp_path / "stage.json", {"key": {}, "done": False})
    if world > 1:
        run_together(functools.partial(_run, str(tmp_path), True), tmp_path, world=world)
        _, end = read_json(tmp_path / "again-0.json")
    else:
        toy = Toy("bert", "norms")
        optimizer = optimizer_of(toy)
        RunFolder(tmp_path, {}).resume({"all": toy}, {"all": optimizer})
        take_steps(toy, optimizer, range(2, STEPS), ALONE)
        end = torch.cat([parameter.detach().flatten() for parameter in toy.parameters()]).tolist()
    np.testing.assert_allclose(end, read_json(saved / "whole-0.json")[1], rtol=1e-4, atol=1e-5)


def test_the_file_is_that_of_one_process(saved: Path, tmp_path: Path) -> None:
    toy = Toy("bert", "norms")
    optimizer = optimizer_of(toy)
    take_steps(toy, optimizer, range(2), ALONE)
    folder = RunFolder(tmp_path, {})
    folder.save({"all": toy}, {"all": optimizer}, {})
    ours, theirs = load_file(folder.checkpoint), load_file(saved / "checkpoint.safetensors")
    assert ours.keys() == {name for name in theirs if not name.endswith("/1")}
    for name in ours:
        assert ours[name].shape == theirs[name].shape, name
        if name.startswith("module/"):
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-5, msg=name)


# ---- small things


@pytest.mark.parametrize("most", [0.1, 100.0])
def test_clipping_is_that_of_torch(most: float) -> None:
    both = [[nn.Parameter(torch.zeros(4, 3)), nn.Parameter(torch.zeros(5))] for _ in range(2)]
    random = torch.Generator().manual_seed(0)
    for ours, theirs in zip(*both, strict=True):
        ours.grad = torch.randn(ours.shape, generator=random)
        theirs.grad = ours.grad.clone()
    torch.testing.assert_close(clip_(both[0], most), nn.utils.clip_grad_norm_(both[1], most))
    for ours, theirs in zip(*both, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
