"""The steps of `make demo`: photographs, import, server, training; then the server is stopped.

python examples/demo.py --bowstring build/bin/bowstring --dir build/demo
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from node import Node

HERE = Path(__file__).parent


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def run(*command: str | Path) -> None:
    """Run a command, showing it; its failure ends the demo."""
    words = [str(word) for word in command]
    print(f"$ {shlex.join(words)}", flush=True)
    status = subprocess.run(words, check=False).returncode
    if status != 0:
        sys.exit(f"the demo ends here: {words[0]} {words[1]} failed with status {status}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bowstring", type=Path, default=Path("build/bin/bowstring"))
    parser.add_argument("--dir", type=Path, default=Path("build/demo"), help="where photographs and store go")
    parser.add_argument("--count", type=int, default=2200, help="photographs (2200)")
    args = parser.parse_args()
    # So that the server is stopped on `kill` as on Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    begun = time.monotonic()
    args.dir.mkdir(parents=True, exist_ok=True)
    photos, store, log = args.dir / "photos", args.dir / "store", args.dir / "server.log"

    say("real photographs: JPEG crops of those in scikit-image's wheel, as an ImageFolder")
    run(sys.executable, HERE / "photos.py", photos, "--count", str(args.count))
    say("import them into the embedded store")
    run(args.bowstring, "import", photos, "photos", "--store", store)
    say("serve the store over Arrow Flight")
    with Node(args.bowstring, store, log=log) as node:
        print(f"bowstring serve listens on {node.url} (log: {log})")
        say("train for two epochs with plain pyarrow.flight")
        run(sys.executable, HERE / "plain_pyarrow" / "train.py", node.url, "photos")
    say(f"the server has drained and ended; {time.monotonic() - begun:.0f} s in all")
    print(f"store and photographs stay in {args.dir}; `make clean` removes them")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped")
