"""The published systems that Bowstring is compared to, one module each, in the order of the page."""

from __future__ import annotations

from . import concurrent_dataloader, deli

SYSTEMS = [concurrent_dataloader.SYSTEM, deli.SYSTEM]
