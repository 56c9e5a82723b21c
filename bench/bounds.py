"""The bounds of all figures of the cases, in one table.

A case states what it has measured, by name, and no bound. A name that a case has and this table has not is an error,
and in a smoke run so is the reverse. `bench/run.py --bounds` writes docs/benchmarks/bounds.md from the table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """The bound that a figure should keep."""

    at_least: float | None = None
    at_most: float | None = None
    exact: bool = False  # a count of mistakes, which has to be right at every size: smoke runs judge it, too
    quiet: bool = False  # a time, or a ratio of times: it holds only on a machine that does nothing else
    only: str = ""  # the figure is there only with this; else always

    def keeps(self, value: float) -> bool:
        """Whether a value is within the bound."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        return f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"


def at_least(value: float, *, exact: bool = False, quiet: bool = False, only: str = "") -> Bound:
    """A bound from below."""
    return Bound(at_least=value, exact=exact, quiet=quiet, only=only)


def at_most(value: float, *, exact: bool = False, quiet: bool = False, only: str = "") -> Bound:
    """A bound from above."""
    return Bound(at_most=value, exact=exact, quiet=quiet, only=only)


BOUNDS: dict[str, dict[str, Bound]] = {
    "access": {
        "ways": at_least(60),
        "bytes_out": at_most(0, exact=True),
        "distinguishable": at_most(0, exact=True),
    },
    "attach_objects": {
        "seconds": at_most(120, quiet=True),
        "rss_mb": at_most(512),
        "tar_read_share": at_most(0.02),
        "update_share": at_most(0.05, quiet=True),
        "wrong": at_most(0, exact=True),
    },
    "audio_ops": {
        "vs_dali": at_least(1.5, quiet=True, only="DALI"),
        "go_flac_vs_soundfile": at_least(1, quiet=True),
        "vs_torchaudio": at_least(1, quiet=True),
    },
    "audio_same": {
        "differing": at_most(0, exact=True),
        "mp3_db": at_least(60),
        "resample_db": at_least(90),
        "mel_db": at_least(100),
        "mel_off": at_most(0.001),
    },
    "auth_cost": {
        "share": at_least(0.98, quiet=True),
        "first_batch_ms": at_most(2, quiet=True),
        "info_per_s": at_least(0.9, quiet=True),
    },
    "auto_server": {
        "start_s": at_most(1, quiet=True),
        "throughput": at_least(0.98, quiet=True),
        "hangs": at_most(0, exact=True),
        "wrong": at_most(0, exact=True),
        "leaked": at_most(0, exact=True),
    },
    "broken_off": {
        "window_kept_mb": at_most(0, exact=True),
        "pins": at_most(0, exact=True),
        "goroutines": at_most(0, exact=True),
        "descriptors": at_most(0, exact=True),
        "rss_growth_mb": at_most(20),
    },
    "chunk_price": {
        "order_differs": at_most(0, exact=True),
        "requests_all": at_most(1.05),
        "requests_all_later": at_most(0),
        "requests_half": at_most(1.1),
        "requests_half_first": at_most(1.1),
        "requests_tenth": at_most(1.1),
        "requests_tenth_first": at_most(1.1),
        "requests_free": at_most(0.9),
        "requests_free_first": at_most(0.9),
    },
    "churn": {
        "lost": at_most(0, exact=True),
        "doubled": at_most(0, exact=True),
        "wrong": at_most(0, exact=True),
        "others": at_least(0.9, quiet=True),
        "whole_s": at_most(15, quiet=True),
        "false_changes": at_most(0),
    },
    "cluster": {
        "store_reads": at_most(1.02),
        "store_share": at_most(0.01),
        "speedup": at_least(3.5, quiet=True),
        "belady_ratio": at_least(0.97),
    },
    "collect": {
        "seconds": at_most(120, quiet=True),
    },
    "console": {
        "visible_s": at_most(2, quiet=True),
        "kb_gzipped": at_most(100),
        "difference": at_most(0.02, quiet=True),
        "cost": at_most(0.01, quiet=True),
    },
    "copy": {
        "identical": at_least(1, exact=True),
    },
    "cql_cpu": {
        "server_s_per_gb": at_most(0.8, quiet=True),
        "cassandra_ratio": at_most(0.75, quiet=True),
    },
    "dlcache": {
        "gain_best": at_least(3, quiet=True),
        "gain_mean": at_least(2, quiet=True),
        "wall_worst": at_least(0.97, quiet=True),
    },
    "dlio": {
        "au": at_least(0.9, quiet=True),
        "vs_files": at_least(0.98, quiet=True),
    },
    "engine": {
        "us_per_sample_4k": at_most(5, quiet=True, only="SIZE=4k"),
        "ratio_150ms": at_least(0.97, quiet=True),
        "us_per_sample": at_most(10, quiet=True),
        "allocs_per_sample": at_most(1.5),
    },
    "explain": {
        "error_p90": at_most(0.15, quiet=True),
        "limits_right": at_least(18, quiet=True),
        "table_error": at_most(0.1),
    },
    "explain_fresh": {
        "error_p90": at_most(0.15, quiet=True),
        "limits_right": at_least(18, quiet=True),
    },
    "fairness": {
        "slower_share": at_least(0.9, quiet=True),
        "slower_share_tenants": at_least(0.9, quiet=True),
        "slower_share_1_and_100": at_least(0.9, quiet=True),
        "stalled_cost": at_most(0.02, quiet=True),
        "rss_over_budget_mb": at_most(200),
    },
    "faults": {
        "wrong_positions": at_most(0, exact=True),
        "crashes": at_most(0, exact=True),
        "rss_growth_mb": at_most(100),
    },
    "first_batch": {
        "ms_1e3": at_most(50, quiet=True),
        "ms_1e6": at_most(50, quiet=True),
    },
    "first_hour": {
        "commands": at_most(4, exact=True),
        "seconds": at_most(60, quiet=True),
        "ddp_seconds": at_most(120, quiet=True),
        "which_side_seconds": at_most(10, quiet=True),
        "bucket_seconds": at_most(60, quiet=True),
        "bucket_copied_share": at_most(0.05),
    },
    "frameworks": {
        "lost": at_most(0, exact=True),
        "doubled": at_most(0, exact=True),
        "same_order_epochs": at_most(0, exact=True),
        "frameworks": at_least(8),
    },
    "groups": {
        "reads_ratio": at_most(1.02),
        "differing_steps": at_most(0, exact=True),
        "group_share": at_least(0.9, quiet=True),
    },
    "hostile": {
        "crashes": at_most(0, exact=True),
        "honest_share": at_least(0.5, quiet=True),
        "rss_over_limit_mb": at_most(0),
        "others_wait_s": at_most(1, quiet=True),
        "after_s": at_most(1, quiet=True),
    },
    "image_ops": {
        "vs_dali_cpu": at_least(1.3, quiet=True, only="DALI"),
        "vs_pillow": at_least(2, quiet=True),
        "vs_torchvision": at_least(1.3, quiet=True),
        "large_vs_pillow": at_least(2.5, quiet=True),
        "flight_vs_pillow": at_least(1.6, quiet=True),
    },
    "image_same": {
        "differing": at_most(0, exact=True),
        "torchvision_most": at_most(1),
        "torchvision_share": at_most(0.003),
        "torchvision_other": at_most(0),
    },
    "imagenet_like": {
        "gain": at_least(3, quiet=True),
        "gain_threads": at_least(1.5, quiet=True),
    },
    "import": {
        "mb_per_s": at_least(300, quiet=True),
        "write_amplification": at_most(1.1),
    },
    "install": {
        "demo_s": at_most(90, quiet=True),
        "image_mb": at_most(60),
    },
    "kubernetes": {
        "failed_epochs": at_most(0, exact=True),
        "share_upgrade": at_least(0.8, quiet=True),
        "share_drain": at_least(0.8, quiet=True),
    },
    "latency": {
        "ratio_20ms": at_least(0.95, quiet=True),
        "ratio_150ms": at_least(0.95, quiet=True),
        "first_batch_rtts": at_most(3, quiet=True),
    },
    "librispeech_like": {
        "gain": at_least(3, quiet=True),
        "gain_threads": at_least(1.5, quiet=True),
    },
    "locality": {
        "formula_error": at_most(0.1),
        "second_owners": at_most(0.2),
        "ns_ratio": at_most(3, quiet=True),
    },
    "lock": {
        "stats_beyond_nothing_ms": at_most(5, quiet=True),
    },
    "loopback": {
        "ratio_1conn": at_least(0.95, quiet=True),
        "ratio_2conn": at_least(0.95, quiet=True),
        "server_cpu_ratio": at_most(1.5, quiet=True),
        "rss_mb": at_most(300),
    },
    "manifest": {
        "open_s": at_most(1, quiet=True),
        "first_batch_ms": at_most(500, quiet=True),
        "rss_mb": at_most(512),
        "where_s": at_most(15, quiet=True),
        "open_s_1e9": at_most(2, quiet=True),
        "rss_mb_1e9": at_most(1024),
    },
    "memory": {
        "rss_over_budget_mb": at_most(100),
    },
    "metadata": {
        "rows_per_s": at_least(5_000_000, quiet=True),
        "open_s": at_most(1, quiet=True),
        "heap_mb": at_most(200),
        "where_s": at_most(2, quiet=True),
    },
    "mixture": {
        "lost": at_most(0, exact=True),
        "doubled": at_most(0, exact=True),
        "prefix_error": at_most(1),
        "prefix_error_changed": at_most(2),
        "batches_off": at_most(0, exact=True),
        "ticket_bytes": at_most(2048),
        "ticket_64_bytes": at_most(2048),
        "ns_per_index": at_most(500, quiet=True),
        "allocs": at_most(0),
    },
    "mixture_cost": {
        "throughput": at_least(0.97, quiet=True),
        "memory_mb": at_most(64),
        "threads": at_most(0),
    },
    "objects": {
        "vs_shuffled": at_least(2.5, quiet=True),
        "vs_all": at_least(1, quiet=True),
        "vs_serial": at_least(12, quiet=True),
        "ratio_150ms": at_least(0.95, quiet=True),
        "first_batch_rtts": at_most(4, quiet=True),
    },
    "objects_cost": {
        "http_s_per_gb": at_most(0.75, quiet=True),
        "tls_s_per_gb": at_most(1.1, quiet=True),
        "us_per_range": at_most(110, quiet=True),
    },
    "observe": {
        "cost": at_most(0.01, quiet=True),
        "allocs_per_sample": at_most(0.01),
        "series": at_most(2000),
    },
    "own_data": {
        "kinds": at_least(60),
        "differing": at_most(0, exact=True),
        "refused_unlisted": at_most(0, exact=True),
    },
    "packing": {
        "padding": at_most(0.01),
        "imbalance": at_most(1.02),
        "imbalance_alone": at_least(1.1),
        "lost": at_most(0, exact=True),
        "doubled": at_most(0, exact=True),
        "ns_per_document": at_most(100, quiet=True),
        "imbalance_photographs": at_most(1.02),
        "imbalance_sound": at_most(1.02),
    },
    "placement": {
        "auto_share": at_least(0.9, quiet=True),
    },
    "plan": {
        "ns_per_index": at_most(200, quiet=True),
        "allocs": at_most(0),
    },
    "policy": {
        "belady_ratio_min": at_least(0.97),
        "beats_all": at_least(1),
    },
    "prefix_cache": {
        "cpu_ratio": at_most(0.2, quiet=True),
        "differing": at_most(0, exact=True),
    },
    "python": {
        "polars_bytes_ratio": at_most(1.1),
        "ray_ratio": at_least(0.8, quiet=True),
        "torch_ratio": at_least(2, quiet=True),
        "torch_ratio_tcp": at_least(0.9, quiet=True),
        "vs_files": at_least(1, quiet=True),
        "resume_ms": at_most(200, quiet=True),
        "state_bytes": at_most(1024),
    },
    "real_cluster": {
        "store_reads": at_most(1.02),
        "store_share": at_most(0.01),
        "speedup": at_least(3.5, quiet=True),
        "belady_ratio": at_least(0.97),
        "counts_equal": at_least(1, exact=True),
        "peers_share": at_least(0.99, quiet=True),
        "peers_cpu_ratio": at_most(2.2, quiet=True),
    },
    "real_cluster_bucket": {
        "store_reads": at_most(1.02),
        "attached_reads": at_most(1.02),
    },
    "real_cluster_settings": {
        "settings": at_least(12),
    },
    "replicas": {
        "share_of_healthy": at_least(0.9, quiet=True),
    },
    "sampling": {
        "open_s": at_most(2, quiet=True),
        "rss_mb": at_most(512),
        "chi2_p": at_least(0.0001),
        "chi2_least_p": at_least(1e-07),
        "ns_per_index": at_most(1000, quiet=True),
    },
    "sharing": {
        "reads_ratio": at_most(1.05),
    },
    "shm": {
        "ratio_1": at_least(3, quiet=True),
        "ratio_2": at_least(2.5, quiet=True),
        "ratio_1_none": at_least(4, quiet=True),
        "cpu_ratio": at_most(0.4, quiet=True),
        "refs_ratio_1": at_least(3.3, quiet=True),
        "refs_ratio_2": at_least(3, quiet=True),
        "refs_ratio_none": at_least(4, quiet=True),
    },
    "shm_faults": {
        "wrong": at_most(0, exact=True),
        "leaked_bytes": at_most(0, exact=True),
        "held_after_s": at_most(1, quiet=True),
        "refs_wrong": at_most(0, exact=True),
        "refs_leaked_bytes": at_most(0, exact=True),
        "refs_held_after_s": at_most(1, quiet=True),
        "refs_batches": at_least(1),
    },
    "silent_store": {
        "late_s": at_most(10, quiet=True),
        "calls_late_s": at_most(30, quiet=True),
        "unnamed": at_most(0, exact=True),
    },
    "simulate": {
        "seconds": at_most(180, quiet=True),
        "speedup_256": at_least(30),
        "table_error": at_most(0.1),
    },
    "simulate_real": {
        "bytes_error": at_most(0.02),
        "time_error_median": at_most(0.1, quiet=True),
        "time_error_max": at_most(0.2, quiet=True),
        "settings": at_least(12),
    },
    "simulate_store": {
        "seeds": at_least(10_000),
        "seconds": at_most(120, quiet=True),
        "planted": at_least(15),
        "planted_missed": at_most(0),
        "violations": at_most(0, exact=True),
    },
    "spill": {
        "ratio_to_local": at_least(0.98, quiet=True),
        "server_cpu_s_per_gb": at_most(0.28, quiet=True),
        "fill_cost": at_most(0.05, quiet=True),
        "open_s": at_most(2, quiet=True),
    },
    "sql": {
        "differing": at_most(0, exact=True),
    },
    "tail": {
        "free": at_least(0.9, quiet=True),
        "window": at_least(0.9, quiet=True),
        "strict": at_least(0.7, quiet=True),
    },
    "tenants": {
        "error": at_most(0.05, quiet=True),
        "quota_cost": at_most(0.02, quiet=True),
    },
    "tls": {
        "ratio_1conn": at_least(1, quiet=True),
        "ratio_2conn": at_least(1, quiet=True),
        "failed": at_most(0, exact=True),
        "revoked_s": at_most(5, quiet=True),
    },
    "verify": {
        "gb_per_s": at_least(1.5, quiet=True),
        "stream_share": at_least(0.95, quiet=True),
    },
    "wait": {
        "cut_vs_serial": at_least(0.95, quiet=True),
        "cut_vs_prefetch_minus_hit_rate": at_least(0, quiet=True),
    },
    "wait_objects": {
        "cut_half": at_least(0.95, quiet=True),
        "quarter_later_share": at_most(0.01, quiet=True),
    },
}


def page() -> str:
    """The table as a page of the documents."""
    lines = [
        "# Bounds of the benchmarks",
        "",
        "`make bench` compares each figure with its bound. [method.md](method.md) says what the figures mean, and",
        "[benchmarks.md](../benchmarks.md) has results. `bench/run.py --bounds` makes",
        "this page from `bench/bounds.py`.",
        "",
        "- *quiet*: the figure is a time, or a ratio of times. Its bound holds only on a machine that does nothing",
        "  else.",
        "- *exact*: the figure counts mistakes. Smoke runs of seconds, in `make nightly`, judge these figures alone.",
        "- A name in brackets is a condition: without it the case has no such figure.",
        "",
        "| case | figure | bound | needs |",
        "|---|---|---|---|",
    ]
    for case, bounds in sorted(BOUNDS.items()):
        for name, bound in bounds.items():
            needs = "quiet" if bound.quiet else "exact" if bound.exact else ""
            condition = f" ({bound.only})" if bound.only else ""
            text = str(bound).replace(">=", "≥").replace("<=", "≤")
            lines.append(f"| {case} | `{name}`{condition} | {text} | {needs} |")
    return "\n".join(lines) + "\n"
