"""Train one of configs/fashion-mnist with PyTorch and timm: the peer of scripts/fashion_mnist.sh.

    pip install torch timm pillow && python scripts/reference/fashion_mnist.py CONFIG TRAIN.tar VAL.tar SEED [THREADS]

The settings are read from CONFIG (and the file that it extends), so both programs have the same ones. timm makes the network, the
transforms, mixup and CutMix, the loss, the learning rate and the average; PyTorch AdamW and the rest. What timm has not is written here:
Hydra attention (Bolya et al., 2022, appendix C) and DeiT's list of parameters without weight decay. The pixels, the order and every draw
are PyTorch's own: two runs of one seed differ between the programs, their distribution must not.

Prints one JSON object: top-1 of the weights and of their average on the images of VAL.tar, in percent, and the seconds it took.
"""

import io
import json
import random
import sys
import tarfile
import time
import tomllib
from pathlib import Path

import numpy
import timm.models.vision_transformer as vit
import torch
from PIL import Image, ImageOps
from timm.data import Mixup, create_transform
from timm.loss import SoftTargetCrossEntropy
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch import nn


def posterize(image: Image.Image, bits: int, keep=ImageOps.posterize) -> Image.Image:
    """Pillow's, and black for 0 bits, which timm asks for at magnitude 10 and Pillow 13 refuses."""
    return keep(image, bits) if bits else Image.new(image.mode, image.size)


ImageOps.posterize = posterize


def settings(path: Path) -> dict:
    """A configuration with what it extends, joined section by section."""
    own = tomllib.loads(path.read_text())
    base = settings(path.parent / own.pop("extends")) if "extends" in own else {}

    def join(below: dict, above: dict) -> dict:
        nested = {key for key in above if isinstance(above[key], dict) and key in below}
        return below | above | {key: join(below[key], above[key]) for key in nested}

    return join(base, own)


def images(path: str) -> list[tuple[Image.Image, int]]:
    """Every image with the number of its class: its folder's place in the alphabet."""
    with tarfile.open(path) as archive:
        members = [member for member in archive if member.isfile() and member.name.endswith(".png")]
        names = sorted({Path(member.name).parent.name for member in members})
        return [
            (Image.open(io.BytesIO(archive.extractfile(member).read())).convert("RGB"), names.index(Path(member.name).parent.name))
            for member in members
        ]


class Hydra(nn.Module):
    """In the place of timm's attention: phi(q) * sum over tokens of phi(k) * v, phi the division by a token's length."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.qkv, self.proj = attention.qkv, attention.proj

    def forward(self, x: torch.Tensor, **_) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q / q.norm(dim=-1, keepdim=True)
        k = k / k.norm(dim=-1, keepdim=True)
        return self.proj(q * (k * v).sum(dim=-2, keepdim=True))


def network(model: dict) -> nn.Module:
    network = vit.VisionTransformer(
        img_size=model["image_size"], patch_size=model["patch_size"], num_classes=model["classes"], embed_dim=model["width"],
        depth=model["depth"], num_heads=model["heads"], drop_path_rate=model.get("stochastic_depth", 0.1),
    )
    nn.init.trunc_normal_(network.cls_token, std=0.02)  # as DeiT's; timm's own is nearly 0
    for override in model.get("attention", {}).get("overrides", []):
        assert override["kind"] == "hydra" and override["place"] == "back"
        for block in network.blocks[-override["count"]:]:
            block.attn = Hydra(block.attn)
    return network


def main() -> None:
    config = settings(Path(sys.argv[1]))
    train, val, seed = images(sys.argv[2]), images(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(int(sys.argv[5]) if len(sys.argv) > 5 else 1)
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    size, classes, batch = config["model"]["image_size"], config["model"]["classes"], config["train"]["batch_size"]
    assert config["train"]["accumulate"] == 1 and config["optimizer"]["reference_batch"] == batch
    started = time.monotonic()

    augment = create_transform(
        size, is_training=True, auto_augment=config["augment"]["auto"], interpolation="bicubic", re_prob=config["augment"]["erasing"],
        re_mode="pixel", re_count=1, scale=config["augment"].get("scale", (0.08, 1.0)),
    )
    plain = create_transform(size, is_training=False, interpolation="bicubic", crop_pct=config["eval"]["crop_pct"])
    mixup = Mixup(
        mixup_alpha=config["mix"]["mixup"], cutmix_alpha=config["mix"]["cutmix"], prob=config["mix"].get("probability", 1.0),
        switch_prob=0.5, mode="batch", label_smoothing=0.1, num_classes=classes,
    )
    model = network(config["model"])
    without_decay = {name for name, p in model.named_parameters() if p.ndim <= 1 or name in ("pos_embed", "cls_token")}
    groups = [
        {"params": [p for name, p in model.named_parameters() if name not in without_decay], "weight_decay": 0.05},
        {"params": [p for name, p in model.named_parameters() if name in without_decay], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=config["optimizer"]["learning_rate"], betas=(0.9, 0.999), eps=1e-8)
    epochs, steps = config["train"]["epochs"], len(train) // batch
    scheduler = CosineLRScheduler(
        optimizer, t_initial=epochs * steps, lr_min=1e-5, warmup_t=round(config["schedule"]["warmup_epochs"] * steps),
        warmup_lr_init=1e-6, t_in_epochs=False,
    )
    average = ModelEmaV3(model, decay=config["ema"]["decay"])
    criterion = SoftTargetCrossEntropy()

    step, total = 0, 0.0
    for _ in range(epochs):
        order = torch.randperm(len(train))
        for start in range(0, steps * batch, batch):
            chosen = [train[item] for item in order[start : start + batch]]
            pixels = torch.stack([augment(image) for image, _ in chosen])
            pixels, targets = mixup(pixels, torch.tensor([label for _, label in chosen]))
            scheduler.step_update(step)
            loss = criterion(model(pixels), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update(model)
            step, total = step + 1, total + loss.item()
            if step % 100 == 0:
                print(f"step {step} of {epochs * steps}, loss {total / 100:.4f}", file=sys.stderr, flush=True)
                total = 0.0

    @torch.inference_mode()
    def top1(network: nn.Module) -> float:
        network.eval()
        right = 0
        for start in range(0, len(val), 250):
            part = val[start : start + 250]
            logits = network(torch.stack([plain(image) for image, _ in part]))
            right += int((logits.argmax(1) == torch.tensor([label for _, label in part])).sum())
        return 100 * right / len(val)

    seconds = time.monotonic() - started
    print(json.dumps({"top1": top1(model), "ema_top1": top1(average.module), "seconds": seconds}))


if __name__ == "__main__":
    main()
