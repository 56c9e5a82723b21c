"""Servers that the package starts: one for each node, user and store.

A server has a directory, its home, in the user's cache: the log, the lock under which it is started, and the file
`server.json`, which says how. So each process of the user can start it. The server holds another lock, beside its
socket, until its process has ended. It writes its address to the file `ready`, and removes it when it ends well: a file
that is left, with the lock free, is that of a crash.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import socket
import stat
import struct
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import bowstring
from bowstring._cancellation import sleep
from bowstring._local.program import environment, program
from bowstring.errors import NotFound, ServerEnded, ServerError, Unavailable

IDLE = "10m"  # after which time without a client a server ends
_START = 60.0  # seconds that a start, or the end of the server before, may take
_POLL = 0.01  # seconds between two looks
_APART = 0.03  # seconds between two signals
_LONGEST = 90  # bytes of a socket's path: the kernel allows 107, and the server makes one with a longer name
_PLAIN = re.compile(r"[A-Za-z0-9/._+=,@~-]*")  # a path that is the same in a URI
_LOG_BYTES = 8 << 20  # of a log, before a start puts it aside
# Settings of the environment that are the user's to make. Others, such as certificates, are for servers of other kinds.
_SETTINGS = {
    "BOWSTRING_SERVE_EXIT_WHEN_IDLE",
    "BOWSTRING_SERVE_LOCAL_MEMORY",
    "BOWSTRING_SERVE_LOCAL_RING",
    "BOWSTRING_LOG_LEVEL",
    "BOWSTRING_SERVE_PRICES",
    "BOWSTRING_SERVE_SPILL_BYTES",
    "BOWSTRING_SERVE_SPILL_KEEP_FREE",
    "BOWSTRING_SERVE_SPILL_MIN_BYTES",
    "BOWSTRING_SERVE_WINDOW_MEMORY",
}


def root() -> Path:
    """The directory of the servers' homes: in BOWSTRING_CACHE, else in the user's cache directory.

    Machines may share it, so each has a directory of its own in it.
    """
    if named := os.environ.get("BOWSTRING_CACHE"):
        cache = Path(named)
    else:
        try:
            cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bowstring"
        except RuntimeError as error:  # a user that the system does not know, as in a container
            raise NotFound(
                f"user {os.getuid()} has no home directory for a cache: want BOWSTRING_CACHE or HOME set to one"
            ) from error
    return cache.absolute() / "open" / (socket.gethostname() or "localhost")


class Server:
    """A server by its home, whether it runs or not."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log = home / "server.log"

    def __repr__(self) -> str:
        return f"<server of {self.home}>"

    @property
    def store(self) -> str:
        """The store that it serves."""
        return str(json.loads((self.home / "server.json").read_text())["store"])

    @property
    def socket(self) -> Path:
        """The socket at which it answers."""
        return self._sockets() / "server"

    @property
    def uri(self) -> str:
        """Its address."""
        return f"grpc+unix://{self.socket}"

    def describe(self, store: str, options: Sequence[str]) -> None:
        """Record how it is started. The home is made if there is none."""
        try:
            self._describe(store, options)
        except OSError as error:
            raise ServerError(
                f"{self.home}, which a server needs, cannot be made or written: {error}; BOWSTRING_CACHE names a "
                "directory of another disk or user"
            ) from error

    def _describe(self, store: str, options: Sequence[str]) -> None:
        _private(self.home)
        said = json.dumps({"store": store, "options": list(options)})
        path = self.home / "server.json"
        if not path.exists() or path.read_text() != said:
            made = path.with_name(f"server.json.{os.getpid()}.{threading.get_ident()}")
            made.write_text(said)
            made.replace(path)
        if (sockets := self._sockets()) != self.home:
            _private(sockets.parent)
            _private(sockets)
            with contextlib.suppress(FileExistsError):  # by which a client of the socket finds the home
                (sockets / "home").symlink_to(self.home)

    def running(self) -> int | None:
        """The id of its process; None if it does not answer."""
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
            probe.settimeout(_START)
            try:
                probe.connect(str(self.socket))
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
                    return None
                raise Unavailable(f"{self.uri} cannot be reached: {error.strerror or error}") from error
            seen = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", seen)[0])

    def ensure(self) -> None:
        """Start it if it does not run. ServerEnded, once, if it has crashed since the last call."""
        if self.running() is not None:
            self._compare_versions()
            return
        with self._lock("start.lock"):
            if not self._ended():
                return
            ready = self.home / "ready"
            if _remains(ready):
                raise ServerEnded(
                    f"the server of {self.store} that this package started ended without being stopped, by a crash or "
                    f"a kill; its log is {self.log}; the next call starts it again"
                )
            self._start()

    def _compare_versions(self) -> None:
        """Warn if a package of another version has started it. To end it would end streams of other processes."""
        try:
            theirs = (self.home / "version").read_text()
        except FileNotFoundError:  # of a package that wrote none
            theirs = "an older version"
        if theirs != (ours := bowstring.__version__):
            warnings.warn(
                f"the server of {self.store} was started by bowstring {theirs}, and this is {ours}; `bowstring stop` "
                f"ends it and its streams, and the next call starts the server of {ours}",
                RuntimeWarning,
                stacklevel=2,
            )

    def stop(self) -> bool:
        """End it, its streams included, and wait until it has ended. False if it did not run."""
        pid = self.running()
        if pid == 0:  # what the kernel says of a process of another container; to kill it is to kill this one's group
            raise Unavailable(
                f"the server of {self.store} runs in another container, which this one does not see into; run "
                f"`bowstring stop` there, or set BOWSTRING_CACHE to a directory that the two do not share"
            )
        if pid is None:
            with self._lock("start.lock"):
                if self._ended():  # what one that was killed has left
                    for path in (self.home / "ready", self.socket, self.socket.with_name("memory")):
                        path.unlink(missing_ok=True)
            return False
        for _ in range(2):  # the second signal does not wait for streams; of two at once, the kernel may drop one
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 15)
            time.sleep(_APART)
        end = time.monotonic() + _START
        while self._held() and self.running() in (None, pid):  # another process may start the next one meanwhile
            if time.monotonic() > end:
                raise Unavailable(f"the server of {self.store}, process {pid}, does not end; its log is {self.log}")
            sleep(_POLL)
        return True

    def _sockets(self) -> Path:
        """The directory of its sockets: its home, or one in /tmp if that name is too long or odd for an address."""
        if len(os.fsencode(self.home / "server.lock")) <= _LONGEST and _PLAIN.fullmatch(str(self.home)):
            return self.home
        name = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]
        return Path(f"/tmp/bowstring-{os.getuid()}") / name  # noqa: S108 - processes may have different TMPDIR

    def _ended(self) -> bool:
        """Wait while a server starts or ends. False if it answers then."""
        end = time.monotonic() + _START
        while True:
            if self.running() is not None:
                return False
            if not self._held():
                return self.running() is None
            if time.monotonic() > end:
                raise Unavailable(f"the server of {self.store} neither answers nor ends; its log is {self.log}")
            sleep(_POLL)

    def _held(self) -> bool:
        """Whether a process has the lock that a server holds until its end."""
        try:
            lock = os.open(self.socket.with_name("server.lock"), os.O_RDONLY)
        except FileNotFoundError:
            return False
        import fcntl

        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            fcntl.flock(lock, fcntl.LOCK_UN)
            return False
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def _lock(self, name: str, seconds: float = 2 * _START) -> Iterator[None]:
        with locked(self.home / name, seconds):
            yield

    def _start(self) -> None:
        """Start the process, and wait until it answers."""
        said = json.loads((self.home / "server.json").read_text())
        settings = environment(_SETTINGS)
        binary = program()
        if said["store"] == (self.home / "store").as_uri() and not (self.home / "store" / "FORMAT").exists():
            _initialise(binary, said["store"])
        command: list[str | Path] = [binary, "serve", "--config", os.devnull, "--store", said["store"]]
        command += [
            "--listen",
            self.uri,
            "--local",
            self.socket.with_name("memory"),
            "--ready-file",
            self.home / "ready",
        ]
        if "BOWSTRING_SERVE_EXIT_WHEN_IDLE" not in settings:
            command += ["--exit-when-idle", IDLE]
        command += said["options"]
        if self.log.exists() and self.log.stat().st_size > _LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        (self.home / "version").write_text(bowstring.__version__)
        process = None
        try:
            with self.log.open("ab") as out:
                before = out.tell()
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", env=settings,
                    start_new_session=True,
                )  # fmt: skip
            # A process stays in the kernel's table after its end until its parent waits for it.
            threading.Thread(target=process.wait, name="bowstring server", daemon=True).start()
            self._await(process, before)
        except KeyboardInterrupt:
            if process is None:
                raise
            process.kill()
            process.wait()
            for path in (self.home / "ready", self.socket):  # else the next call would report a crash
                path.unlink(missing_ok=True)
            raise KeyboardInterrupt(f"the server of {said['store']} was about to start, and is ended") from None

    def _await(self, process: subprocess.Popen[bytes], before: int) -> None:
        """Wait until a process answers. If it ends instead, the log after `before` says why."""
        end = time.monotonic() + _START
        while self.running() is None:
            if process.poll() is not None or time.monotonic() > end:
                process.kill()
                with self.log.open("rb") as log:
                    log.seek(before)
                    lines = log.read().decode(errors="replace").strip().splitlines()
                why = lines[-1] if lines else "it said nothing"
                if (code := process.wait()) < 0:
                    why = f"signal {-code} has ended it"
                raise ServerError(f"the server of {self.store} did not start: {why}; its log is {self.log}")
            sleep(_POLL)


def _remains(ready: Path) -> bool:
    """Remove the file of a server that has not ended well. False if there is none, or the machine has ended since."""
    try:
        made = ready.stat().st_mtime
    except FileNotFoundError:
        return False
    ready.unlink()
    return made > time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def of_store(store: str, options: Sequence[str] = ()) -> Server:
    """The server of a store in a cluster, a bucket or a directory."""
    server = Server(_home(store))
    # A store on this machine needs no cache of its blobs on the same disk.
    server.describe(store, [*options, *([] if store.startswith("file://") else _spill(server.home))])
    return server


def make_store(store: str) -> None:
    """Make a store in a directory, by its URL, if there is none. If several processes call it, one makes the store."""
    folder = Path(unquote(urlsplit(store).path))
    lock = _home(store).with_suffix(".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock, _START):
        if not (folder / "FORMAT").exists():
            _initialise(program(), store)


def _home(store: str) -> Path:
    return root() / hashlib.sha256(store.encode()).hexdigest()[:16]


def of_sources(kind: str) -> Server:
    """The server of attached sources: `files` of this machine, or `buckets`, which have a cache on the disk."""
    server = Server(root() / kind)
    server.describe((server.home / "store").as_uri(), _spill(server.home) if kind == "buckets" else ())
    return server


def _spill(home: Path) -> list[str]:
    size = [] if "BOWSTRING_SERVE_SPILL_BYTES" in os.environ else ["--spill-bytes", "10%"]
    return ["--spill", str(home / "spill"), *size]


def at(path: str) -> Server | None:
    """The server that answers at a socket; None if it is none of these."""
    folder = Path(path).parent
    home = folder / "home" if (folder / "home").is_symlink() else folder
    if Path(path).name != "server" or not (home / "server.json").exists():
        return None
    if home.stat().st_uid != os.getuid():  # another user's: its files say what this process would start and write
        return None
    return Server(home.resolve())


def known() -> list[Server]:
    """The servers that this machine has homes of."""
    return [Server(path.parent) for path in sorted(root().glob("*/server.json"))]


@contextlib.contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold the lock of a file. It ends with the process, too."""
    import fcntl  # Windows has none

    lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        end = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise Unavailable(f"another process has held {path} for {seconds:.0f} seconds") from None
            sleep(_POLL)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # a child that was forked meanwhile has the file, too
    finally:
        os.close(lock)


def _private(folder: Path) -> None:
    """Make a directory that is the user's alone, and refuse one that is not."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder}: want a directory of user {os.getuid()}")
    if found.st_mode & 0o077:
        folder.chmod(0o700)


def _initialise(binary: Path, store: str) -> None:
    """Make a store in a directory."""
    command: list[str | Path] = [binary, "store", "init", "--config", os.devnull, "--store", store]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment())
    if done.returncode:
        raise ServerError(f"the store {store} could not be made: {done.stderr.strip()}")
