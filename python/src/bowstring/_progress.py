"""Progress bars, which tqdm shows."""

from __future__ import annotations

from typing import Any


def progress_bar(progress: bool, title: str, total: int | None, unit: str) -> Any:
    """A progress bar of tqdm, which shows nothing without `progress`."""
    if not progress:
        from tqdm.std import tqdm as plain  # the notebook's tqdm warns without widgets

        return plain(disable=True)
    from tqdm.auto import tqdm

    return tqdm(desc=title, total=total, unit=unit, unit_scale=True)
