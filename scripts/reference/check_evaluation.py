"""Compares `manyheads eval` with an evaluation by timm on 1,000 labelled JPEGs, image by image.

    pip install torch torchvision timm==1.0.31 pillow==13.0.0 safetensors
    cargo build --release
    python scripts/reference/check_evaluation.py target/release/manyheads FOLDER_OF_PHOTOGRAPHS [--preset NAME]

Cuts 1,000 pieces of odd sizes out of the photographs found below the folder, writes them as JPEGs into ten class folders, makes a
network of the preset with ten classes and seeded weights that all matter, and evaluates it with both: top-1, top-5 and loss, and the
best class of every image. timm's side is what its validate.py does: its transform, its batches, its counting. Leaves with 1 where a
count differs.
"""

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_dataset, create_loader, resolve_data_config
from timm.utils import AverageMeter, accuracy

COUNT, CLASSES = 1000, 10


def pieces(photographs: Path, folder: Path) -> None:
    files = sorted(path for path in photographs.rglob("*") if path.suffix.lower() in {".jpg", ".jpeg"})
    if not files:
        sys.exit(f"no JPEG files below {photographs}")
    draw = random.Random(5)
    for number in range(COUNT):
        with Image.open(files[number % len(files)]) as image:
            image = image.convert("RGB")
            width = draw.randint(max(1, image.width // 3), image.width)
            height = draw.randint(max(1, image.height // 3), image.height)
            left, top = draw.randint(0, image.width - width), draw.randint(0, image.height - height)
            piece = image.crop((left, top, left + width, top + height))
        directory = folder / f"class{draw.randrange(CLASSES)}"
        directory.mkdir(parents=True, exist_ok=True)
        piece.save(directory / f"{number:04d}.jpg", quality=draw.randint(75, 95), subsampling=draw.choice([0, 1, 2]))


def reference(model: torch.nn.Module, folder: Path) -> dict:
    config = resolve_data_config({}, model=model)
    dataset = create_dataset("", root=str(folder))
    loader = create_loader(
        dataset, input_size=config["input_size"], batch_size=50, interpolation=config["interpolation"], mean=config["mean"],
        std=config["std"], crop_pct=config["crop_pct"], crop_mode=config["crop_mode"], use_prefetcher=False, num_workers=1,
        device=torch.device("cpu"),
    )
    top1, top5, losses, best = AverageMeter(), AverageMeter(), AverageMeter(), []
    with torch.inference_mode():
        for images, labels in loader:
            output = model(images)
            acc1, acc5 = accuracy(output, labels, topk=(1, 5))
            losses.update(torch.nn.functional.cross_entropy(output, labels).item(), images.size(0))
            top1.update(acc1.item(), images.size(0))
            top5.update(acc5.item(), images.size(0))
            best += output.argmax(dim=1).tolist()
    names = [Path(path).relative_to(folder).as_posix() for path in dataset.filenames(absolute=True)]
    return {"top1": top1.avg, "top5": top5.avg, "loss": losses.avg, "best": dict(zip(names, best))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--preset", default="deit_tiny_patch16_224")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    model = timm.create_model(arguments.preset, num_classes=CLASSES).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.02 if parameter.ndim > 1 else 0.1))
    with tempfile.TemporaryDirectory() as temporary:
        folder, weights, table = Path(temporary, "images"), Path(temporary, "weights.safetensors"), Path(temporary, "table.csv")
        pieces(arguments.photographs, folder)
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, weights)
        expected = reference(model, folder)
        command = [
            arguments.program, "eval", "--weights", weights, "--preset", arguments.preset, "--data", folder, "--json", "--device", "cpu",
            "--predictions", table,
        ]
        got = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        with open(table, newline="") as file:
            best = {Path(row["path"]).relative_to(folder).as_posix(): int(row["index1"]) for row in csv.DictReader(file)}
    counts = {key: (round(expected[key] * COUNT / 100), round(got[key] * COUNT / 100)) for key in ("top1", "top5")}
    differ = [name for name, index in expected["best"].items() if best.get(name) != index]
    print(f"{'':8}{'timm':>12}{'manyheads':>12}")
    for key in ("top1", "top5", "loss"):
        print(f"{key:8}{expected[key]:12.6f}{got[key]:12.6f}")
    print(f"{len(set(expected['best'].values()))} classes predicted; the best class differs for {len(differ)} of {COUNT} images {differ[:5]}")
    if any(a != b for a, b in counts.values()) or got["n"] != COUNT or differ or abs(expected["loss"] - got["loss"]) > 1e-4:
        sys.exit("the evaluations differ")


if __name__ == "__main__":
    main()
