"""How often a test repeats what it draws at random, or how much of it there is."""

import os


def rounds(few: int, all_of_them: int) -> int:
    """Few in `make test`; all in `make nightly`, which sets BOWSTRING_TESTS=all."""
    return all_of_them if os.environ.get("BOWSTRING_TESTS") == "all" else few
