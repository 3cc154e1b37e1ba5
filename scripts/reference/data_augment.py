#!/usr/bin/env python3
"""Makes the golden files of augmentation in crates/data/tests/fixtures/augment, with timm 1.0.31 on Pillow 13.0.0.

    pip install timm==1.0.31 pillow==13.0.0 torchvision
    python scripts/reference/data_augment.py crates/data/tests/fixtures/augment

- N.png: six small images: like photographs, of odd sizes, one of them grey.
- operations.txt: one case a line, `image operation parameter filter crc`: CRC-32 of the RGB values after the operation with
  that parameter. `magnitude` cases carry timm's argument for a magnitude, so that both scales are held.
- arguments.txt: `kind magnitude argument…`: what timm makes of a magnitude (both signs).
- laws.txt: what is drawn, over many draws, by timm and torchvision: counts of operations, quantiles of parameters.
"""

import math
import pathlib
import random
import sys
import zlib

import numpy as np
import PIL
import timm
import torch
from PIL import Image
from timm.data import auto_augment as aa
from timm.data.mixup import Mixup
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import RandomResizedCropAndInterpolation
from torchvision import transforms
from torchvision.transforms import functional as F

assert PIL.__version__ == "13.0.0" and timm.__version__ == "1.0.31"
FILL = (124, 116, 104)
FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def photograph(width, height, seed):
    """Smooth shapes, an edge and grain."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [
        110 + 60 * np.sin(x / (3 + seed) + c) + 50 * np.cos(y / (5 + c) - seed) + 40 * ((x - y * 0.7) > width / 3)
        for c in range(3)
    ]
    image = np.stack(waves, -1) + rng.normal(0, 6 + 3 * seed, (height, width, 3))
    return Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))


def images():
    flat = photograph(33, 29, 5).point(lambda v: 90 + v // 16)  # of little contrast
    return [
        photograph(48, 40, 0),
        photograph(37, 41, 1),
        photograph(64, 17, 2),
        photograph(40, 40, 3).convert("L").convert("RGB"),
        flat,
        photograph(5, 3, 4),
    ]


def crc(image):
    return f"{zlib.crc32(image.convert('RGB').tobytes()):08x}"


def operations(folder, pictures):
    lines = []

    def case(number, name, parameter, kind, out):
        lines.append(f"{number} {name} {parameter!r} {kind} {crc(out)}")

    magnitudes = (0, 3, 9, 10)
    signed = {
        "rotate": (aa.rotate, [m / 10 * 30.0 for m in magnitudes]),
        "shear_x": (aa.shear_x, [m / 10 * 0.3 for m in magnitudes]),
        "shear_y": (aa.shear_y, [m / 10 * 0.3 for m in magnitudes]),
    }
    enhancing = {
        "color": aa.color, "contrast": aa.contrast, "brightness": aa.brightness, "sharpness": aa.sharpness
    }
    factors = sorted({max(0.1, 1 + s * m / 10 * 0.9) for m in magnitudes for s in (1, -1)} | {m / 10 * 1.8 + 0.1 for m in magnitudes})
    for number, image in enumerate(pictures):
        for name, fn in (("auto_contrast", aa.auto_contrast), ("equalize", aa.equalize), ("invert", aa.invert)):
            case(number, name, 0, "bicubic", fn(image))
        for name, (fn, arguments) in signed.items():
            for argument in arguments:
                for value in (argument, -argument):
                    for kind, resample in FILTERS.items():
                        case(number, name, value, kind, fn(image, value, resample=resample, fillcolor=FILL))
        for m in magnitudes:
            for sign in (1, -1):
                pct = sign * m / 10 * 0.45
                for kind, resample in FILTERS.items():
                    out = aa.translate_x_rel(image, pct, resample=resample, fillcolor=FILL)
                    case(number, "translate_x", pct * image.size[0], kind, out)
                    out = aa.translate_y_rel(image, pct, resample=resample, fillcolor=FILL)
                    case(number, "translate_y", pct * image.size[1], kind, out)
        for bits in range(1, 9):
            case(number, "posterize", bits, "bicubic", aa.posterize(image, bits))
        case(number, "posterize", 0, "bicubic", Image.new("RGB", image.size))  # black, where Pillow 13 raises
        for threshold in (0, 26, 77, 128, 180, 256):
            case(number, "solarize", threshold, "bicubic", aa.solarize(image, threshold))
        for add in (0, 33, 99, 110):
            case(number, "solarize_add", add, "bicubic", aa.solarize_add(image, add))
        for name, fn in enhancing.items():
            for factor in [*factors, 0.0, 0.37, 2.5]:
                case(number, name, factor, "bicubic", fn(image, factor))
        for radius in (0.1, 0.57, 1.0, 1.3, 2.0, 7.5):
            case(number, "gaussian_blur", radius, "bicubic", aa.gaussian_blur(image, radius))
        for turn in (90.0, 180.0, -90.0, 45.0, 133.7):
            case(number, "rotate", turn, "bicubic", image.rotate(turn, Image.Resampling.BICUBIC, fillcolor=FILL))
        case(number, "grayscale", 0, "bicubic", F.to_grayscale(image, 3))
        for shift in (-0.5, -0.17, 0.0, 0.1, 0.42, 0.5):
            case(number, "hue", shift, "bicubic", F.adjust_hue(image, shift))
    (folder / "operations.txt").write_text("\n".join(lines) + "\n")


def arguments(folder):
    """Both signs of what timm makes of magnitudes: the sign is drawn by random.random() > 0.5."""
    lines = []
    for name, level_fn in aa.LEVEL_TO_ARG.items():
        if level_fn is None or name in ("TranslateX", "TranslateY", "GaussianBlurRand"):
            continue
        for magnitude in (0.0, 0.4, 3.0, 5.0, 7.3, 9.0, 9.6, 10.0):
            values = []
            for draw in (0.0, 0.9):
                aa.random.random = lambda draw=draw: draw
                values.append(level_fn(magnitude, {})[0])
            lines.append(f"{name} {magnitude} " + " ".join(repr(float(v)) for v in values))
    aa.random.random = random.Random(0).random
    (folder / "arguments.txt").write_text("\n".join(lines) + "\n")


def quantiles(values):
    return " ".join(repr(float(v)) for v in np.quantile(np.asarray(values, dtype=np.float64), np.linspace(0, 1, 41)))


def laws(folder):
    """Laws of timm's draws. Operations are replaced by recorders; magnitudes and frequencies are then timm's own."""
    n = 100_000
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    lines = []
    for config in ("rand-m9-mstd0.5-inc1", "rand-m7-n3-mstd101-p0.7", "rand-tweights-m9-mstd0.5", "v0-mstd0.5", "original", "3a"):
        seen, values, pairs = {}, {}, {}
        make = aa.rand_augment_transform if config.startswith("rand") else aa.auto_augment_transform
        transform = make(config, dict(translate_const=100, img_mean=FILL, interpolation=Image.Resampling.BICUBIC))
        current = []

        def recorder(name):
            def record(image, *args, **kwargs):
                current.append(name)
                seen[name] = seen.get(name, 0) + 1
                if args:
                    value = args[0]
                    if name == "GaussianBlurRand":
                        value = random.uniform(0.1, 2.0 * value)
                    if name == "Desaturate":
                        value = min(1.0, max(0.0, 1.0 - value))
                    values.setdefault(name, []).append(value)
                return image

            return record

        ops = transform.ops if config.startswith("rand") else [op for sub in transform.policy for op in sub]
        for op in ops:
            op.aug_fn = recorder(op.name)
        for _ in range(n):
            current.clear()
            transform(None)
            pairs[len(current)] = pairs.get(len(current), 0) + 1
        for name, count in sorted(seen.items()):
            lines.append(f"count {config} {name} {count}")
        for length, count in sorted(pairs.items()):
            lines.append(f"length {config} {length} {count}")
        for name, drawn in sorted(values.items()):
            lines.append(f"values {config} {name} {len(drawn)} {quantiles(drawn)}")

    crops = [RandomResizedCropAndInterpolation.get_params(Image.new("L", (500, 375)), (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(n)]
    lines.append(f"crop area {n} {quantiles([h * w / (500 * 375) for _, _, h, w in crops])}")
    lines.append(f"crop ratio {n} {quantiles([math.log(w / h) for _, _, h, w in crops])}")
    lines.append(f"crop row {n} {quantiles([i for i, _, _, _ in crops])}")
    lines.append(f"crop column {n} {quantiles([j for _, j, _, _ in crops])}")

    jitter = transforms.ColorJitter(0.4, 0.3, 0.2, 0.1)
    orders, factors = {}, [[], [], [], []]
    for _ in range(n // 4):
        order, *drawn = jitter.get_params(jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
        key = "".join(str(int(i)) for i in order)
        orders[key] = orders.get(key, 0) + 1
        for values, value in zip(factors, drawn):
            values.append(value)
    for key, count in sorted(orders.items()):
        lines.append(f"order {key} {count}")
    for name, values in zip(("brightness", "contrast", "saturation", "hue"), factors):
        lines.append(f"jitter {name} {len(values)} {quantiles(values)}")

    for count in (1, 3):
        boxes = []

        class Recorder:
            def __setitem__(self, key, _):
                _, rows, columns = key
                boxes.append((rows.start, columns.start, rows.stop - rows.start, columns.stop - columns.start))

        erasing = RandomErasing(0.25, mode="const", max_count=count, device="cpu")
        erased, numbers = 0, {}
        for _ in range(n):
            before = len(boxes)
            erasing._erase(Recorder(), 3, 224, 224, torch.float32)
            numbers[len(boxes) - before] = numbers.get(len(boxes) - before, 0) + 1
        for number, times in sorted(numbers.items()):
            lines.append(f"boxes {count} {number} {times}")
        for name, values in (
            ("area", [h * w / 224**2 for _, _, h, w in boxes]),
            ("aspect", [math.log(h / w) for _, _, h, w in boxes]),
            ("row", [t for t, _, _, _ in boxes]),
            ("column", [left for _, left, _, _ in boxes]),
        ):
            lines.append(f"erased {count} {name} {len(values)} {quantiles(values)}")

    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, prob=0.9, switch_prob=0.5, num_classes=10)
    kinds, mixed, cut = {"none": 0, "mixup": 0, "cutmix": 0}, [], []
    for _ in range(n):
        lam, use_cutmix = mixup._params_per_batch()
        kinds["none" if lam == 1.0 and not use_cutmix else "cutmix" if use_cutmix else "mixup"] += 1
        if use_cutmix:
            from timm.data.mixup import cutmix_bbox_and_lam

            cut.append(cutmix_bbox_and_lam((64, 3, 224, 224), lam)[1])
        elif lam != 1.0:
            mixed.append(lam)
    for name, count in kinds.items():
        lines.append(f"mix {name} {count}")
    lines.append(f"lambda mixup {len(mixed)} {quantiles(mixed)}")
    lines.append(f"lambda cutmix {len(cut)} {quantiles(cut)}")
    (folder / "laws.txt").write_text("\n".join(lines) + "\n")


def mixes(folder):
    """A batch mixed by timm for given lambda and box; values small enough to write down."""
    from timm.data import mixup as module

    lines = []
    rng = np.random.default_rng(3)
    for batch, classes, smoothing, kind, lam in (
        (4, 5, 0.1, "mixup", 0.3),
        (2, 3, 0.0, "mixup", 0.75),
        (6, 7, 0.1, "cutmix", 0.6),
        (2, 4, 0.2, "cutmix", 0.05),
        (2, 4, 0.1, "none", 1.0),
    ):
        images = torch.tensor(rng.normal(0, 1, (batch, 2, 5, 4)).astype(np.float32))
        labels = torch.tensor(rng.integers(0, classes, batch))
        mix = Mixup(0.8, 1.0, label_smoothing=smoothing, num_classes=classes)
        mix._params_per_batch = lambda lam=lam, kind=kind: (lam, kind == "cutmix")
        box = []
        plain = module.rand_bbox
        module.rand_bbox = lambda *a, **k: box.append(plain(*a, **k)) or box[-1]
        np.random.seed(batch)
        mixed, targets = mix(images.clone(), labels)
        module.rand_bbox = plain
        shape = ",".join(str(int(v)) for v in box[0]) if box else "-"
        numbers = lambda t: ",".join(repr(float(v)) for v in t.flatten())
        lines.append(
            f"{batch} {classes} {smoothing} {kind} {lam} {shape} {','.join(map(str, labels.tolist()))} {numbers(images)} {numbers(mixed)} {numbers(targets)}"
        )
    (folder / "mix.txt").write_text("\n".join(lines) + "\n")


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    pictures = images()
    for number, image in enumerate(pictures):
        image.save(folder / f"{number}.png", optimize=True)
    operations(folder, pictures)
    arguments(folder)
    mixes(folder)
    laws(folder)


if __name__ == "__main__":
    main()
