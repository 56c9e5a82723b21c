"""The published systems that Bowstring is compared to, one module each, in the order of the page."""

from __future__ import annotations

from . import cassandra_dali, concurrent_dataloader, deli, dlcache, yang_cong

SYSTEMS = [
    cassandra_dali.SYSTEM,
    yang_cong.SYSTEM,
    concurrent_dataloader.SYSTEM,
    deli.SYSTEM,
    dlcache.SYSTEM,
]
