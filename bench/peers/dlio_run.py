"""Run workloads of DLIO, one after another: each line of the standard input is one, and is answered by its exit status.

    {"argv": ["workload=unet3d_h100", ...], "env": {"S3_ENDPOINT": "..."}, "log": "FILE"}

Each workload is a fork of this process, which has imported DLIO: that takes 15 s of CPU time, and a workload a few
seconds. Nothing of DLIO is changed. MPI begins in the fork, and is not finalised: UCX crashes there after a fork.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from dlio_benchmark.main import run_benchmark  # TensorFlow with it, before there are threads
from dlio_benchmark.utils.utility import DLIOMPI


def run(argv: list[str], environment: dict[str, str], log: str) -> None:
    """Run a workload in this process; does not return."""
    status = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.environ.update(environment)
        if "S3_ENDPOINT" in environment:
            import tensorflow_io  # noqa: F401 (it teaches TensorFlow s3://)
        sys.argv = ["dlio_benchmark", *argv]
        DLIOMPI.get_instance().initialize()
        run_benchmark()
        status = 0
    except BaseException:  # noqa: BLE001 (the log has it)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def serve() -> None:
    """Run what the standard input names."""
    print("ready", flush=True)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        child = os.fork()
        if not child:
            run(asked["argv"], asked["env"], asked["log"])
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
