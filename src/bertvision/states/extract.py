"""Fill a store: encode its shards, whoever and wherever we are.

Shards are made one after another by whole encoder calls of their own, so that their bytes follow from the data alone:
not from what was made before, nor from how many processes share the work. Rank r of R makes the shards r, r + R, ...
and is done when they are; whoever sees the last one arrive writes info.json.
"""

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext

from bertvision.console import Progress, progress, size_text
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, EncoderError, OutputError
from bertvision.states.claims import Claims
from bertvision.states.codec import encode
from bertvision.states.config import Selection
from bertvision.states.identity import Identity, Origin, StateType
from bertvision.states.live import LiveStates
from bertvision.states.plan import cut_by_tokens
from bertvision.states.ranks import ending_together
from bertvision.states.shard import DamagedShard, shard_name
from bertvision.states.store import Store

__all__ = ["Extractor", "check_room", "store_identity"]

logger = logging.getLogger(__name__)

_UNWRITTEN = 2
"""Encoder calls whose states may wait for the disk."""


def store_identity(encoder: Encoder, origin: Origin, selection: Selection, dtype: StateType) -> Identity:
    """What the store of these states is called by."""
    return Identity(
        encoder=encoder.fingerprint,
        configuration=encoder.configuration,
        precision=encoder.precision,
        windows=origin.fingerprint,
        preprocessing=origin.preprocessing,
        layers=selection.numbers(encoder.num_states),
        hidden=encoder.hidden,
        positions=selection.positions,
        dtype=dtype,
    )


def check_room(store: Store) -> None:
    """Refuse what the disk cannot hold, before anything is encoded."""
    free, missing = store.folder.free(), store.missing()
    needed = sum(store.layout(number).nbytes for number in missing)
    if free is not None and needed > free:
        raise OutputError(
            f"the states need {size_text(needed)} and the disk of {store.folder.address} has {size_text(free)} free: "
            "make room, choose another --states.store, or keep less (--states.layers, --states.positions, "
            "--states.dtype int8)"
        )


class Extractor:
    """Makes the shards of a store from an encoder."""

    def __init__(self, store: Store, live: LiveStates) -> None:
        self.store, self.live = store, live
        self.claims = Claims(store.folder)

    def make(self, number: int, *, wait: bool = True) -> bool:
        """Make a shard unless it is there; without `wait` leave it where another process is making it."""
        with self.claims.claim(number, wait=wait) as ours:
            if self.store.folder.size(shard_name(number)) is not None:
                self.store.finished(look=False).add(number)
                return True
            if not ours:
                return False
            self._compute(number)
        return True

    def repair(self, damaged: DamagedShard) -> None:
        """Make a damaged shard anew; the others stay as they are."""
        self._again(damaged)
        self.finish()

    def _again(self, damaged: DamagedShard) -> None:
        number = damaged.number
        with self.claims.claim(number, wait=True):
            try:
                self.store.verify(number)  # another process may have been faster, or a batch before this one
            except DamagedShard as found:
                logger.warning("%s is damaged (%s) and encoded again", self.store.path(number), found.why)
                self.store.drop(number)
                self._compute(number)

    def finish(self) -> bool:
        """Write info.json if all shards are there."""
        for _ in range(self.store.num_shards + 1):
            try:
                return self.store.finish()
            except DamagedShard as damaged:
                self._again(damaged)
        raise ArtifactError(
            f"{self.store.folder.address} does not keep what is written to it: check the disk"
        )

    def make_all(self, *, rank: int = 0, world: int = 1, label: str = "encode") -> int:
        """Make this rank's part of what is missing; returns how many tokens that was.

        What another process is making is waited for at the end, and in a process group so are all ranks.
        """
        numbers = range(rank, self.store.num_shards, world)
        tokens = [int(self.store.windows.lengths[self.store.plan.shards[n]].sum()) for n in numbers]
        there = set(self.store.finished())
        done = sum(count for number, count in zip(numbers, tokens, strict=True) if number in there)
        if there and rank == 0:
            logger.info("%s: %d of %d shards are there", label, len(there), self.store.num_shards)
        missing = {n: count for n, count in zip(numbers, tokens, strict=True) if n not in there}
        todo = sum(missing.values())
        # Several bars on one terminal would overwrite each other.
        shown = progress(label, sum(tokens), unit="tokens", done=done)
        with ending_together(world):
            with shown if rank == 0 else nullcontext(Progress(None, None, todo)) as bar:
                for wait in (False, True):
                    for number in list(missing):
                        if self.make(number, wait=wait):
                            bar.advance(missing.pop(number))
            self.finish()
        self.store.finished()
        return todo

    def _compute(self, number: int) -> None:
        """Encode one shard, call after call, and append each while the next is computed."""
        theirs, ours = self.store.identity.precision, self.live.encoder.precision
        if theirs != ours:
            raise ArtifactError(
                f"{self.store.path(number)} was computed in {theirs} and is missing or damaged: "
                f"an encoder in {ours} cannot make it anew, use --precision {theirs}"
            )
        windows = self.store.plan.shards[number]
        calls = cut_by_tokens(self.live.widths[windows], self.live.tokens_per_call)
        try:
            with self.store.write(number) as writer, ThreadPoolExecutor(1) as disk:
                unwritten: list[Future[None]] = []
                for call in calls:
                    batch = self.live.read(windows[call])
                    # Here and not in the thread: a GPU must not be used elsewhere while a graph is captured.
                    stored, scales, moments = encode(batch.states[:, batch.mask], self.store.identity.dtype)
                    unwritten.append(disk.submit(writer.append, stored, moments, scales))
                    if len(unwritten) >= _UNWRITTEN:
                        unwritten.pop(0).result()
                for one in unwritten:
                    one.result()
        except FloatingPointError as error:
            raise EncoderError(
                f"{self.live.encoder.name} gives states that are no finite numbers: check its weights"
            ) from error
        except OverflowError as error:
            raise EncoderError(
                f"{self.live.encoder.name} has states beyond {error}: store them with --states.dtype bf16 or fp32"
            ) from error
        except OutputError as error:
            kept = len(self.store.finished())
            raise OutputError(
                f"{error} ({kept} of {self.store.num_shards} shards are there and are used)"
            ) from error
