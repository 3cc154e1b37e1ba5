#!/usr/bin/env python3
"""Makes JPEGs of every chroma subsampling and coding for crates/data/tests/fixtures/subsampling, with Pillow 13.0.0.

    pip install pillow==13.0.0
    python scripts/reference/data_subsampling.py crates/data/tests/fixtures/subsampling

4:4:0 is made from 4:2:2 by turning it: Pillow does not write it, so the sampling factors and the sides in the frame header are
exchanged; the pixels are then others than the picture's, but all decoders must agree on them. subsampling.txt, beside the
folder, has the CRC-32 of the RGB values that Pillow decodes.
"""

import io
import pathlib
import sys

import PIL
from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from data_fixtures import picture  # noqa: E402

assert PIL.__version__ == "13.0.0"


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    codings = {
        "baseline": {},
        "progressive": {"progressive": True},
        "restart": {"restart_marker_blocks": 3},
    }
    for size in ((83, 61), (64, 48)):
        image = picture(*size, seed=7)
        for name, options in codings.items():
            for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
                save(folder, f"{subsampling.replace(':', '')}_{name}_{size[0]}", image, quality=88, subsampling=subsampling, **options)
            save(folder, f"grey_{name}_{size[0]}", image.convert("L"), quality=88, **options)
    turned = picture(64, 64, seed=9)
    for name, options in codings.items():
        out = io.BytesIO()
        turned.save(out, "JPEG", quality=88, subsampling="4:2:2", **options)
        data = bytearray(out.getvalue())
        frame = next(i for i in range(len(data)) if data[i] == 0xFF and data[i + 1] in (0xC0, 0xC2))
        assert data[frame + 11] == 0x21, "luma is not sampled twice along the row"
        data[frame + 11] = 0x12
        (folder / f"440_{name}_64.jpg").write_bytes(data)


def save(folder, name, image, **options):
    image.save(folder / f"{name}.jpg", "JPEG", **options)


def checksums(folder):
    import zlib

    lines = []
    for path in sorted(folder.glob("*.jpg")):
        lines.append(f"{path.name} {zlib.crc32(Image.open(path).convert('RGB').tobytes()):08x}")
    (folder.parent / "subsampling.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
    checksums(pathlib.Path(sys.argv[1]))
