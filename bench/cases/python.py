"""python: the Python package beside what its users would use otherwise. Each library has a file of its own."""

from __future__ import annotations

from harness import Context, Figure, Result, needs, package


@needs(package("torch", "ray", "polars"))
def run(context: Context) -> Result:
    """Run the parts one after another."""
    # Imported here: torch and Ray take seconds, and the other cases do without.
    from . import python_polars, python_ray, python_torch

    parts = [python_torch, python_ray, python_polars]
    figures: list[Figure] = []
    for part in parts:
        figures += part.run(context)
    return Result("python", figures)
