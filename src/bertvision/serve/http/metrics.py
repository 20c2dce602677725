"""What a server counts, in the format of Prometheus: GET /metrics.

bertvision_requests_total{route, status}         answers
bertvision_request_seconds{route}                from the first byte to the last, as a histogram
bertvision_queue_inputs                          inputs that wait
bertvision_running_inputs                        inputs that are computed now
bertvision_batch_inputs                          inputs of a micro-batch, as a histogram
bertvision_windows_total                         windows the encoder read
bertvision_given_up_inputs_total                 inputs whose request timed out or whose client went away
process_*                                        memory, CPU time and open files of the process
"""

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from bertvision.serve.http.guard import Message, Receive, Scope, Send

__all__ = ["METRICS_TYPE", "Meter", "Metrics"]

METRICS_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_INPUTS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The counters of one server; a registry of its own, so that two servers in a process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        options: dict[str, Any] = {"namespace": "bertvision", "registry": self.registry}
        self.requests = Counter("requests", "Answers by route and status.", ["route", "status"], **options)
        self.seconds = Histogram(
            "request_seconds", "Seconds to an answer.", ["route"], buckets=_SECONDS, **options
        )
        self.waiting = Gauge("queue_inputs", "Inputs that wait.", **options)
        self.running = Gauge("running_inputs", "Inputs that are computed now.", **options)
        self.batches = Histogram("batch_inputs", "Inputs of a micro-batch.", buckets=_INPUTS, **options)
        self.windows = Counter("windows", "Windows the encoder read.", **options)
        self.given_up = Counter("given_up_inputs", "Inputs nobody waits for any more.", **options)
        ProcessCollector(registry=self.registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Meter:
    """ASGI around ASGI: counts and times every request under the route that answered it."""

    def __init__(self, app: Any, metrics: Metrics, routes: frozenset[str]) -> None:
        """
        Args:
            routes: Paths that are counted by their own name; all others together, whatever clients make up.
        """
        self.app, self.metrics, self.routes = app, metrics, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        route = scope["path"] if scope["path"] in self.routes else "other"

        async def counted(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                self.metrics.requests.labels(route, str(message["status"])).inc()
            elif not message.get("more_body", False):
                self.metrics.seconds.labels(route).observe(time.perf_counter() - began)

        await self.app(scope, receive, counted)
