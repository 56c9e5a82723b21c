"""Files of images as people have them, made by Pillow and tifffile, and the pixels that these read."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tifffile
from PIL import Image

Array = npt.NDArray[np.uint8]
WIDTH, HEIGHT = 45, 31


@dataclass
class Kind:
    """A file, and what comes of it: pixels, or the words of a refusal."""

    data: bytes
    rgb: Array | None = None
    refused: str = ""


def photo(width: int = WIDTH, height: int = HEIGHT, seed: int = 5) -> Image.Image:
    """Waves and noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(float)
    waves = np.stack([128 + 90 * np.sin(x / 7 + c) + 60 * np.cos(y / (5 + c) + x / 11) for c in range(3)], -1)
    return Image.fromarray(np.clip(waves + rng.normal(0, 20, waves.shape), 0, 255).astype(np.uint8))


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def pillow(data: bytes) -> Array:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def without_app14(data: bytes) -> bytes:
    at = data.index(b"\xff\xee")
    return data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"WEBP"
    for name, data in chunks:
        body += name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def moving_webp(frame: bytes, width: int, height: int, x: int, y: int, alpha: bool) -> bytes:
    """A WebP that moves, whose first frame is a part of its canvas."""

    def three(n: int) -> bytes:
        return struct.pack("<I", n)[:3]

    chunks = frame[12:]
    if chunks[:4] == b"VP8X":
        chunks = chunks[18:]
    with Image.open(io.BytesIO(frame)) as image:
        size = three(image.width - 1) + three(image.height - 1)
    head = bytes([2 | (16 if alpha else 0), 0, 0, 0]) + three(width - 1) + three(height - 1)
    move = three(x // 2) + three(y // 2) + size + three(100) + b"\0" + chunks
    return riff((b"VP8X", head), (b"ANIM", b"\x11\x22\x33\xff\0\0"), (b"ANMF", move), (b"ANMF", move))


def png(values: npt.NDArray[Any], colour: int, interlaced: bool = False) -> bytes:
    """A PNG of 8 or 16 bits a channel, also interlaced, which Pillow does not write."""
    height, width = values.shape[:2]
    bits = values.dtype.itemsize * 8

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    rows = b""
    for x, y, across, down in passes:
        part = values[y::down, x::across]
        if part.size:
            rows += b"".join(b"\0" + row.astype(row.dtype.newbyteorder(">")).tobytes() for row in part)
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, int(interlaced))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def bmp(
    rows: bytes, bits: int, width: int, height: int, compression: int = 0, extra: bytes = b"", size: int = 40
) -> bytes:
    """A BMP with what follows its header: masks or a palette."""
    if size == 12:
        header = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        header = struct.pack("<IiiHHIIiiII", size, width, height, 1, bits, compression, len(rows), 0, 0, 0, 0)
    at = 14 + len(header) + len(extra)
    return b"BM" + struct.pack("<IHHI", at + len(rows), 0, 0, at) + header + extra + rows


def jpegs() -> dict[str, Kind]:
    image = photo()
    cmyk = saved(image.convert("CMYK"), "JPEG", quality=90)
    made = {
        "420.jpg": saved(image, "JPEG", quality=80),
        "444.jpg": saved(image, "JPEG", quality=95, subsampling=0),
        "422.jpg": saved(image, "JPEG", quality=95, subsampling=1),
        "progressive.jpg": saved(image, "JPEG", progressive=True),
        "grey.jpg": saved(image.convert("L"), "JPEG"),
        "cmyk.jpg": cmyk,
        "cmyk-no-app14.jpg": without_app14(cmyk),
        "rgb.jpg": saved(image, "JPEG", keep_rgb=True),
        "trailing.jpg": saved(image, "JPEG") + b"and more",
    }
    kinds = {name: Kind(data, pillow(data)) for name, data in made.items()}
    kinds["arithmetic.jpg"] = Kind(made["420.jpg"].replace(b"\xff\xc0", b"\xff\xc9", 1), refused="arithmetic coding")
    at = made["420.jpg"].index(b"\xff\xc0") + 4
    deep = made["420.jpg"][:at] + b"\x0c" + made["420.jpg"][at + 1 :]
    kinds["twelve.jpg"] = Kind(deep, refused="JPEG with samples of 12 bits")
    return kinds


def pngs() -> dict[str, Kind]:
    image = photo()
    alpha = photo(seed=6).convert("L")
    rgba, grey = image.copy(), image.convert("L")
    rgba.putalpha(alpha)
    rng = np.random.default_rng(3)
    made = {
        "one.png": saved(image.convert("1"), "PNG"),
        "grey.png": saved(grey, "PNG"),
        "grey-alpha.png": saved(rgba.convert("LA"), "PNG"),
        "palette.png": saved(image.quantize(9), "PNG"),
        "palette-1.png": saved(image.quantize(2), "PNG", bits=1),
        "palette-2.png": saved(image.quantize(4), "PNG", bits=2),
        "palette-transparent.png": saved(image.quantize(9), "PNG", transparency=3),
        "transparent.png": saved(image, "PNG", transparency=image.getpixel((0, 0))),
        "rgb.png": saved(image, "PNG"),
        "rgba.png": saved(rgba, "PNG"),
        "moving.png": saved(image, "PNG", save_all=True, append_images=[photo(seed=9)]),
        "interlaced.png": png(np.asarray(image), 2, interlaced=True),
        "rgb-16.png": png(rng.integers(0, 65536, (HEIGHT, WIDTH, 3)).astype(np.uint16), 2),
        "rgba-16.png": png(rng.integers(0, 65536, (HEIGHT, WIDTH, 4)).astype(np.uint16), 6),
    }
    kinds = {name: Kind(data, pillow(data)) for name, data in made.items()}
    deep = rng.integers(0, 65536, (HEIGHT, WIDTH)).astype(np.uint16)
    kinds["grey-16.png"] = Kind(png(deep, 0), higher(deep))
    return kinds


def higher(values: npt.NDArray[Any]) -> Array:
    """The higher bytes, as RGB: Pillow makes white of all numbers above 255."""
    byte = (values >> 8).astype(np.uint8)
    return np.stack([byte] * 3, -1) if byte.ndim == 2 else byte


def gifs_and_webps() -> dict[str, Kind]:
    image, other = photo(), photo(seed=9)
    rgba = image.copy()
    rgba.putalpha(photo(seed=6).convert("L"))
    gif = saved(image.quantize(12), "GIF", save_all=True, append_images=[other.quantize(12)])
    small = photo(20, 12)
    clear = small.copy()
    clear.putalpha(photo(20, 12, seed=6).convert("L"))
    lossy, lossless = saved(small, "WEBP", quality=80), saved(clear, "WEBP", lossless=True)
    made = {
        "still.gif": saved(image.quantize(12), "GIF"),
        "plain.gif": saved(image.quantize(12), "GIF", interlace=0),
        "transparent.gif": saved(image.quantize(12), "GIF", transparency=2),
        "moving.gif": gif,
        "no-trailer.gif": saved(image.quantize(12), "GIF")[:-1],
        "moving-no-trailer.gif": gif[:-1],
        "lossy.webp": saved(image, "WEBP", quality=70),
        "lossy-alpha.webp": saved(rgba, "WEBP", quality=70),
        "lossless.webp": saved(image, "WEBP", lossless=True),
        "lossless-alpha.webp": saved(rgba, "WEBP", lossless=True),
        "moving.webp": saved(image, "WEBP", save_all=True, append_images=[other], quality=70),
        "moving-lossless.webp": saved(rgba, "WEBP", save_all=True, append_images=[other], lossless=True),
        "moving-part.webp": moving_webp(lossy, WIDTH, HEIGHT, 8, 6, alpha=False),
        "moving-part-alpha.webp": moving_webp(lossless, WIDTH, HEIGHT, 8, 6, alpha=True),
        "moving-part-black.webp": moving_webp(lossless, WIDTH, HEIGHT, 0, 2, alpha=False),
    }
    return {name: Kind(data, pillow(data)) for name, data in made.items()}


def bmps() -> dict[str, Kind]:
    image = photo(13, 5)
    rgba = image.copy()
    rgba.putalpha(photo(13, 5, seed=6).convert("L"))
    rng = np.random.default_rng(8)
    deep = rng.integers(0, 65536, (5, 14), dtype=np.uint16).tobytes()
    wide = rng.integers(0, 256, 5 * 13 * 4, dtype=np.uint8).tobytes()
    three = rng.integers(0, 256, 5 * 40, dtype=np.uint8).tobytes()
    nibbles = rng.integers(0, 256, 5 * 8, dtype=np.uint8).tobytes()
    colours = rng.integers(0, 256, 64, dtype=np.uint8).tobytes()
    many = rng.integers(0, 256, 1024, dtype=np.uint8).tobytes()
    triples = rng.integers(0, 256, 48, dtype=np.uint8).tobytes()
    runs8 = b"".join(bytes([5, 7, 0, 3, 1, 2, 3, 0, 4, 9, 1, 200, 0, 0]) for _ in range(5)) + b"\0\1"
    runs4 = b"".join(bytes([5, 0x7A, 0, 4, 0x12, 0x34, 4, 0x9C, 0, 0]) for _ in range(5)) + b"\0\1"
    jump = bytes([2, 7, 0, 2, 3, 2, 4, 9, 0, 2, 4, 2, 13, 1, 0, 1])
    f5, f6 = struct.pack("<III", 0x7C00, 0x3E0, 0x1F), struct.pack("<III", 0xF800, 0x7E0, 0x1F)
    of_rgba = struct.pack("<IIII", 0xFF, 0xFF00, 0xFF0000, 0xFF000000)
    of_bgra = struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    more = struct.pack("<I", 0x73524742) + bytes(48)
    made = {
        "one.bmp": saved(image.convert("1"), "BMP"),
        "grey.bmp": saved(image.convert("L"), "BMP"),
        "palette.bmp": saved(image.quantize(200), "BMP"),
        "rgb.bmp": saved(image, "BMP"),
        "rgba.bmp": saved(rgba, "BMP"),
        "4-bits.bmp": bmp(nibbles, 4, 13, 5, extra=colours),
        "top-down-4.bmp": bmp(nibbles, 4, 13, -5, extra=colours),
        "555.bmp": bmp(deep, 16, 13, 5),
        "555-masks.bmp": bmp(deep, 16, 13, 5, 3, f5),
        "565.bmp": bmp(deep, 16, 13, 5, 3, f6),
        "top-down.bmp": bmp(three, 24, 13, -5),
        "32.bmp": bmp(wide, 32, 13, 5),
        "top-down-32.bmp": bmp(wide, 32, 13, -5),
        "masks-v3.bmp": bmp(wide, 32, 13, 5, 3, of_rgba, size=56),
        "masks-v4.bmp": bmp(wide, 32, 13, 5, 3, of_bgra + more, size=108),
        "os2.bmp": bmp(nibbles, 4, 13, 5, extra=triples, size=12),
        "os2-24.bmp": bmp(three, 24, 13, 5, size=12),
        "rle8.bmp": bmp(runs8, 8, 13, 5, 1, many),
        "rle4.bmp": bmp(runs4, 4, 13, 5, 2, colours),
        "rle8-jumps.bmp": bmp(jump, 8, 13, 5, 1, many),
    }
    kinds = {name: Kind(data, pillow(data)) for name, data in made.items()}
    kinds["jpeg.bmp"] = Kind(bmp(b"\xff\xd8", 0, 13, 5, 4), refused="BMP with JPEG in it")
    return kinds


def tiffs() -> dict[str, Kind]:
    """Those of Pillow: each mode by each compression that libtiff has for it."""
    image = photo()
    rgba = image.copy()
    rgba.putalpha(photo(seed=6).convert("L"))
    modes = {
        "1": image.convert("1"),
        "L": image.convert("L"),
        "LA": rgba.convert("LA"),
        "P": image.quantize(200),
        "RGB": image,
        "RGBA": rgba,
        "CMYK": image.convert("CMYK"),
        "I": Image.fromarray(np.asarray(image.convert("L")).astype(np.int32) * 3 - 200),
        "F": Image.fromarray(np.asarray(image.convert("L")).astype(np.float32) * 1.7 - 80),
    }
    kinds: dict[str, Kind] = {}
    for mode, picture in modes.items():
        for how in ("raw", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits", "group3", "group4", "jpeg"):
            if (how.startswith("group") and mode != "1") or (how == "jpeg" and mode not in ("L", "RGB", "CMYK")):
                continue
            data = saved(picture, "TIFF", compression=how)
            kinds[f"{mode}-{how}.tif"] = Kind(data, pillow(data))
    for number, strip in ((317, 2), (278, 7)):
        data = saved(image, "TIFF", compression="tiff_lzw", tiffinfo={number: strip})
        kinds[f"RGB-lzw-{number}.tif"] = Kind(data, pillow(data))
    data = saved(image, "TIFF", compression="jpeg", tiffinfo={278: 16}, quality=90)
    kinds["RGB-jpeg-strips.tif"] = Kind(data, pillow(data))
    deep = np.random.default_rng(4).integers(0, 65536, (HEIGHT, WIDTH)).astype(np.uint16)
    kinds["I16.tif"] = Kind(saved(Image.fromarray(deep), "TIFF"), higher(deep))
    kinds["fax.tif"] = Kind(
        saved(image.convert("1"), "TIFF", compression="tiff_ccitt"), refused="CCITT RLE compression"
    )
    kinds["lab.tif"] = Kind(saved(image.convert("LAB"), "TIFF"), refused="photometric interpretation 8")
    kinds["ycbcr.tif"] = Kind(saved(image.convert("YCbCr"), "TIFF"), refused="YCbCr pixels")
    old = saved(image, "TIFF").replace(struct.pack("<HHII", 259, 3, 1, 1), struct.pack("<HHII", 259, 3, 1, 6))
    kinds["old-jpeg.tif"] = Kind(old, refused="TIFF with old-style JPEG compression")
    return kinds


def scientific() -> dict[str, Kind]:
    """Those of tifffile."""
    rng = np.random.default_rng(7)
    rgb = np.asarray(photo())
    grey = np.asarray(photo().convert("L"))
    deep = rng.integers(0, 65536, (HEIGHT, WIDTH, 3)).astype(np.uint16)
    numbers = rng.normal(120, 150, (HEIGHT, WIDTH))
    clipped = higher(np.clip(numbers, 0, 255).astype(np.uint16) << 8)
    as_single = np.clip(numbers.astype(np.float32), 0, 255).astype(np.uint16)
    rgba = np.dstack([rgb, grey])

    def written(data: npt.NDArray[Any], **options: Any) -> bytes:
        out = io.BytesIO()
        options = {"photometric": "rgb" if data.ndim == 3 else "minisblack"} | options
        tifffile.imwrite(out, data, metadata=None, **options)
        return out.getvalue()

    big = {"bigtiff": True, "byteorder": ">"}
    return {
        "plain.tif": Kind(written(rgb), rgb),
        "zlib.tif": Kind(written(rgb, compression="zlib"), rgb),
        "strips.tif": Kind(written(rgb, compression="zlib", rowsperstrip=5), rgb),
        "tiles.tif": Kind(written(rgb, compression="zlib", tile=(16, 32)), rgb),
        "planes.tif": Kind(written(rgb.transpose(2, 0, 1).copy(), planarconfig="separate"), rgb),
        "tiled-planes.tif": Kind(
            written(rgb.transpose(2, 0, 1).copy(), planarconfig="separate", tile=(16, 16), compression="zlib"), rgb
        ),
        "big.tif": Kind(written(rgb, bigtiff=True), rgb),
        "big-endian.tif": Kind(written(rgb, **big), rgb),
        "motorola.tif": Kind(written(grey, byteorder=">"), np.stack([grey] * 3, -1)),
        "deep.tif": Kind(written(deep), higher(deep)),
        "deep-motorola.tif": Kind(written(deep, byteorder=">"), higher(deep)),
        "deep-planes.tif": Kind(written(deep.transpose(2, 0, 1).copy(), planarconfig="separate"), higher(deep)),
        "white.tif": Kind(written(255 - grey, photometric="miniswhite"), np.stack([grey] * 3, -1)),
        "pages.tif": Kind(written(np.stack([grey, 255 - grey]), photometric="minisblack"), np.stack([grey] * 3, -1)),
        "float32.tif": Kind(written(numbers.astype(np.float32)), higher(as_single << 8)),
        "float32-motorola.tif": Kind(written(numbers.astype(np.float32), byteorder=">"), higher(as_single << 8)),
        "float64.tif": Kind(written(numbers), clipped),
        "int16.tif": Kind(written(numbers.astype(np.int16)), higher(np.clip(numbers, 0, 255).astype(np.uint16) << 8)),
        "alpha.tif": Kind(written(rgba, extrasamples=["unassalpha"]), rgb),
        "extra.tif": Kind(written(rgba, extrasamples=["unspecified"]), rgb),
        "premultiplied.tif": (lambda data: Kind(data, pillow(data)))(written(rgba, extrasamples=["assocalpha"])),
        "float-rgb.tif": Kind(written(rgb.astype(np.float32)), refused="3 floating-point samples of 32 bits"),
        "complex.tif": Kind(written(grey.astype(np.complex64)), refused="complex numbers"),
    }


def others() -> dict[str, Kind]:
    """Files that are no readable image, with and without the name of one."""
    image = photo()
    kinds = {"jpeg2000.jpg": ("JPEG2000", "JPEG 2000"), "avif.jpg": ("AVIF", "AVIF"), "ppm.png": ("PPM", "PPM")}
    made = {name: Kind(saved(image, kind), refused=words) for name, (kind, words) in kinds.items()}
    made["pgm.png"] = Kind(saved(image.convert("L"), "PPM"), refused="PGM")
    made["ico.png"] = Kind(saved(image, "ICO"), refused="ICO")
    made["pcx.png"] = Kind(saved(image, "PCX"), refused="PCX")
    made["sgi.png"] = Kind(saved(image, "SGI"), refused="SGI")
    return made


def all_images() -> dict[str, Kind]:
    """The whole table."""
    return jpegs() | pngs() | gifs_and_webps() | bmps() | tiffs() | scientific() | others()


def main() -> None:
    """Keep the smaller half of them for the tests in Go, with the sums of their pixels."""
    out = Path(__file__).parents[1] / "fetch" / "operators" / "images" / "testdata" / "kinds"
    out.mkdir(exist_ok=True)
    sums = {}
    for name, kind in sorted(all_images().items()):
        if len(kind.data) > 4800 or name.endswith((".png", "deflate.tif")):
            continue
        (out / name).write_bytes(kind.data)
        sums[name] = kind.refused or hashlib.sha256(np.asarray(kind.rgb).tobytes()).hexdigest()
    (out.parent / "kinds.json").write_text(json.dumps(sums, indent=0) + "\n")


if __name__ == "__main__":
    main()
