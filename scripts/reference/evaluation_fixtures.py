"""A small labelled folder, a small network, and what timm says of them, for the end-to-end tests of crates/cli.

    pip install torch torchvision timm==1.0.31 pillow==13.0.0 safetensors && python scripts/reference/evaluation_fixtures.py

Writes crates/cli/tests/fixtures/evaluation/: `images/` with JPEG and PNG files of many shapes and modes, synthetic and a few kilobytes
each; `model.safetensors`, a seeded random Vision Transformer of timm whose parameters all matter; and `expected.json` with the logits
of every image under timm's evaluation transform in each crop mode, top-1, top-5 and loss as timm's validate.py counts them.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform
from timm.models.vision_transformer import VisionTransformer

OUT = Path(__file__).resolve().parents[2] / "crates/cli/tests/fixtures/evaluation"
CLASSES, SIZE, CROP = 7, 32, 0.9


def picture(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Smooth colours with an edge and some grain, so that resizing and cropping matter."""
    y, x = np.mgrid[0:height, 0:width]
    out = np.zeros((height, width, 3))
    for channel in range(3):
        fx, fy, phase = rng.uniform(0.02, 0.35, 2).tolist() + [rng.uniform(0, 6)]
        out[..., channel] = 127 + 100 * np.sin(fx * x + fy * y + phase)
    out[(x + 2 * y) % 37 < rng.integers(4, 15)] *= 0.4
    return np.clip(out + rng.normal(0, 6, out.shape), 0, 255).astype(np.uint8)


def images(folder: Path) -> None:
    rng = np.random.default_rng(11)
    sizes = [(48, 36), (36, 48), (33, 32), (97, 41), (20, 25), (64, 64), (31, 90), (5, 7), (120, 33), (1, 1)]
    number = 0
    for label in range(CLASSES):
        directory = folder / f"class{label}"
        directory.mkdir(parents=True)
        for _ in range(6):
            image = Image.fromarray(picture(rng, *sizes[number % len(sizes)]))
            kind = number % 9
            name = directory / f"{number:02d}"
            if kind == 3:
                image.convert("L").save(name.with_suffix(".jpg"), quality=90)
            elif kind == 4:
                image.convert("CMYK").save(name.with_suffix(".jpg"), quality=90)
            elif kind == 5:
                image.convert("P", palette=Image.Palette.ADAPTIVE, colors=32).save(name.with_suffix(".png"))
            elif kind == 6:
                image.putalpha(Image.fromarray(picture(rng, *image.size)[..., 0]))
                image.save(name.with_suffix(".png"))
            elif kind == 7:
                image.save(name.with_suffix(".jpeg"), quality=85, progressive=True, subsampling=0)
            else:
                image.save(name.with_suffix(".jpg"), quality=92)
            number += 1


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    images(OUT / "images")
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = VisionTransformer(img_size=SIZE, patch_size=8, num_classes=CLASSES, embed_dim=32, depth=2, num_heads=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, OUT / "model.safetensors")

    files = sorted(path for path in (OUT / "images").rglob("*") if path.is_file())
    expected = {"versions": {"timm": timm.__version__, "torch": torch.__version__}, "modes": {}}
    for mode in ("center", "squash", "border"):
        transform = create_transform(
            (3, SIZE, SIZE), is_training=False, interpolation="bicubic", crop_pct=CROP, crop_mode=mode,
            mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
        )
        logits, labels = [], []
        with torch.no_grad():
            for path in files:
                image = transform(Image.open(path).convert("RGB"))
                logits.append(model(image[None])[0])
                labels.append(int(path.parent.name.removeprefix("class")))
        logits, labels = torch.stack(logits), torch.tensor(labels)
        best = logits.topk(5, dim=1).indices
        hits = best == labels[:, None]
        expected["modes"][mode] = {
            "top1": 100 * hits[:, 0].double().mean().item(),
            "top5": 100 * hits.any(dim=1).double().mean().item(),
            "loss": torch.nn.functional.cross_entropy(logits.double(), labels).item(),
            "images": [
                {"path": path.relative_to(OUT).as_posix(), "logits": [round(v, 6) for v in row.tolist()]}
                for path, row in zip(files, logits)
            ],
        }
        print(mode, {k: v for k, v in expected["modes"][mode].items() if k != "images"}, sorted(set(best[:, 0].tolist())))
    (OUT / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
