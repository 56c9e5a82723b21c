"""Parts of torch and of multiprocessing that have a private name."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from torch.utils.data._utils.collate import default_collate_fn_map


def collate_by(kind: type, function: Callable[..., Any]) -> None:
    """Have torch's `default_collate` call a function for values of a class, before it tries the class's bases."""
    default_collate_fn_map[kind] = function


def worker_number() -> int:
    """How many processes the main process had started when it started this one, itself included."""
    return (getattr(multiprocessing.current_process(), "_identity", None) or (0,))[-1]
