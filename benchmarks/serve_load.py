"""A server under load on loopback: what rate it sustains, and what it does at four times that rate.

    python benchmarks/serve_load.py [--encoder embedded] [--seconds 14] [--rounds 4] [--threads 1] [--json FILE]

A real `bertvision serve` process with one encoder and three heads (two of spans, one of labels; random weights, which
cost what trained ones cost) is asked the questions of the embedded demo data, each over its paragraph.

1. Clients that each wait for their answer before they ask again: as much as the server can do.
2. A fixed rate, 0.8 of that, whatever the answers take: the sustained rate. Nothing may be refused.
3. Four times the sustained rate, in several equal rounds. Refusals must be 429.

Every answer is held against what the same folder answers in this process; every request must come to an answer. Memory
is that of the server's process, as /metrics tells it, after every round. It is warm when the first round of overload is
over: until then it has not held as many connections and batches at once. It must be flat from there on: what grows
with requests would grow in the rounds that follow. Requests are bounded in number (--most) and by the clock.
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from common import arguments, write

import bertvision as bv
from bertvision.config import to_mapping
from bertvision.data.load import load_span_data
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.heads import Geometry, parse_head, save_head
from bertvision.tasks.base import Task
from bertvision.tasks.label_score import LabelTask
from bertvision.tasks.span import SPAN

OVERLOAD = "four times, round"
TASKS: dict[str, tuple[str, Task]] = {
    "span": ("adapter:size=64", SPAN),
    "pooled": ("learned_pooling", SPAN),
    "answerable": (
        "cls_linear",
        LabelTask(("answer", "no answer"), merge="min", asks=True, pairs=True),
    ),
}
FLAT = 0.03
"""The most that memory may have grown, as a share of what it was when the server was warm."""
KEPT = 1.0
"""Seconds after which an idle connection is not used again: the server closes them after some."""
CLOSE = 1e-3
"""Numbers of one input differ by rounding with the company it is computed in."""


def write_heads(folder: Path, encoder: Encoder) -> Path:
    """A folder of heads as training leaves them."""
    for name, (spec, task) in TASKS.items():
        pooled = task.kind != "span" and encoder.has_pooler
        geometry = Geometry(encoder.num_states, encoder.hidden, task.outputs, task.unit, pooled)
        about = {
            "task": task.config(),
            "windows": to_mapping(WindowConfig()),
            "encoder": {"name": encoder.name, "fingerprint": encoder.fingerprint},
        }
        (folder / name).mkdir(parents=True)
        save_head(parse_head(spec).build(geometry, seed=0), folder / name, about=about)
    return folder


@dataclass
class Phase:
    """What came of the requests of a phase."""

    offered: float  # requests a second that were sent; 0 = as fast as answers came
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    times: list[float] = field(default_factory=list)  # seconds to the answers that were given
    late: float = 0.0
    """The most seconds that a request was sent after its time: where the load itself lacks a processor."""
    memory: float = 0.0  # MB of the server when the phase was over

    def row(self) -> dict[str, Any]:
        times = sorted(self.times)
        at = lambda share: 1e3 * times[min(len(times) - 1, int(share * len(times)))] if times else None  # noqa: E731
        return {
            "offered_per_second": round(self.offered, 1),
            "requests": sum(self.statuses.values()),
            "answered_per_second": round(len(times) / self.seconds, 1),
            "statuses": dict(self.statuses),
            "wrong": self.wrong,
            "lost": sum(count for status, count in self.statuses.items() if not status.isdigit()),
            "p50_ms": at(0.5),
            "p99_ms": at(0.99),
            "memory_mb": round(self.memory, 1),
            "late_s": round(self.late, 2),
        }


class Load:
    """Asks one server."""

    def __init__(self, url: str, bodies: list[Any], expected: list[Any]) -> None:
        self.host, _, port = url.removeprefix("http://").partition(":")
        self.port, self.bodies, self.expected = int(port), bodies, expected
        self.free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]] = []
        """Open connections, and when each was used last."""

    async def request(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Status and body of an answer.

        By hand: libraries look through all their connections for every request, which at hundreds of them takes
        longer than the answers do.
        """
        reader, writer, used = self.free.pop() if self.free else (None, None, 0.0)
        if reader is None or writer is None or time.monotonic() - used > KEPT:
            self.close()  # all others have been idle for longer
            reader, writer = await asyncio.open_connection(self.host, self.port)
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        length = next(
            int(line.split(":")[1]) for line in headers if line.lower().startswith("content-length:")
        )
        answer = await reader.readexactly(length)
        self.free.append((reader, writer, time.monotonic()))
        return int(status.split()[1]), answer

    def close(self) -> None:
        for _, writer, _ in self.free:
            writer.close()
        self.free.clear()

    async def ask(self, number: int, phase: Phase) -> None:
        which = number % len(self.bodies)
        began = time.perf_counter()
        try:
            status, answer = await asyncio.wait_for(
                self.request("POST", "/v1/predict", self.bodies[which]), 60
            )
        except (OSError, EOFError, TimeoutError) as error:
            phase.statuses[type(error).__name__] += 1
            return
        phase.statuses[str(status)] += 1
        if status == 200:
            phase.times.append(time.perf_counter() - began)
            phase.wrong += not same(json.loads(answer)["predictions"], self.expected[which])

    async def closed(self, clients: int, seconds: float, most: int) -> Phase:
        """So many clients, each one request at a time."""
        phase, numbers, began = Phase(0.0), iter(range(most)), time.perf_counter()

        async def one() -> None:
            for number in numbers:
                if time.perf_counter() - began > seconds:
                    return
                await self.ask(number, phase)

        await asyncio.gather(*(one() for _ in range(clients)))
        return await self._end(phase, began)

    async def open(self, rate: float, seconds: float, most: int) -> Phase:
        """A fixed rate, whatever the answers take."""
        phase, began, running = Phase(rate), time.perf_counter(), []
        for number in range(min(most, int(rate * seconds))):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            phase.late = max(phase.late, time.perf_counter() - due)
            running.append(asyncio.create_task(self.ask(number, phase)))
        await asyncio.gather(*running)
        return await self._end(phase, began)

    async def _end(self, phase: Phase, began: float) -> Phase:
        phase.seconds = time.perf_counter() - began
        self.close()  # the server would close them too, a little later
        phase.memory = await self.memory()
        self.close()
        return phase

    async def memory(self) -> float:
        """MB of the server's process."""
        lines = (await self.request("GET", "/metrics"))[1].decode().splitlines()
        return float(next(x for x in lines if x.startswith("process_resident_memory_bytes")).split()[1]) / 1e6


def same(answer: Any, expected: Any) -> bool:
    """Whether an answer is that of the folder itself."""
    if isinstance(expected, dict):
        return all(same(answer.get(name), value) for name, value in expected.items())
    return abs(answer - expected) < CLOSE if isinstance(expected, float) else answer == expected


def inputs(count: int) -> tuple[list[str], list[str]]:
    data = load_span_data("demo:dev")
    examples = [data.examples[i % len(data.examples)] for i in range(count)]
    return [e.question for e in examples], [data.paragraphs[e.paragraph] for e in examples]


def start(folder: Path, encoder: str, threads: int) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "bertvision", "serve", str(folder), "--port", "0", "--encoder", encoder]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": str(threads)}
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("the server did not start")
    return process, line.split()[-1]


async def measure(
    args: argparse.Namespace, url: str, bodies: list[Any], expected: list[Any]
) -> dict[str, Any]:
    load = Load(url, bodies, expected)
    for _ in range(3):  # the largest batches there are
        await load.request("POST", "/v1/predict/batch", {"inputs": bodies})
    rows: dict[str, Any] = {}

    def told(name: str, phase: Phase) -> None:
        rows[name] = phase.row()
        print_row(name, rows[name])

    free = await load.closed(args.clients, args.seconds, args.most)
    told("as fast as answers come", free)
    rate = 0.8 * len(free.times) / free.seconds
    told("sustained", await load.open(rate, args.seconds, args.most))
    for number in range(1, args.rounds + 1):
        told(f"{OVERLOAD} {number}", await load.open(4 * rate, args.seconds, args.most))
    return rows


def print_row(name: str, row: dict[str, Any]) -> None:
    p50, p99 = (f"{row[key]:.0f}" if row[key] is not None else "-" for key in ("p50_ms", "p99_ms"))
    print(
        f"{name:<24} {row['offered_per_second'] or '':>9} {row['answered_per_second']:>10} {p50:>8} {p99:>8} "
        f"{row['memory_mb']:>7}  {row['wrong']:>5} {row['lost']:>4}  {row['statuses']}",
        flush=True,
    )


def verdicts(rows: dict[str, Any], code: int) -> list[str]:
    """Print what came of it; what is not as it must be."""
    overload = [row for name, row in rows.items() if name.startswith(OVERLOAD)]
    warm, last = overload[0]["memory_mb"], overload[-1]["memory_mb"]
    most = max(row["memory_mb"] for row in overload)
    growth = most / warm - 1
    asked = sum(row["requests"] for row in overload[1:])
    print(
        f"memory: {warm:.0f} MB warm, {last:.0f} MB at the end, {most:.0f} MB at most ({growth:+.1%} over {asked}"
    )
    print(f"        requests): {'flat' if growth <= FLAT else 'NOT FLAT'} (limit {FLAT:+.0%})")
    worst = max((row["p99_ms"] or 0.0) for row in overload) / 1e3
    print(f"p99 of accepted requests at four times the sustained rate: {worst:.1f} s at most")
    early = rows["sustained"]["statuses"].get("429", 0)
    print(f"refused at the sustained rate: {early} of {rows['sustained']['requests']}")
    failures = []
    if code:
        failures.append(f"the server ended with {code}")
    if any(row["wrong"] or row["lost"] for row in rows.values()):
        failures.append("an answer was wrong or lost")
    if {status for row in rows.values() for status in row["statuses"]} - {"200", "429"}:
        failures.append("a refusal was no 429")
    if growth > FLAT:
        failures.append("memory is not flat")
    return failures


def main() -> None:
    # seconds of each phase, requests of each phase at most, threads of the server: the load needs a core of its own
    args = arguments(__doc__, encoder="embedded", seconds=14.0, rounds=4, most=20_000, clients=32, threads=1)
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = write_heads(Path(name) / "heads", Encoder.load(args.encoder, device="cpu"))
        questions, contexts = inputs(64)
        found = bv.load(folder, encoder=args.encoder, device="cpu").predict(questions, contexts)
        wanted = ("text", "start", "end", "label", "probability")
        expected = [
            {
                task: {key: value for key, value in asdict(one).items() if key in wanted}
                for task, one in row.items()
            }
            for row in found
        ]
        bodies = [{"question": a, "context": b} for a, b in zip(questions, contexts, strict=True)]
        characters = statistics.mean(len(text) for text in contexts)
        print(f"{args.encoder}: {len(TASKS)} heads, {args.threads} thread(s), {os.cpu_count()} cores")
        print(f"{platform.machine()}; questions over paragraphs of {characters:.0f} characters")
        names = f"{'phase':<24} {'offered/s':>9} {'answered/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'MB':>7}"
        print(f"{names}  wrong lost  statuses", flush=True)
        process, url = start(folder, args.encoder, args.threads)
        try:
            rows = asyncio.run(measure(args, url, bodies, expected))
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
    write(args, rows=rows)
    failures = verdicts(rows, code)
    if failures:
        raise SystemExit(f"failed: {'; '.join(failures)}")


if __name__ == "__main__":
    main()
