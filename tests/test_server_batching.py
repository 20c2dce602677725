"""Micro-batches by hand: who is computed with whom, who is refused, and what a withdrawn input costs."""

import asyncio
import threading
from typing import Any

import pytest

from bertvision.data.windows import WindowConfig
from bertvision.serve.batching import Batcher, Full, TooLong, work_of
from bertvision.serve.config import ServeConfig
from bertvision.serve.metrics import Metrics


class Model:
    """Doubles numbers, when it is let."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.calls: list[tuple[str, list[int]]] = []

    def __call__(self, key: str, inputs: list[int]) -> list[int]:
        self.open.wait(60)
        self.calls.append((key, inputs))
        if 13 in inputs:
            raise ValueError("thirteen")
        return [2 * one for one in inputs]


def known(batcher: Batcher, seconds: float) -> None:
    """Fix the speed: a character takes so long, whatever is measured."""
    batcher._seconds, batcher._work = seconds, 1.0
    batcher.learn = lambda *_: None  # pyright: ignore[reportAttributeAccessIssue]


def run(config: ServeConfig, test: Any) -> Model:
    """Call `test(batcher, model)` with the batcher at work."""
    model = Model()

    async def everything() -> None:
        batcher: Batcher = Batcher(model, config, Metrics())
        known(batcher, 1e-9)
        worker = asyncio.create_task(batcher.run())
        await asyncio.sleep(0)  # it waits for work
        await test(batcher, model)
        model.open.set()
        worker.cancel()
        await batcher.close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("model")]

    asyncio.run(everything())
    return model


def submit(batcher: Batcher, *inputs: tuple[str, int], size: int = 1) -> list[asyncio.Future[Any]]:
    return [job.done for job in batcher.submit([(key, number, size) for key, number in inputs])]


async def block(batcher: Batcher) -> asyncio.Future[Any]:
    """Something that the model is busy with, so that what comes now waits."""
    (done,) = submit(batcher, ("block", 0))
    while batcher._queue:
        await asyncio.sleep(0.001)
    return done


def test_equal_keys_go_together_oldest_first_up_to_the_limit() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        first = await block(batcher)
        futures = submit(batcher, ("a", 1), ("b", 2), ("a", 3), ("a", 4), ("b", 5), ("a", 6))
        model.open.set()
        assert await asyncio.gather(first, *futures) == [0, 2, 4, 6, 8, 10, 12]
        assert not batcher._queue

    model = run(ServeConfig(max_batch=3, queue=8, batch_wait_ms=0), test)
    assert model.calls == [("block", [0]), ("a", [1, 3, 4]), ("b", [2, 5]), ("a", [6])]


def test_long_texts_do_not_go_together() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        first = await block(batcher)
        futures = submit(batcher, ("a", 1), ("a", 2), size=150_000) + submit(batcher, ("a", 3))
        model.open.set()
        await asyncio.gather(first, *futures)

    model = run(ServeConfig(batch_wait_ms=0), test)
    assert model.calls[1:] == [("a", [1, 3]), ("a", [2])]


def test_an_idle_model_waits_for_company() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        model.open.set()
        (one,) = submit(batcher, ("a", 1))
        await asyncio.sleep(0)  # the worker has seen it
        (two,) = submit(batcher, ("a", 2))
        assert await asyncio.gather(one, two) == [2, 4]

    assert run(ServeConfig(max_batch=2, queue=2, batch_wait_ms=10_000), test).calls == [("a", [1, 2])]


def test_a_batch_that_fails_is_tried_one_by_one() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        first = await block(batcher)
        futures = submit(batcher, ("a", 1), ("a", 13), ("a", 2))
        model.open.set()
        found = await asyncio.gather(first, *futures, return_exceptions=True)
        assert [found[1], found[3]] == [2, 4]
        assert isinstance(found[2], ValueError)

    assert run(ServeConfig(batch_wait_ms=0), test).calls[2:] == [("a", [1]), ("a", [13]), ("a", [2])]


def test_what_is_withdrawn_is_not_computed_and_leaves_a_place() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        first = await block(batcher)
        jobs = batcher.submit([("a", number, 1) for number in (1, 2, 3)])
        with pytest.raises(Full):
            batcher.submit([("a", 4, 1)])
        batcher.withdraw(jobs[:2])
        (late,) = submit(batcher, ("a", 4))
        model.open.set()
        assert await asyncio.gather(first, jobs[2].done, late) == [0, 6, 8]
        assert jobs[0].done.cancelled()

    assert run(ServeConfig(max_batch=3, queue=3, batch_wait_ms=0), test).calls[1:] == [("a", [3, 4])]


def test_long_waits_are_refused_with_the_time_to_come_back() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        known(batcher, 0.01)  # an input of 900 characters takes 10 s
        first = await block(batcher)
        submit(batcher, ("a", 1), size=900)  # 1 s ahead of it
        submit(batcher, ("a", 2), size=300)  # 11 s ahead
        with pytest.raises(Full) as full:
            submit(batcher, ("a", 3))  # 15 s ahead, and 12 are allowed
        assert full.value.seconds in (3, 4), "the first has been running for a moment"
        model.open.set()
        await first

    run(ServeConfig(max_wait=12, batch_wait_ms=0), test)
    run(ServeConfig(timeout=24, max_wait=100, batch_wait_ms=0), test)


def test_a_full_queue_says_when_there_is_room() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        known(batcher, 0.01)
        first = await block(batcher)
        submit(batcher, ("a", 1), size=100)
        submit(batcher, ("a", 2), size=500)
        for count, seconds in ((1, 2), (2, 8)):  # 2 s of the oldest, then 6 more
            with pytest.raises(Full) as full:
                submit(batcher, *[("a", 3)] * count)
            assert full.value.seconds == seconds, count
        model.open.set()
        await first

    run(ServeConfig(queue=2, max_batch=2, max_wait=1000, timeout=3000, batch_wait_ms=0), test)


def test_an_input_that_cannot_be_in_time_is_refused_at_once() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        known(batcher, 0.01)
        first = await block(batcher)
        (done,) = submit(batcher, ("a", 1), size=2000)  # 31 s of its own, which the timeout allows
        with pytest.raises(TooLong) as error:
            submit(batcher, ("a", 2), ("a", 3), size=2500)
        assert error.value.seconds == 46
        model.open.set()
        assert await asyncio.gather(first, done) == [0, 2]

    run(ServeConfig(max_wait=5, timeout=40, batch_wait_ms=0), test)


def test_a_slow_model_gets_small_batches() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        known(batcher, 0.001)  # half a second: 500 characters
        first = await block(batcher)
        futures = submit(batcher, *[("a", i) for i in range(5)], size=100)  # 200 each
        model.open.set()
        await asyncio.gather(first, *futures)

    assert run(ServeConfig(batch_wait_ms=0), test).calls[1:] == [("a", [0, 1]), ("a", [2, 3]), ("a", [4])]


def test_speed_follows_what_was_measured() -> None:
    batcher = Batcher(Model(), ServeConfig(), Metrics())
    assert batcher.expected(1e9) == 0, "nothing is known"
    batcher.learn(10, 1000)
    assert batcher.expected(500) == pytest.approx(5)
    batcher.learn(2, 100)
    assert batcher.expected(1) == pytest.approx((0.8 * 10 + 2) / (0.8 * 1000 + 100))
    for _ in range(60):
        batcher.learn(0.001, 1)
    assert batcher.expected(1000) == pytest.approx(1, rel=1e-2), "old measurements are forgotten"


def test_work_is_what_is_read_in_overlapping_windows() -> None:
    windows = WindowConfig()
    room = windows.max_seq_length - 13  # beside a question and the special tokens

    def tokens_read(tokens: int) -> int:
        begin, read = 0, 0
        while True:
            read += min(room, tokens - begin)
            if begin + room >= tokens:
                return read
            begin += windows.doc_stride

    for tokens in (100, 370, 500, 2000, 25_000):  # of four characters, as English has them
        assert work_of(4 * tokens) == pytest.approx(4 * tokens_read(tokens), rel=0.3), tokens


def test_a_failed_batch_that_nobody_waits_for_leaves_nothing_behind() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        first = await block(batcher)
        jobs = batcher.submit([("a", 13, 1), ("a", 2, 1)])
        model.open.set()
        await first
        batcher.withdraw(jobs)
        for _ in range(1000):
            if len(model.calls) == 2 and not batcher._running:
                break
            await asyncio.sleep(0.001)
        assert batcher.wait_time() == 0

    assert run(ServeConfig(batch_wait_ms=0), test).calls[1:] in ([("a", [13, 2])], [])
