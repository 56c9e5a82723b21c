"""Runs the demo; see the package."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bowstring._local.program import program
from bowstring.errors import NotFound

NEEDED = {"torch": "torch", "PIL": "pillow"}


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


@contextmanager
def server(binary: Path, store: Path, log: Path) -> Iterator[str]:
    """Serve the store, and give the address. The server drains and ends with the block."""
    ready = store.with_name("ready")
    ready.unlink(missing_ok=True)
    command: list[str | Path] = [binary, "serve", "--store", store, "--listen", "127.0.0.1:0", "--ready-file", ready]
    with log.open("ab") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            while not ready.exists():  # made in one piece, when the server listens
                if process.poll() is not None:
                    sys.exit(f"the server ended with status {process.returncode}; see {log}")
                time.sleep(0.01)
            yield ready.read_text().strip()
        finally:
            process.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(prog="bowstring demo", description=__doc__)
    parser.add_argument("--bowstring", type=Path, help="the program (that of the wheel, or of the path)")
    parser.add_argument("--dir", type=Path, help="where photographs and store go (a folder that is removed)")
    parser.add_argument("--count", type=int, default=1200, help="photographs (1200)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs (2)")
    args = parser.parse_args()
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        sys.exit(f"the demo trains with PyTorch, and needs {' and '.join(missing)}: pip install 'bowstring[torch]'")
    from bowstring.demo import photographs, training

    try:
        binary = args.bowstring or program()
    except NotFound as error:
        sys.exit(f"{error}, or give --bowstring PROGRAM")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the server is stopped, too
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bowstring-demo-") as made:
        root = args.dir or Path(made)
        root.mkdir(parents=True, exist_ok=True)
        folder, store, log = root / "photos", root / "store", root / "server.log"
        say(f"{args.count} photographs: JPEG crops, as an ImageFolder, in {folder}")
        size = photographs.write(folder, args.count)
        print(f"{size / 1e6:.0f} MB")
        say("bowstring import: into the embedded store")
        command = [binary, "import", folder, "photos", "--store", store]
        if subprocess.run(command, check=False).returncode:
            sys.exit("the demo ends here: the import failed")
        say("bowstring serve: the store over Arrow Flight")
        with server(binary, store, log) as uri:
            print(f"it listens on {uri}")
            say("PyTorch trains from it, every sample once an epoch, in another order each")
            good = training.train(uri, "photos", args.epochs)
        say(f"the server has drained and ended; {time.monotonic() - begun:.0f} s in all")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped")
