"""Counters of a server, for Prometheus: GET /metrics."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_INPUTS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The counters of one server, in a registry of their own: two servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "bertvision", "registry": self.registry}
        routes = ["route"]
        self.requests = Counter("requests", "Answers by route and status.", [*routes, "status"], **own)
        self.seconds = Histogram("request_seconds", "Seconds to an answer.", routes, buckets=_SECONDS, **own)
        self.waiting = Gauge("queue_inputs", "Inputs that wait.", **own)
        self.running = Gauge("running_inputs", "Inputs that are computed now.", **own)
        self.batches = Histogram("batch_inputs", "Inputs of a micro-batch.", buckets=_INPUTS, **own)
        self.characters = Counter("characters", "Characters of computed inputs.", **own)
        self.given_up = Counter("given_up_inputs", "Inputs nobody waits for any more.", **own)
        ProcessCollector(registry=self.registry)
