"""Micro-batches by hand: who is computed with whom, who is refused, and what a withdrawn input costs."""

import asyncio
import threading
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from bertvision.data.windows import WindowConfig
from bertvision.serve.config import ServeConfig
from bertvision.serve.service import Batcher, Metrics, Query


class Model:
    """Answers with the task and the number of each text, when it is let."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.calls: list[list[str]] = []

    def __call__(self, queries: list[Query]) -> list[str]:
        self.open.wait(60)
        said = [query.tasks[0] + query.texts[0].strip() for query in queries]
        self.calls.append(said)
        if any("bad" in one for one in said):
            raise ValueError("bad")
        return said


def known(batcher: Batcher, seconds: float) -> None:
    """Fix the speed: a character takes so long, whatever is measured."""
    batcher._seconds, batcher._work = seconds, 1.0
    batcher.learn = lambda *_: None  # pyright: ignore[reportAttributeAccessIssue]


def run(config: ServeConfig, test: Any) -> list[list[str]]:
    """Call `test(batcher, model)` while the model is busy; returns what it computed afterwards."""
    model = Model()

    async def everything() -> None:
        batcher = Batcher(model, config, Metrics())
        known(batcher, 1e-9)
        worker = asyncio.create_task(batcher.run())
        await asyncio.sleep(0)  # it waits for work
        (block,) = submit(batcher, "block")
        while batcher._queue:
            await asyncio.sleep(0.001)
        await test(batcher, model)
        model.open.set()
        await block
        while batcher._queue or batcher._running:
            await asyncio.sleep(0.001)
        assert batcher.wait_time() == 0
        worker.cancel()
        await asyncio.wait({worker})
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("model")]

    asyncio.run(everything())
    return model.calls[1:]


def submit(batcher: Batcher, *texts: str, size: int = 1) -> list[asyncio.Future[Any]]:
    """Texts such as "a1": of task a; each padded to so many characters."""
    return batcher.submit([Query((text[1:].ljust(size),), (text[0],)) for text in texts])


def refused(batcher: Batcher, *texts: str, size: int = 1) -> tuple[int, int]:
    """Status and seconds to come back in."""
    with pytest.raises(HTTPException) as caught:
        submit(batcher, *texts, size=size)
    return caught.value.status_code, int((caught.value.headers or {}).get("retry-after", 0))


async def answers(jobs: list[asyncio.Future[Any]]) -> list[Any]:
    return await asyncio.gather(*jobs, return_exceptions=True)


def test_equal_keys_go_together_oldest_first_up_to_the_limit() -> None:
    texts = ["a1", "b2", "a3", "a4", "b5", "a6"]

    async def test(batcher: Batcher, model: Model) -> None:
        jobs = submit(batcher, *texts)
        model.open.set()
        assert await answers(jobs) == texts

    calls = run(ServeConfig(max_batch=3, queue=8, batch_wait_ms=0), test)
    assert calls == [["a1", "a3", "a4"], ["b2", "b5"], ["a6"]]


def test_long_texts_and_what_is_explained_are_computed_alone() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        submit(batcher, "a1", "a2", size=150_000)
        submit(batcher, "a3")
        batcher.submit([Query((one,), ("a",), explain=True) for one in "45"])

    assert run(ServeConfig(batch_wait_ms=0), test) == [["a1", "a3"], ["a2"], ["a4"], ["a5"]]


def test_an_idle_model_waits_for_company() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        model.open.set()
        while batcher._running:
            await asyncio.sleep(0.001)
        jobs = submit(batcher, "a1")
        await asyncio.sleep(0)  # the worker has seen it
        assert await answers(jobs + submit(batcher, "a2")) == ["a1", "a2"]

    assert run(ServeConfig(max_batch=2, queue=2, batch_wait_ms=500), test) == [["a1", "a2"]]


def test_a_batch_that_fails_is_tried_one_by_one() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        jobs = submit(batcher, "a1", "abad", "a2")
        model.open.set()
        first, bad, last = await answers(jobs)
        assert (first, last, type(bad)) == ("a1", "a2", ValueError)

    assert run(ServeConfig(batch_wait_ms=0), test)[1:] == [["a1"], ["abad"], ["a2"]]


def test_what_is_withdrawn_is_not_computed_and_leaves_a_place() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        jobs = submit(batcher, "a1", "a2", "a3")
        assert refused(batcher, "a4")[0] == 429
        batcher.withdraw(jobs[:2])
        submit(batcher, "a4")
        assert jobs[0].cancelled()

    assert run(ServeConfig(max_batch=3, queue=3, batch_wait_ms=0), test) == [["a3", "a4"]]


def test_long_waits_and_long_texts_are_refused() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        known(batcher, 0.01)  # 1 s for each text, and 0.01 s a character
        submit(batcher, "a1", size=900)  # 1 s ahead of it
        submit(batcher, "a2", size=300)  # 11 s ahead
        status, seconds = refused(batcher, "a3")  # 15 s ahead, and 12 are allowed
        assert (status, seconds in (3, 4)) == (429, True), "the first has been running for a moment"
        assert refused(batcher, "a4", size=2500) == (422, 0), "it would take 46 s by itself"

    run(ServeConfig(max_wait=12, timeout=40, batch_wait_ms=0), test)
    run(ServeConfig(max_wait=100, timeout=24, batch_wait_ms=0), test)


def test_a_slow_model_gets_small_batches() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        known(batcher, 0.001)  # half a second: 500 characters
        submit(batcher, "a0", "a1", "a2", "a3", "a4", size=100)  # 200 each

    assert run(ServeConfig(batch_wait_ms=0), test) == [["a0", "a1"], ["a2", "a3"], ["a4"]]


def test_speed_follows_what_was_measured() -> None:
    batcher = Batcher(Model(), ServeConfig(), Metrics())
    assert batcher.expected(1e9) == 0, "nothing is known"
    batcher.learn(10, 1000)
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
        work = Query(("x" * 4 * tokens,), ("a",)).work
        assert work == pytest.approx(4 * tokens_read(tokens), rel=0.3), tokens
