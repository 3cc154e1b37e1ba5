#!/usr/bin/env python3
"""Evaluation transforms of timm 1.0.31 on Pillow 13.0.0 over odd images, for crates/data/tests/fixtures.

    pip install timm==1.0.31 pillow==13.0.0 torchvision
    python scripts/reference/data_eval.py crates/data/tests/fixtures

- odd/*: images of 1 × 1 up to 5000 × 3000 pixels.
- eval_modes.txt: one case a line, `source height width crop_pct crop_mode filter crc`: CRC-32 of the values [C, H, W] before
  normalisation, for those and for the files in modes/. Cases that timm itself cannot do (a side of no pixels) are left out.
"""

import pathlib
import sys
import zlib

import numpy as np
import PIL
import timm
from PIL import Image
from timm.data.transforms_factory import transforms_imagenet_eval

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from data_fixtures import picture  # noqa: E402

assert PIL.__version__ == "13.0.0" and timm.__version__ == "1.0.31"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def odd(folder):
    folder.mkdir(parents=True, exist_ok=True)
    picture(2, 1, 1).crop((0, 0, 1, 1)).save(folder / "1x1.png")
    picture(1, 7, 2).save(folder / "1x7.png")
    picture(9, 2, 3).save(folder / "9x2.jpg", quality=95)
    picture(3, 400, 4).save(folder / "3x400.jpg", quality=80)
    picture(239, 181, 5).save(folder / "239x181.jpg", quality=60)
    picture(181, 239, 6).convert("L").save(folder / "181x239_grey.jpg", quality=60, progressive=True)
    y, x = np.mgrid[0:3000, 0:5000]
    waves = [127 + 90 * np.sin(x / a + y / b) for a, b in ((300, 170), (210, -400), (-500, 130))]
    huge = Image.fromarray(np.stack(waves, -1).astype(np.uint8))
    huge.save(folder / "5000x3000.jpg", quality=40)
    huge.convert("CMYK").resize((500, 301)).save(folder / "500x301_cmyk.jpg", quality=70)


def main():
    root = pathlib.Path(sys.argv[1])
    odd(root / "odd")
    lines = []
    sources = sorted((root / "odd").iterdir()) + sorted(p for p in (root / "modes").iterdir() if not p.name.endswith(".rgb.png"))
    for path in sources:
        for size, crop_pct, interpolation in (((32, 32), 0.875, "bicubic"), ((24, 40), 0.9, "bicubic"), ((48, 48), 1.0, "bilinear")):
            for mode in ("center", "squash", "border"):
                image = Image.open(path).convert("RGB")
                transform = transforms_imagenet_eval(
                    size, crop_pct, mode, interpolation=interpolation, mean=MEAN, std=STD, use_prefetcher=True
                )
                try:
                    values = np.asarray(transform(image))
                except (ValueError, ZeroDivisionError) as error:
                    print(f"{path.name} {size} {mode}: {error}")
                    continue
                crc = f"{zlib.crc32(np.ascontiguousarray(values).tobytes()):08x}"
                lines.append(f"{path.relative_to(root)} {size[0]} {size[1]} {crop_pct} {mode} {interpolation} {crc}")
    (root / "eval_modes.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
