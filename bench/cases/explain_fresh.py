"""explain_fresh: what explain says of settings that nothing of its model was settled on: other links, sizes, paces."""

from __future__ import annotations

from harness import MIB, Context, Figure, Result, median

from .explain import Setting, errors_of, p90

SETTINGS = [
    Setting("edge", "thumbs", batch=200),
    Setting("edge", "thumbs", batch=64, pace_ms=40, ranks=2),
    Setting("edge", "thumbs", batch=160, pace_ms=70),
    Setting("edge", "thumbs", batch=500, epochs=4, cached=0.4),
    Setting("edge", "thumbs", batch=100, epochs=3, cached=1.3),
    Setting("edge", "scans", batch=24),
    Setting("edge", "scans", batch=64, ranks=4),
    Setting("edge", "scans", batch=10, pace_ms=25),
    Setting("edge", "scans", batch=20, pace_ms=110),
    Setting("edge", "scans", batch=48, epochs=3, cached=0.7),
    Setting("wide", "thumbs", batch=128),
    Setting("wide", "thumbs", batch=96, window=1 * MIB),
    Setting("wide", "thumbs", batch=32, window=MIB // 2),
    Setting("wide", "thumbs", batch=400, pace_ms=250),
    Setting("wide", "thumbs", batch=256, epochs=2, cached=0.6),
    Setting("wide", "thumbs", batch=64, epochs=2, cached=1.2, pace_ms=45),
    Setting("wide", "scans", batch=12, pace_ms=90),
    Setting("wide", "scans", batch=32, ranks=3),
    Setting("wide", "scans", batch=16, epochs=3, cached=1.2, pace_ms=100),
    Setting("wide", "scans", batch=24, epochs=3, cached=0.5, ranks=2),
]


def run(context: Context) -> Result:
    """Measure them as explain's own."""
    errors, right = errors_of(context, "explain_fresh", SETTINGS)
    return Result(
        "explain_fresh",
        [
            Figure("error_p90", p90(errors)),
            Figure("limits_right", right),
        ],
        details={"settings": len(errors), "error_median": median(errors), "error_max": errors[-1]},
    )
