"""Files of images, decoded by Pillow and by the operators."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tifffile
from PIL import Image

from .kind import Kind, Made
from .pictures import pixels

KINDS: list[Kind] = []
COUNT = 3
DECODE = {"image": [{"Decode": {}}, {"ToImage": {"layout": "HWC"}}]}

Encode = Callable[[npt.NDArray[np.uint8]], bytes]


def kind(name: str, extension: str, encode: Encode, tolerance: float = 0, refused: str = "") -> None:
    """Three images of a kind in a folder; Pillow's pixels in RGB are what is expected."""

    def make(folder: Path) -> Made:
        there = folder / "images"
        there.mkdir()
        rows = []
        for number in range(COUNT):
            data = encode(pixels(number))
            (there / f"{number}.{extension}").write_bytes(data)
            with Image.open(io.BytesIO(data)) as image:
                rows.append({"file_name": f"{number}.{extension}", "image": np.asarray(image.convert("RGB"))})
        return Made(there, rows, "file_name", operators=DECODE, tolerance=tolerance)

    KINDS.append(Kind(name, make, refused))


def pillow(form: str, mode: str = "RGB", **options: Any) -> Encode:
    """A file by Pillow, of an image in the given mode."""

    def encode(rgb: npt.NDArray[np.uint8]) -> bytes:
        data = io.BytesIO()
        Image.fromarray(rgb).convert(mode).save(data, form, **options)
        return data.getvalue()

    return encode


def tiff(**options: Any) -> Encode:
    """A file by tifffile."""

    def encode(rgb: npt.NDArray[np.uint8]) -> bytes:
        data = io.BytesIO()
        tifffile.imwrite(data, rgb, **{"photometric": "rgb", **options})
        return data.getvalue()

    return encode


def animated(form: str, **options: Any) -> Encode:
    """Two frames; the first is the image."""

    def encode(rgb: npt.NDArray[np.uint8]) -> bytes:
        data = io.BytesIO()
        second = Image.fromarray(np.ascontiguousarray(rgb[::-1]))
        Image.fromarray(rgb).save(data, form, save_all=True, append_images=[second], duration=100, **options)
        return data.getvalue()

    return encode


def gif_without_trailer(rgb: npt.NDArray[np.uint8]) -> bytes:
    return pillow("GIF", "P")(rgb).removesuffix(b";")


def cmyk_without_adobe(rgb: npt.NDArray[np.uint8]) -> bytes:
    data = pillow("JPEG", "CMYK", quality=95)(rgb)
    at = data.index(b"\xff\xee")
    return data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]


kind("jpeg", "jpg", pillow("JPEG", quality=90), tolerance=1)
kind("jpeg_progressive", "jpg", pillow("JPEG", quality=90, progressive=True), tolerance=1)
kind("jpeg_grey", "jpg", pillow("JPEG", "L", quality=90), tolerance=1)
kind("jpeg_444", "jpeg", pillow("JPEG", quality=95, subsampling=0), tolerance=1)
kind("jpeg_cmyk", "jpg", pillow("JPEG", "CMYK", quality=95), tolerance=1)
kind("jpeg_cmyk_without_adobe", "jpg", cmyk_without_adobe, tolerance=1)
for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
    kind(f"png_{mode}", "png", pillow("PNG", mode))
kind("png_animated", "png", animated("PNG"))
kind("gif", "gif", pillow("GIF", "P"))
kind("gif_animated", "gif", animated("GIF"))
kind("gif_without_trailer", "gif", gif_without_trailer)
kind("webp", "webp", pillow("WEBP", quality=90), tolerance=1)
kind("webp_lossless", "webp", pillow("WEBP", lossless=True))
kind("webp_animated", "webp", animated("WEBP", lossless=True))
for mode in ("1", "L", "P", "RGB"):
    kind(f"bmp_{mode}", "bmp", pillow("BMP", mode))
kind("bmp_RGBA", "bmp", pillow("BMP", "RGBA"))
for compression in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"):
    kind(f"tiff_{compression}", "tif", pillow("TIFF", compression=compression))
kind("tiff_jpeg", "tif", pillow("TIFF", compression="jpeg", quality=90), tolerance=2)
kind("tiff_grey", "tiff", pillow("TIFF", "L"))
kind("tiff_palette", "tiff", pillow("TIFF", "P"))
kind("tiff_fax", "tif", pillow("TIFF", "1", compression="group4"))
kind("tiff_cmyk", "tif", pillow("TIFF", "CMYK"))
kind("tiff_float32", "tif", lambda rgb: tiff(photometric="minisblack")((rgb[..., 0] / 255).astype(np.float32)))
kind("tiff_tiled", "tif", tiff(tile=(16, 16)))
kind("tiff_big_endian", "tif", tiff(byteorder=">"))
