#!/usr/bin/env python3
"""Makes the golden files of crates/data/tests/fixtures with Pillow 13.0.0.

    pip install pillow==13.0.0
    python scripts/reference/data_fixtures.py crates/data/tests/fixtures [fashion_mnist_train.tar fashion_mnist_val.tar]

- modes/NAME.{png,jpg,webp} and modes/NAME.rgb.png: a file of each kind and what Pillow's convert("RGB") makes of it.
- resize.txt: one case a line, `source channels filter width height box expected`; the expected pixels are PNGs.
- eval.txt: one case a line, `source height width crop_pct expected`: timm's evaluation transform before normalisation.
- fashion/SPLIT_LABEL.png: the first original file of some classes, to compare the embedded ones with (only with the tars).

The same version gives the same files. Resampling is exact to the version: see crates/data/src/transform/resize.rs.
"""

import io
import math
import pathlib
import random
import struct
import sys
import tarfile
import zlib

import PIL
from PIL import Image, ImageDraw

assert PIL.__version__ == "13.0.0", f"made for Pillow 13.0.0, not {PIL.__version__}"
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def picture(width, height, seed):
    """Gradients, edges and noise: each shows another kind of error."""
    rng = random.Random(seed)
    image = Image.new("RGB", (width, height))
    for y in range(height):
        for x in range(width):
            base = (255 * x // width, 255 * y // height, 255 * (x + y) // (width + height))
            noise = rng.randrange(256) if (x // 8 + y // 8) % 3 == 0 else None
            image.putpixel((x, y), tuple((v + noise) // 2 if noise is not None else v for v in base))
    draw = ImageDraw.Draw(image)
    for _ in range(4):
        x, y = rng.randrange(width), rng.randrange(height)
        colour = tuple(rng.choice((0, 255)) for _ in range(3))
        draw.rectangle((x, y, x + width // 6, y + height // 6), fill=colour)
    return image


def smooth(width, height):
    """A picture without noise, on which JPEG decoders differ little."""
    image = Image.new("RGB", (width, height))
    for y in range(height):
        for x in range(width):
            wave = [127 + 100 * math.sin((x * a + y * b) / 9) for a, b in ((1, 0.3), (0.4, 1), (0.7, -0.6))]
            image.putpixel((x, y), tuple(int(v) for v in wave))
    return image


def png16(width, height, colour_type, channels):
    """A 16-bit PNG, which Pillow does not write."""
    rows = b""
    for y in range(height):
        rows += b"\0"
        for x in range(width):
            for c in range(channels):
                rows += struct.pack(">H", (x * 2311 + y * 3617 + c * 17011) % 65536)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def encoded(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def with_adobe_transform(jpeg, transform):
    at = jpeg.index(b"Adobe") + 11
    return jpeg[:at] + bytes([transform]) + jpeg[at + 1 :]


def modes(folder):
    folder.mkdir(parents=True, exist_ok=True)
    noisy, soft = picture(37, 29, 1), smooth(37, 29)
    alpha = Image.linear_gradient("L").resize(noisy.size)
    rgba = noisy.copy()
    rgba.putalpha(alpha)
    palette = noisy.quantize(64)
    cmyk = Image.merge("CMYK", (*soft.split(), Image.linear_gradient("L").resize(soft.size)))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees when shown
    cmyk_jpeg = encoded(cmyk, "JPEG", quality=95, subsampling=0)
    files = {
        "rgb.png": encoded(noisy, "PNG"),
        "l.png": encoded(noisy.convert("L"), "PNG"),
        "bits1.png": encoded(noisy.convert("1"), "PNG"),
        "p.png": encoded(palette, "PNG"),
        "p4.png": encoded(noisy.quantize(13), "PNG", bits=4),
        "p_transparent.png": encoded(palette, "PNG", transparency=3),
        "la.png": encoded(rgba.convert("LA"), "PNG"),
        "rgba.png": encoded(rgba, "PNG"),
        "rgb_transparent.png": encoded(noisy, "PNG", transparency=noisy.getpixel((0, 0))),
        "rgb16.png": png16(19, 11, 2, 3),
        "rgba16.png": png16(19, 11, 6, 4),
        "la16.png": png16(19, 11, 4, 2),
        "lossless.webp": encoded(noisy, "WEBP", lossless=True),
        "lossless_alpha.webp": encoded(rgba, "WEBP", lossless=True, exact=True),
        "lossy.webp": encoded(soft, "WEBP", quality=90),
        "l.jpg": encoded(soft.convert("L"), "JPEG", quality=95),
        "ycbcr420.jpg": encoded(soft, "JPEG", quality=95),
        "ycbcr444.jpg": encoded(soft, "JPEG", quality=95, subsampling=0),
        "progressive.jpg": encoded(soft, "JPEG", quality=95, progressive=True),
        "restart.jpg": encoded(soft, "JPEG", quality=95, restart_marker_blocks=2),
        "adobe_rgb.jpg": encoded(soft, "JPEG", quality=95, keep_rgb=True),
        "cmyk.jpg": cmyk_jpeg,
        "ycck.jpg": with_adobe_transform(cmyk_jpeg, 2),
        "exif_rotated.jpg": encoded(soft, "JPEG", quality=95, exif=exif),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
        Image.open(io.BytesIO(data)).convert("RGB").save(folder / f"{name}.rgb.png", optimize=True)


def resize(folder):
    lines = []
    (folder / "resize").mkdir(exist_ok=True)
    cases = [  # source size, target size, box
        ((97, 71), (32, 24), None),
        ((31, 23), (64, 49), None),
        ((61, 47), (17, 53), None),
        ((61, 47), (90, 13), None),
        ((40, 90), (35, 21), None),  # vertical pass first
        ((41, 60), (31, 40), None),  # loses 10 and 20: horizontal pass first, just
        ((41, 60), (31, 39), None),  # loses 10 and 21: vertical pass first, just
        ((5, 7), (1, 1), None),
        ((1, 1), (9, 4), None),
        ((40, 30), (40, 11), None),
        ((40, 30), (11, 30), None),
        ((97, 71), (32, 24), (10, 5, 74, 53)),
        ((97, 71), (28, 28), (3.25, 7.5, 60.75, 64.125)),
        ((40, 90), (40, 33), (0, 1.5, 40, 80)),
        ((28, 28), (28, 28), (0.5, 0, 28, 28)),
        ((150, 200), (28, 28), None),
    ]
    for i, (size, target, box) in enumerate(cases):
        source = f"resize/{i:02}_source.png"
        image = picture(*size, seed=100 + i)
        image.save(folder / source, optimize=True)
        for name, kind in FILTERS.items():
            for channels, mode in ((3, "RGB"), (1, "L")):
                out = image.convert(mode).resize(target, kind, box=box)
                expected = f"resize/{i:02}_{name}_{channels}.png"
                out.save(folder / expected, optimize=True)
                where = ",".join(map(str, box)) if box else "-"
                lines.append(f"{source} {channels} {name} {target[0]} {target[1]} {where} {expected}")
    (folder / "resize.txt").write_text("\n".join(lines) + "\n")


def evaluate(image, height, width, crop_pct):
    """timm's evaluation transform with crop_mode "center", written down from its rules."""
    target = [math.floor(side / crop_pct) for side in (height, width)]
    w, h = image.size
    if target[0] == target[1]:
        short, long = min(w, h), max(w, h)
        new_short, new_long = target[0], int(target[0] * long / short)
        size = (new_short, new_long) if w <= h else (new_long, new_short)
    else:
        ratio = min(h / target[0], w / target[1])
        size = (round(w / ratio), round(h / ratio))
    image = image.resize(size, Image.Resampling.BICUBIC)
    w, h = image.size
    if w < width or h < height:
        left, top = max(0, (width - w) // 2), max(0, (height - h) // 2)
        padded = Image.new(image.mode, (max(w, width), max(h, height)))
        padded.paste(image, (left, top))
        image = padded
        w, h = image.size
    top, left = int(round((h - height) / 2.0)), int(round((w - width) / 2.0))
    return image.crop((left, top, left + width, top + height))


def evaluations(folder):
    lines = []
    (folder / "eval").mkdir(exist_ok=True)
    cases = [
        ((97, 71), 32, 32, 0.875),
        ((71, 97), 32, 32, 0.9),
        ((160, 121), 48, 48, 0.95),
        ((33, 33), 32, 32, 1.0),
        ((32, 45), 32, 32, 1.0),
        ((30, 64), 32, 32, 1.0),
        ((20, 200), 32, 32, 0.875),
        ((50, 41), 32, 32, 1.6),
        ((97, 71), 24, 40, 0.9),
        ((60, 90), 40, 24, 1.0),
    ]
    for i, (size, height, width, crop_pct) in enumerate(cases):
        image = picture(*size, seed=200 + i)
        source, expected = f"eval/{i:02}_source.png", f"eval/{i:02}_expected.png"
        image.save(folder / source, optimize=True)
        evaluate(image, height, width, crop_pct).save(folder / expected, optimize=True)
        lines.append(f"{source} {height} {width} {crop_pct} {expected}")
    (folder / "eval.txt").write_text("\n".join(lines) + "\n")


def fashion(folder, train, val):
    (folder / "fashion").mkdir(exist_ok=True)
    for split, path in (("train", train), ("val", val)):
        with tarfile.open(path) as archive:
            names = sorted(member.name for member in archive if member.isfile())
            for label in (0, 3, 9):
                first = next(name for name in names if name.split("/")[-2].startswith(f"{label}_"))
                (folder / "fashion" / f"{split}_{label}.png").write_bytes(archive.extractfile(first).read())


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    modes(folder / "modes")
    resize(folder)
    evaluations(folder)
    if len(sys.argv) > 2:
        fashion(folder, *sys.argv[2:])


if __name__ == "__main__":
    main()
