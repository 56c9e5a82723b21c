"""Speech for the cases: FLAC of 14 s, as LibriSpeech's, in folders and in stores."""

from __future__ import annotations

from pathlib import Path

from harness import Context

SECONDS = 14.0
CLIPS = 16  # that are made; others are copies of them whose bytes differ


def mark(flac: bytes, number: int) -> bytes:
    """The same samples in other bytes: an application block more, after the first block."""
    first = 8 + int.from_bytes(flac[5:8], "big")
    if flac[:4] != b"fLaC" or flac[4] & 0x80:
        raise ValueError("no FLAC of several blocks")
    return flac[:first] + b"\x02\x00\x00\x08bows" + number.to_bytes(4, "big") + flac[first:]


def folder(context: Context, count: int) -> Path:
    """`count` files, by soundfile's encoder at its default level."""
    import soundfile
    import speechlike

    made = context.folder / f"speech-{count}"
    if made.exists():
        return made
    made.mkdir()
    clips: list[bytes] = []
    for number in range(count):
        path = made / f"{number:05}.flac"
        if number < CLIPS:
            soundfile.write(path, speechlike.clip(number, SECONDS), speechlike.RATE)
            clips.append(path.read_bytes())
        else:
            path.write_bytes(mark(clips[number % CLIPS], number))
    return made


def stored(context: Context, name: str, count: int) -> Path:
    """An embedded store with them, under the name that the readers know. One server at a time opens it."""
    store = context.folder / name
    if not store.exists():
        context.bowstring("import", "--store", store, "--format", "audiofolder", folder(context, count), "bench")
    return store
