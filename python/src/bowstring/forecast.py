"""A server's prediction of how a job will run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Forecast:
    """How a job will run and, if it runs, what it does: the result of [Client.explain][bowstring.Client.explain].

    Attributes:
        samples_per_s: Samples per second over all epochs, all ranks together; None if no known rate limits them.
        limit: The bottleneck: `store`, `link`, `spill`, `node`, `network` or `consumer`. With `consumer`, ranks do not
            wait.
        because: The rate that determines the bottleneck.
        first_batch_s: Seconds until the first batch.
        seconds: Seconds for all epochs.
        wait_s: Seconds that each rank waits.
        smallest_cache_bytes: The smallest spill per node with which ranks do not wait in later epochs; None if there is
            none.
        smallest_window_bytes: The smallest window memory per node with which ranks do not wait for it; None if there is
            none.
        unknown: The parts that were not measured, of `store`, `spill`, `node` and `network`, and so are assumed to
            limit nothing. The prediction can be far too high then; `bowstring calibrate` measures them.
        running: What the job does compared to the prediction, if it runs on the server; else None.
        answer: The server's whole answer, as in the protocol.
    """

    samples_per_s: float | None
    limit: str
    because: str
    first_batch_s: float
    seconds: float
    wait_s: float
    smallest_cache_bytes: int | None
    smallest_window_bytes: int | None
    unknown: tuple[str, ...]
    running: dict[str, Any] | None
    answer: dict[str, Any]

    @classmethod
    def _of(cls, answer: dict[str, Any]) -> Forecast:
        said = answer["prediction"]
        return cls(
            samples_per_s=said["samples_per_s"],
            limit=said["limit"],
            because=said["because"],
            first_batch_s=said["first_batch_ms"] / 1000,
            seconds=said["seconds"],
            wait_s=said["wait_s"],
            smallest_cache_bytes=said["smallest_cache_bytes"],
            smallest_window_bytes=said["smallest_window_bytes"],
            unknown=tuple(answer.get("unknown") or ()),
            running=answer.get("running"),
            answer=answer,
        )

    def __str__(self) -> str:
        text = (
            f"{_rate(self.samples_per_s)} samples/s, limited by the {self.limit} ({self.because}); first batch after "
            f"{self.first_batch_s:.2f} s; {self.wait_s:,.1f} of {self.seconds:,.1f} s are waited"
        )
        if self.unknown:
            text += f"; not measured, and taken to limit nothing: {', '.join(self.unknown)}"
        if self.running:
            text += (
                f"; it runs: {self.running['samples_per_s']:,.0f} samples/s of "
                f"{_rate(self.running['expected_samples_per_s'])} expected, limited by the {self.running['limit']}"
            )
        return text


def _rate(samples_per_s: float | None) -> str:
    return "any" if samples_per_s is None else f"{samples_per_s:,.0f}"
