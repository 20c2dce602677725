"""Counters of a server, for Prometheus: GET /metrics.

bertvision_requests_total{route, status}         answers
bertvision_request_seconds{route}                from the first byte to the last, as a histogram
bertvision_queue_inputs                          inputs that wait
bertvision_running_inputs                        inputs that are computed now
bertvision_batch_inputs                          inputs of a micro-batch, as a histogram
bertvision_characters_total                      characters of the inputs that were computed
bertvision_given_up_inputs_total                 inputs whose request timed out or whose client went away
process_*                                        memory, CPU time and open files of the process
"""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

METRICS_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_INPUTS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The counters of one server, in a registry of their own: two servers in one process do not mix."""

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
        self.characters = Counter("characters", "Characters of computed inputs.", **options)
        self.given_up = Counter("given_up_inputs", "Inputs nobody waits for any more.", **options)
        ProcessCollector(registry=self.registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)
