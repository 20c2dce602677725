"""Encode what a store lacks.

Shards are made one after another by whole encoder calls of their own, so that their bytes follow from the data alone,
not from what was made before. One process at a time writes into a store; another that wants the same shard waits.
"""

import logging

from bertvision.console import progress
from bertvision.errors import ArtifactError, EncoderError, OutputError
from bertvision.states.base import States
from bertvision.states.codec import encode
from bertvision.states.plan import cut_by_tokens
from bertvision.states.shard import DamagedShard
from bertvision.states.store import Store

__all__ = ["make_all", "make_shard"]

logger = logging.getLogger(__name__)


def make_all(store: Store, states: States, *, label: str = "encode") -> int:
    """Make all shards that are missing; returns the number of tokens that were encoded."""
    missing = store.missing()
    tokens = [int(store.windows.lengths[shard].sum()) for shard in store.plan.shards]
    todo = sum(tokens[number] for number in missing)
    if 0 < len(missing) < store.num_shards:
        logger.info("%s: %d of %d shards are there", label, store.num_shards - len(missing), store.num_shards)
    with progress(label, sum(tokens), unit="tokens", done=sum(tokens) - todo) as bar:
        for number in missing:
            make_shard(store, states, number)
            bar.advance(tokens[number])
    return todo


def make_shard(store: Store, states: States, number: int, *, verify: bool = False) -> None:
    """Make a shard, unless another process has made it in the meantime.

    With `verify` also one that is there and damaged.
    """
    with store.locked():
        if number not in store.missing():
            try:
                if verify:
                    store.verify(number)
                return
            except DamagedShard as damage:
                logger.warning("%s is damaged (%s) and encoded again", store.path(number), damage.why)
                store.drop(number)
        _encode(store, states, number)


def _encode(store: Store, states: States, number: int) -> None:
    """Encode one shard, call after call."""
    theirs, ours = store.identity.precision, states.encoder.precision
    if theirs != ours:
        raise ArtifactError(
            f"{store.path(number)} was computed in {theirs} and is missing or damaged: an encoder in {ours} "
            f"cannot make it again, use --precision {theirs}"
        )
    windows = store.plan.shards[number]
    batches = (states.read(windows[i]) for i in cut_by_tokens(states.widths[windows], states.tokens_per_call))
    try:
        store.write(number, (encode(one.states[:, one.mask], store.identity.dtype) for one in batches))
    except FloatingPointError as error:
        raise EncoderError(
            f"{states.encoder.name} gives states that are no finite numbers: check its weights"
        ) from error
    except OverflowError as error:
        raise EncoderError(
            f"{states.encoder.name} has states beyond {error}: store them with --states.dtype bf16 or fp32"
        ) from error
    except OutputError as error:
        there = store.num_shards - len(store.missing())
        raise OutputError(f"{error} ({there} of {store.num_shards} shards are there and are used)") from error
