#!/usr/bin/env python3
"""The peer of scripts/bench_loader.sh: torchvision on Pillow, with timm's RandAugment, in PyTorch's DataLoader, on the same files.

    python scripts/bench_loader_peer.py FOLDER WORKERS PIPELINE

PIPELINE is train, randaugment or eval. Prints one line of JSON: images a second of wall time and of processor time, of this process and
its workers, over three epochs after a first one that starts the workers and fills the page cache.
"""

import json
import os
import sys
import time

import torch
from PIL import Image
from torchvision import datasets, transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH, EPOCHS = 64, 3


class Guarded:
    """Pillow 13 refuses to keep 0 bits in posterize, which this policy asks for once in a while."""

    def __init__(self, augment):
        self.augment = augment

    def __call__(self, image):
        try:
            return self.augment(image)
        except ValueError:
            return image


def pipeline(name):
    bicubic = transforms.InterpolationMode.BICUBIC
    if name == "eval":
        steps = [transforms.Resize(256, interpolation=bicubic), transforms.CenterCrop(224)]
    else:
        steps = [transforms.RandomResizedCrop(224, interpolation=bicubic), transforms.RandomHorizontalFlip()]
    if name == "randaugment":
        from timm.data.auto_augment import rand_augment_transform

        fill = tuple(round(255 * v) for v in MEAN)
        options = dict(translate_const=100, img_mean=fill, interpolation=Image.Resampling.BICUBIC)
        steps.append(Guarded(rand_augment_transform("rand-m9-mstd0.5-inc1", options)))
    return transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def processor_seconds(pids):
    """User and system time of processes so far."""
    tick = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / tick
    return total


def main():
    folder, workers, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dataset = datasets.ImageFolder(folder, transform=pipeline(name))
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=BATCH, shuffle=name != "eval", num_workers=workers, persistent_workers=workers > 0
    )
    for _ in loader:
        pass
    iterator = iter(loader)
    pids = [os.getpid(), *(worker.pid for worker in getattr(iterator, "_workers", []))]
    cpu, start, count = processor_seconds(pids), time.perf_counter(), 0
    for images, _ in iterator:
        count += len(images)
    for _ in range(EPOCHS - 1):
        for images, _ in loader:
            count += len(images)
    wall, cpu = time.perf_counter() - start, processor_seconds(pids) - cpu
    print(json.dumps({"wall": count / wall, "cpu": count / cpu}))


if __name__ == "__main__":
    main()
