"""Everything that trains in one run of fine-tuning: made from an encoder, a policy and a head.

What a checkpoint holds of it are the parameters (all of the encoder's, adapters too) and the optimiser; where batches
come from and how steps are taken follows from the settings alone.
"""

import copy
import logging
import math

import torch
from torch import nn

from bertvision.encoder.cut import Top, check_cut, lower_encoder
from bertvision.encoder.digest import Digest, make_digest
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.policy import Policy, check_policy, count_trainable, parse_policy
from bertvision.encoder.stack import layers_of
from bertvision.errors import ConfigError
from bertvision.feed import FeedConfig
from bertvision.feed.reading import EVERYTHING
from bertvision.heads.base import Geometry, Head
from bertvision.heads.digest import digest_head
from bertvision.heads.spec import parse_head
from bertvision.train.finetune_config import FinetuneConfig
from bertvision.train.optim import make_optimizer
from bertvision.train.parallel import Parallel
from bertvision.train.sharded import gathered, shard, wants_sharding
from bertvision.train.splits import Split
from bertvision.train.stage import Stage
from bertvision.train.states import check_source, training_states
from bertvision.train.steps import GraphSteps, Steps
from bertvision.train.tunable import Source, StateSource, TokenSource, TopBody, Tunable, Whole

__all__ = ["Tuning", "check_tuning", "shares_out"]

logger = logging.getLogger(__name__)


def check_tuning(encoder: Encoder, config: FinetuneConfig, feed: FeedConfig, parallel: Parallel) -> None:
    """Refuse what this encoder cannot do, before anything is changed or written."""
    policy = parse_policy(config.policy)
    if config.epochs == 0:
        raise ConfigError("--epochs 0 leaves nothing to do: give the length of the run")
    check_policy(encoder.model, policy, name=encoder.name)
    if config.checkpointing:
        encoder.check_checkpointing()
    if shares_out(config, parallel):
        layers_of(encoder.model)  # they are shared out one by one
        if policy.cut is not None:
            raise ConfigError(
                f"--policy {policy} cannot share out its encoder: leave out --shard (or --use_fsdp), or use top-K"
            )
    if policy.cut is not None:
        check_source(feed, parallel)
        check_cut(encoder, policy.cut)
    with torch.device("meta"):  # shapes alone: some heads do not fit every encoder
        parse_head(config.head).build(Geometry(encoder.num_states, encoder.hidden), seed=config.seed)


def shares_out(config: FinetuneConfig, parallel: Parallel) -> bool:
    """Whether the encoder's weights are split over the processes."""
    return (config.shard or wants_sharding()) and not parallel.alone


class Tuning:
    """An encoder, its head, their optimiser and the way to batches and steps."""

    def __init__(
        self, encoder: Encoder, train: Split, config: FinetuneConfig, stage: Stage, feed: FeedConfig
    ) -> None:
        parallel = stage.parallel
        self.encoder, self.config, self.parallel = encoder, config, parallel
        policy = parse_policy(config.policy)
        shared_out = shares_out(config, parallel)
        if not shared_out:
            encoder.model.to(encoder.device)  # a frozen one may be parked elsewhere
        encoder.tune(policy, seed=config.seed)
        if config.checkpointing:
            encoder.checkpoint_gradients()
        self.head: Head
        self.source: Source
        body = (
            self._whole_body(train)
            if policy.cut is None
            else self._top_body(policy, policy.cut, train, stage, feed)
        )
        self.head.to(encoder.device)
        self.counts = count_trainable([encoder.model, self.head])
        self.twin = self._share_out() if shared_out else None
        self.tunable = Tunable(body, self.head)
        captured = encoder.device.type == "cuda" and parallel.alone and not config.checkpointing
        self.optimizer = make_optimizer([encoder.model, self.head], config, capturable=captured)
        kind = GraphSteps if captured else Steps
        self.steps = kind(self.tunable, self.optimizer, config, encoder, parallel)

    def _whole_body(self, train: Split) -> Whole:
        encoder, config = self.encoder, self.config
        geometry = Geometry(encoder.num_states, encoder.hidden)
        self.head = parse_head(config.head).build(geometry, seed=config.seed)
        self.source = TokenSource(encoder, train.windows)
        return Whole(encoder, last_only=self.head.last_only)

    def _top_body(self, policy: Policy, k: int, train: Split, stage: Stage, feed: FeedConfig) -> TopBody:
        """The layers above the cut, fed with the state below them."""
        encoder, config = self.encoder, self.config
        geometry = Geometry(encoder.num_states, encoder.hidden)
        spec = parse_head(config.head)
        digest = None
        self.head = spec.build(geometry, seed=config.seed)
        if not self.head.last_only and k < encoder.num_states - 1:
            digest = self._digest(k, train, stage)
            self.head = digest_head(digest, config.head, geometry, seed=config.seed)
        states, chosen = training_states(
            lower_encoder(encoder, k, digest),
            train,
            FeedConfig.of(feed, EVERYTHING),
            stage,
            choice="states at the cut",
            label="states at the cut",
            passes=math.ceil(config.epochs),
        )
        where = {"live": "computed in every pass", "memory": "in memory", "stored": "in a store"}
        logger.info(
            "%s: a step costs the top %d of %d layers; the state below them is %s",
            policy, k, encoder.num_states - 1, where[chosen],
        )  # fmt: skip
        self.source = StateSource(states)
        return TopBody(Top(encoder.model, k), encoder.hidden)

    def _digest(self, k: int, train: Split, stage: Stage) -> Digest:
        """Made once, by rank 0: another number of threads would round it differently, and heads and stores know it."""
        file = stage.folder / "digest.safetensors"

        def make() -> None:
            if not file.exists():
                make_digest(self.encoder, train.windows, k, self.config.digest).save(file)

        self.parallel.on_main(make)
        return Digest.load(file)

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
        return {"encoder": self.encoder.model, "head": self.head}, {"all": self.optimizer}

    def whole(self) -> tuple[Encoder, Head]:
        """The encoder and its head as they are now; every process calls it, rank 0's are whole."""
        if self.twin is None:
            return self.encoder, self.head
        weights = gathered(self.encoder.model)
        if self.parallel.main:
            self.twin.model.load_state_dict(weights)
        return self.twin, self.head
