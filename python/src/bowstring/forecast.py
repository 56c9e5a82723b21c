"""What a server says of how a job will run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Forecast:
    """How a job will run, and what it does if it runs, made by [Client.explain][bowstring.Client.explain].

    Attributes:
        samples_per_s: Samples a second over all epochs, of all ranks together; None if nothing known limits them.
        limit: What limits it: `store`, `link`, `spill`, `node`, `network` or `consumer`. With the last, nobody waits.
        because: Of which rate.
        first_batch_s: Seconds until the first batch.
        seconds: Seconds that all epochs take.
        wait_s: Seconds of these that each rank waits.
        smallest_cache_bytes: The least spill of each node with which later epochs do not wait; None if there is none.
        smallest_window_bytes: The least window memory with which nobody waits for its sake; None if there is none.
        unknown: What was not measured, of `store`, `spill`, `node` and `network`, and so is taken to limit nothing.
            What is predicted can be far too much then: `bowstring calibrate` measures it.
        running: What the job does beside what was predicted, if it runs on the server; else None.
        answer: All that the server said, as the protocol has it.
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
