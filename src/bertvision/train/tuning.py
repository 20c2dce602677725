"""Everything that trains in one run of fine-tuning: made from an encoder, a policy and a head.

What a checkpoint holds of it are the parameters (all of the encoder's, adapters too) and the optimiser; where batches
come from and how steps are taken follows from the settings alone.
"""

import copy
import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from bertvision.encoder.batch import collate
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.freeze import check_policy, count_trainable
from bertvision.encoder.policy import parse_policy
from bertvision.encoder.stack import layers_of
from bertvision.errors import ConfigError
from bertvision.heads.base import Geometry, Head
from bertvision.train.config import TuneConfig
from bertvision.train.job import Job
from bertvision.train.optim import make_optimizer
from bertvision.train.parallel import Parallel
from bertvision.train.sharded import gathered, shard, wants_sharding
from bertvision.train.steps import GraphSteps, Steps
from bertvision.train.tunable import TokenSource, Tunable, Whole

__all__ = ["Tuning", "check_tuning", "shares_out"]


def check_tuning(encoder: Encoder, jobs: Sequence[Job], config: TuneConfig, parallel: Parallel) -> None:
    """Refuse what this encoder cannot do, before anything is changed or written."""
    policy = parse_policy(config.policy)
    if config.epochs == 0:
        raise ConfigError("--epochs 0 leaves nothing to do: give the length of the run")
    check_policy(encoder.model, policy, name=encoder.name)
    if config.checkpointing:
        encoder.check_checkpointing()
    if shares_out(config, parallel):
        layers_of(encoder.model)  # they are shared out one by one
    with torch.device("meta"):  # shapes alone: some heads do not fit every encoder
        for job in jobs:
            job.build(_geometry(encoder, job), seed=config.seed)
    for job in jobs:
        job.plan(config.batch_size, config.batch_tokens)  # refuses examples that cannot be drawn so
    _check_apart(jobs)
    windows = jobs[0].train.windows
    longest = np.array([windows.lengths.argmax()])
    encoder.check_states(collate(windows, longest, pad_id=encoder.pad_id, device=encoder.device))


def _check_apart(jobs: Sequence[Job]) -> None:
    """Several tasks need names of their own, which become folders."""
    names = [job.name for job in jobs]
    known = names != [""]  # the only task needs none
    if known and (
        len(set(names)) < len(names) or not all(re.fullmatch(r"\w[\w.+-]*", name) for name in names)
    ):
        raise ConfigError(
            f"the tasks need names of their own of letters, digits and - (they become folders), not {names}"
        )


def _geometry(encoder: Encoder, job: Job) -> Geometry:
    task = job.task
    pooled = task.unit == "window" and encoder.has_pooler
    return Geometry(encoder.num_states, encoder.hidden, task.outputs, task.unit, pooled)


def shares_out(config: TuneConfig, parallel: Parallel) -> bool:
    """Whether the encoder's weights are split over the processes."""
    return (config.shard or wants_sharding()) and not parallel.alone


class Tuning:
    """An encoder, a head for each task, their optimisers and the way to batches and steps."""

    def __init__(self, encoder: Encoder, jobs: Sequence[Job], config: TuneConfig, parallel: Parallel) -> None:
        self.encoder, self.jobs, self.config, self.parallel = encoder, jobs, config, parallel
        policy = parse_policy(config.policy)
        shared_out = shares_out(config, parallel)
        if not shared_out:
            encoder.model.to(encoder.device)  # a frozen one may be parked elsewhere
        encoder.tune(policy, seed=config.seed)
        if config.checkpointing:
            encoder.checkpoint_gradients()
        self.heads = [job.build(_geometry(encoder, job), seed=config.seed) for job in jobs]
        self.sources = [TokenSource(encoder, job.train.windows) for job in jobs]
        for head in self.heads:
            head.to(encoder.device)
        self.counts = count_trainable([encoder.model, *self.heads])
        self.twin = self._share_out() if shared_out else None
        self.tunable = Tunable(self._body(), self.heads, [job.task for job in jobs])
        captured = encoder.device.type == "cuda" and parallel.alone and not config.checkpointing
        self.optimizers = self._optimizers(captured)
        own = [
            [o for name, o in self.optimizers.items() if name in ("all", f"head{i}")]
            for i in range(len(jobs))
        ]
        kind = GraphSteps if captured else Steps
        self.steps = kind(self.tunable, own, config, encoder, parallel)

    def _optimizers(self, captured: bool) -> dict[str, torch.optim.Optimizer]:
        """One for all that trains; with several tasks one for the encoder and one a head, which rests meanwhile."""
        if len(self.jobs) == 1:
            together = {"all": [self.encoder.model, *self.heads]}
        else:
            together = {"all": [self.encoder.model]} | {
                f"head{i}": [head] for i, head in enumerate(self.heads)
            }
        return {
            name: make_optimizer(modules, self.config, capturable=captured)
            for name, modules in together.items()
            if any(p.requires_grad for module in modules for p in module.parameters())
        }

    def _body(self) -> Whole:
        last_only = all(head.last_only for head in self.heads)
        pooled = any(head.geometry.pooled for head in self.heads)
        return Whole(self.encoder, last_only=last_only, pooled=pooled)

    def _share_out(self) -> Encoder:
        """Split the encoder over the processes; rank 0 keeps a whole copy, which snapshots are made from."""
        twin = copy.deepcopy(self.encoder) if self.parallel.main else None
        dtype = torch.bfloat16 if self.encoder.precision == "bf16" else None
        model: nn.Module = self.encoder.model
        shard(model, layers_of(model), self.parallel, self.encoder.device, dtype=dtype)
        return twin or self.encoder

    @property
    def state(self) -> tuple[dict[str, nn.Module], dict[str, torch.optim.Optimizer]]:
        """What a checkpoint holds."""
        names = ["head"] if len(self.jobs) == 1 else [f"head{i}" for i in range(len(self.jobs))]
        return {"encoder": self.encoder.model, **dict(zip(names, self.heads, strict=True))}, self.optimizers

    def whole(self) -> tuple[Encoder, list[Head]]:
        """The encoder and its heads as they are now; every process calls it, rank 0's are whole."""
        if self.twin is None:
            return self.encoder, self.heads
        weights = gathered(self.encoder.model)
        if self.parallel.main:
            self.twin.model.load_state_dict(weights)
        return self.twin, self.heads
