"""What the server counts, in Prometheus' text form. The names are part of the interface."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING

from localagent.hosts.protocol import Prefilled, Queued
from localagent.messages import MalformedToolCallPart, ToolCallPart
from localagent.prompt import RequestWarning
from localagent.turn import Done, Scored, TurnEvent

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from localagent.server.models import ModelPool

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_UNSEEN = (Queued, Prefilled, RequestWarning, Scored)
_SPEEDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


class Watched:
    """One answer as it is measured: fed the events of its turns, it knows the times that clients feel."""

    def __init__(self) -> None:
        self.began = monotonic()
        self.first: float | None = None
        """Seconds from the request to the first token that can be seen."""
        self.gap = 0.0
        """The longest time between two events after that, in seconds."""
        self.done: list[Done] = []
        """The end of each turn; several where a request wants several choices."""
        self._last = 0.0

    def feed(self, event: TurnEvent) -> None:
        """Note when `event` came."""
        if isinstance(event, _UNSEEN):
            return
        now = monotonic()
        if isinstance(event, Done):
            self.done.append(event)
        elif self.first is None:
            self.first = now - self.began
        else:
            self.gap = max(self.gap, now - self._last)
        self._last = now


class Metrics:
    """The counters of one server. Its own registry: two servers in one process do not share numbers."""

    def __init__(self, pool: ModelPool) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self._pool = pool
        self._registry = registry = CollectorRegistry()
        of_model = ["model"]

        def counter(name: str, what: str, labels: list[str] = of_model) -> Counter:
            return Counter(f"localagent_{name}", what, labels, registry=registry)

        def histogram(name: str, what: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
            return Histogram(f"localagent_{name}", what, of_model, registry=registry, buckets=buckets)

        self._prompt = counter("prompt_tokens", "Prompt tokens, with those reused.")
        self._cached = counter("cached_tokens", "Prompt tokens that were not evaluated again.")
        self._generated = counter("generated_tokens", "Generated tokens.")
        self._hits = counter("cache_hits", "Answers whose prompt went on from an evaluated one.")
        self._requests = counter(
            "requests", "Requests by how they ended: ok, failed, refused or cancelled.", ["model", "outcome"]
        )
        self._malformed = counter(
            "malformed_calls", "Tool calls that could not be read.", ["model", "dialect"]
        )
        self._repaired = counter("repaired_calls", "Tool calls that were repaired.", ["model", "dialect"])
        self._relaxed = counter(
            "relaxed_parameters", "Parameters of tools whose schema was not enforced in full."
        )
        self._first = histogram("time_to_first_token_seconds", "From the request to the first visible token.")
        self._gap = histogram("longest_gap_seconds", "The longest wait between two tokens of an answer.")
        self._speed = histogram("decode_tokens_per_second", "Speed of an answer after its prompt.", _SPEEDS)
        registry.register(self)

    def ended(self, model: str, dialect: str, outcome: str, watched: Watched) -> None:
        """Count a request that is over. `model` is a served name, or "" where none was found."""
        self._requests.labels(model, outcome).inc()
        if watched.first is not None:
            self._first.labels(model).observe(watched.first)
            self._gap.labels(model).observe(watched.gap)
        for done in watched.done:
            self._turn_ended(model, dialect, done)

    def _turn_ended(self, model: str, dialect: str, done: Done) -> None:
        message = done.message
        usage, decode = message.usage, message.timings.decode
        self._prompt.labels(model).inc(usage.input)
        self._cached.labels(model).inc(usage.cache_read)
        self._generated.labels(model).inc(usage.output)
        self._hits.labels(model).inc(bool(usage.cache_read))
        if decode and usage.output > 1:
            self._speed.labels(model).observe((usage.output - 1) / decode)
        for part in message.content:
            if isinstance(part, MalformedToolCallPart):
                self._malformed.labels(model, dialect).inc()
            elif isinstance(part, ToolCallPart) and part.repaired:
                self._repaired.labels(model, dialect).inc()
        self._relaxed.labels(model).inc(len(done.relaxed))

    def collect(self) -> Iterator[Metric]:
        """What is read when it is asked for: see `prometheus_client.registry.Collector`."""
        from prometheus_client.core import GaugeMetricFamily

        def gauge(name: str, what: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"localagent_{name}", what, labels=["model"])

        running = gauge("requests_running", "Requests that are being answered.")
        waiting = gauge("requests_waiting", "Requests that wait for a place.")
        ready = gauge("model_ready", "1 if the model is loaded and its engine thread runs.")
        size = gauge("cache_bytes", "Memory of evaluated prompts beside the lanes.")
        for served in self._pool.served.values():
            running.add_metric([served.name], served.queue.running)
            waiting.add_metric([served.name], served.queue.waiting)
            ready.add_metric([served.name], served.state == "ready")
            size.add_metric([served.name], served.model.host.cache_bytes if served.model is not None else 0)
        yield from (running, waiting, ready, size)

    def totals(self) -> dict[str, dict[str, float]]:
        """The numbers of each model by their names, and its requests by how they ended."""
        found: dict[str, dict[str, float]] = {}
        for metric in self._registry.collect():
            for sample in metric.samples:
                if "le" in sample.labels or sample.name.endswith("_created"):
                    continue
                name = sample.labels.get("outcome", sample.name.removeprefix("localagent_"))
                of_model = found.setdefault(sample.labels.get("model", ""), {})
                of_model[name] = of_model.get(name, 0) + sample.value
        return found

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)
