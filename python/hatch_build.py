"""Puts the program into the wheel, where the environment says which: such a wheel is for one platform.

`BOWSTRING_WHEEL_PROGRAM` is the file, `BOWSTRING_WHEEL_PLATFORM` the tag, such as `manylinux_2_17_x86_64`. The program
is static, so it runs on any Linux of that processor. Without them the wheel has the Python package alone.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        program = os.environ.get("BOWSTRING_WHEEL_PROGRAM")
        if not program:
            return
        platform = os.environ["BOWSTRING_WHEEL_PLATFORM"]
        build_data["shared_scripts"][program] = "bowstring"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
