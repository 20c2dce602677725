"""What trains together in a fine-tuning: an encoder, a head for each job, and their optimisers."""

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
from bertvision.heads.base import Head
from bertvision.train.config import TuneConfig
from bertvision.train.job import Job
from bertvision.train.optim import make_optimizer
from bertvision.train.parallel import Parallel
from bertvision.train.sharded import gathered, shard, wants_sharding


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
    for job in jobs:
        with torch.device("meta"):  # shapes alone: some heads do not fit every encoder
            job.build(encoder, seed=config.seed)
        job.plan(config.batch_size, config.batch_tokens)  # refuses examples that cannot be drawn so
    names = [job.name for job in jobs]
    distinct = len(set(names)) == len(names) and all(re.fullmatch(r"\w[\w.+-]*", name) for name in names)
    if names != [""] and not distinct:
        raise ConfigError(
            f"the tasks need names of their own of letters, digits and - (they become folders), not {names}"
        )
    windows = jobs[0].train.windows
    longest = np.array([windows.lengths.argmax()])
    encoder.check_states(collate(windows, longest, pad_id=encoder.pad_id, device=encoder.device))


def shares_out(config: TuneConfig, parallel: Parallel) -> bool:
    """Whether the encoder's weights are split over the processes."""
    return (config.shard or wants_sharding()) and not parallel.alone


class Tuning:
    """An encoder and a head for each job, ready to train.

    A checkpoint holds their parameters that train and their optimisers; all else follows from the settings.
    """

    def __init__(self, encoder: Encoder, jobs: Sequence[Job], config: TuneConfig, parallel: Parallel) -> None:
        self.encoder, self.jobs, self.config, self.parallel = encoder, jobs, config, parallel
        split = shares_out(config, parallel)
        if not split:
            encoder.model.to(encoder.device)  # a frozen one may be parked elsewhere
        encoder.tune(parse_policy(config.policy), seed=config.seed)
        if config.checkpointing:
            encoder.checkpoint_gradients()
        self.heads = [job.build(encoder, seed=config.seed).to(encoder.device) for job in jobs]
        self.counts = count_trainable([encoder.model, *self.heads])
        """Parameters that train, and all of them."""
        self.twin = self._share_out() if split else None
        """Of an encoder that is split over the processes: a whole one on rank 0."""
        self.captured = encoder.device.type == "cuda" and parallel.alone and not config.checkpointing
        """Whether steps are replayed as CUDA graphs."""
        self.optimizers = self._optimizers()

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """One for all that trains; with several jobs one for the encoder and one a head, which rests meanwhile."""
        together: dict[str, list[nn.Module]] = {"all": [self.encoder.model, *self.heads]}
        if len(self.jobs) > 1:
            together = {"all": [self.encoder.model]}
            together |= {f"head{i}": [head] for i, head in enumerate(self.heads)}
        return {
            name: make_optimizer(modules, self.config, capturable=self.captured)
            for name, modules in together.items()
            if any(p.requires_grad for module in modules for p in module.parameters())
        }

    def own_optimizers(self, job: int) -> list[torch.optim.Optimizer]:
        """Those that take a step with a batch of this job: the encoder's and its head's."""
        return [o for name, o in self.optimizers.items() if name in ("all", f"head{job}")]

    def _share_out(self) -> Encoder:
        """Split the encoder over the processes; rank 0 keeps a whole copy, which snapshots are made from."""
        twin = copy.deepcopy(self.encoder) if self.parallel.main else None
        dtype = torch.bfloat16 if self.encoder.precision == "bf16" else None
        shard(
            self.encoder.model,
            layers_of(self.encoder.model),
            self.parallel,
            self.encoder.device,
            dtype=dtype,
        )
        return twin or self.encoder

    @property
    def state(self) -> tuple[dict[str, nn.Module], dict[str, torch.optim.Optimizer]]:
        """What a checkpoint holds."""
        heads = {f"head{i}": head for i, head in enumerate(self.heads)}
        return {"encoder": self.encoder.model, **heads}, self.optimizers

    def whole(self) -> tuple[Encoder, list[Head]]:
        """The encoder and its heads as they are now; every process calls it, rank 0's are whole."""
        if self.twin is None:
            return self.encoder, self.heads
        weights = gathered(self.encoder.model)
        if self.parallel.main:
            self.twin.model.load_state_dict(weights)
        return self.twin, self.heads
