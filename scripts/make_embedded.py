#!/usr/bin/env python3
"""Makes crates/data/assets/fashion_mnist.bin: a class-balanced subset of Fashion-MNIST that fits into the program.

    python scripts/make_embedded.py fashion_mnist_train.tar fashion_mnist_val.tar crates/data/assets/fashion_mnist.bin

Each tar holds `<label>_<class>/<index>.png`, 28x28 grey. Of each class the first files by index are taken: VAL_PER_CLASS from
the validation tar, and as many from the training tar as fit into LIMIT bytes. PNGs are compressed anew without loss.
The same tars give the same bytes with the same versions (Pillow 13.0.0 reads; libdeflate, through deflate 0.9.0, writes). The
format is described in crates/data/src/source/embedded.rs.

    pip install pillow==13.0.0 deflate==0.9.0
"""

import io
import struct
import sys
import tarfile
import zlib
from multiprocessing import Pool

import deflate
from PIL import Image

LIMIT = 6_000_000
CLASSES = 10
VAL_PER_CLASS = 200
MAGIC = b"MHEMBED1"


def filtered(rows, kind):
    """Scan lines of an 8-bit grey image behind PNG's filter `kind` (PNG specification, section 9)."""
    out = bytearray()
    above = bytes(len(rows[0]))
    for row in rows:
        out.append(kind)
        for x, value in enumerate(row):
            left = row[x - 1] if x else 0
            up = above[x]
            corner = above[x - 1] if x else 0
            if kind == 0:
                guess = 0
            elif kind == 1:
                guess = left
            elif kind == 2:
                guess = up
            elif kind == 3:
                guess = (left + up) // 2
            else:
                estimate = left + up - corner
                guess = min((left, up, corner), key=lambda near: abs(estimate - near))
            out.append((value - guess) & 255)
        above = row
    return bytes(out)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def compress(png):
    """The same pixels in the smallest PNG found."""
    image = Image.open(io.BytesIO(png))
    assert image.mode == "L" and image.size == (28, 28), (image.mode, image.size)
    pixels = image.tobytes()
    rows = [pixels[y * 28 : y * 28 + 28] for y in range(28)]
    best = min((deflate.zlib_compress(filtered(rows, kind), 12) for kind in range(5)), key=len)
    head = struct.pack(">IIBBBBB", 28, 28, 8, 0, 0, 0, 0)
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", best) + chunk(b"IEND", b"")
    assert Image.open(io.BytesIO(out)).tobytes() == pixels
    return out


def read(path):
    """PNG files of each class, by index."""
    classes = [[] for _ in range(CLASSES)]
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile():
                folder, name = member.name.split("/")[-2:]
                classes[int(folder.split("_")[0])].append((name, archive.extractfile(member).read()))
    return [[png for _, png in sorted(files)] for files in classes]


def main():
    train_tar, val_tar, out = sys.argv[1:]
    train, val = read(train_tar), read(val_tar)
    with Pool() as pool:
        val_items = [(label, png) for label in range(CLASSES) for png in pool.map(compress, val[label][:VAL_PER_CLASS])]
        size = 20 + 4 + sum(5 + len(png) for _, png in val_items)
        rounds = []  # one image of each class per round, so that every prefix is balanced
        at = 0
        while at < min(map(len, train)):
            batch = [train[label][i] for i in range(at, min(at + 64, min(map(len, train)))) for label in range(CLASSES)]
            done = pool.map(compress, batch, chunksize=16)
            full = False
            for start in range(0, len(done), CLASSES):
                group = done[start : start + CLASSES]
                cost = sum(5 + len(png) for png in group)
                if size + cost > LIMIT:
                    full = True
                    break
                size += cost
                rounds.append(group)
            if full:
                break
            at += 64
    train_items = [(label, group[label]) for label in range(CLASSES) for group in rounds]
    items = train_items + val_items
    starts = [0]
    for _, png in items:
        starts.append(starts[-1] + len(png))
    body = bytes(label for label, _ in items) + struct.pack(f"<{len(starts)}I", *starts) + b"".join(png for _, png in items)
    with open(out, "wb") as file:
        file.write(MAGIC + struct.pack("<III", len(train_items), len(val_items), zlib.crc32(body)) + body)
    print(f"{len(train_items)} training and {len(val_items)} validation images, {20 + len(body)} bytes")


if __name__ == "__main__":
    main()
