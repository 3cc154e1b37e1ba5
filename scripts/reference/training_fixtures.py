"""Golden values of training steps by PyTorch and timm for the tests of crates/trainer.

    pip install torch timm && python scripts/reference/training_fixtures.py

Writes crates/trainer/tests/fixtures/training.json: for each of several recipes loss, learning rate and gradient norm of each of twelve
steps of a small Vision Transformer, and the sum and norm of every parameter and of its average (EMA) after them. Initial weights and
images come from formulas, so that nothing large is stored. The recipes:

- deit: AdamW with DeiT's decay groups, smoothed soft targets, timm's warm-up and cosine by step, clipping of the global norm, EMA.
- lamb: timm's LAMB with binary cross-entropy, as DeiT III trains.
- sgd: Nesterov's momentum with coupled weight decay.
- layers: AdamW with timm's layer-wise decay of the learning rate, the patch embedding frozen, EMA with timm's warm-up.

Computed in f32 on the CPU, as the tests do.
"""

import json
import math
from pathlib import Path

import timm
import torch
from timm.loss import SoftTargetCrossEntropy
from timm.optim import Lamb, param_groups_layer_decay
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from timm.models.vision_transformer import VisionTransformer

OUT = Path(__file__).resolve().parents[2] / "crates/trainer/tests/fixtures/training.json"
STEPS_PER_EPOCH, EPOCHS, WARMUP_EPOCHS = 4, 3, 1
PEAK, WARMUP, MIN = 2e-3, 1e-5, 1e-4
BATCH, CLASSES, SMOOTHING, CLIP = 6, 5, 0.1, 0.5


def formula(count: int, scale: float, phase: float) -> torch.Tensor:
    """`scale` * sin(1.7 i + phase), computed in f64 and rounded once."""
    index = torch.arange(count, dtype=torch.float64)
    return (scale * torch.sin(1.7 * index + phase)).to(torch.float32)


def network() -> VisionTransformer:
    model = VisionTransformer(img_size=16, patch_size=8, num_classes=CLASSES, embed_dim=16, depth=2, num_heads=2, mlp_ratio=2)
    with torch.no_grad():
        for number, (name, parameter) in enumerate(model.named_parameters()):
            values = formula(parameter.numel(), 0.1, 0.3 * number).reshape(parameter.shape)
            if "norm" in name and name.endswith("weight"):
                values += 1.0
            parameter.copy_(values)
    return model


def run(recipe: str) -> dict:
    model = network()
    if recipe == "layers":
        model.patch_embed.requires_grad_(False)
    skip = {"pos_embed", "cls_token"}
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    decayed = [p for n, p in trained if p.ndim > 1 and not n.endswith(".bias") and n not in skip]
    plain = [p for n, p in trained if p.ndim <= 1 or n.endswith(".bias") or n in skip]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    if recipe == "lamb":
        optimizer = Lamb(groups, lr=PEAK, betas=(0.9, 0.999), eps=1e-8, max_grad_norm=1.0)
    elif recipe == "sgd":
        optimizer = torch.optim.SGD(groups, lr=PEAK, momentum=0.9, nesterov=True)
    elif recipe == "layers":
        groups = param_groups_layer_decay(model, weight_decay=0.05, no_weight_decay_list=skip, layer_decay=0.7)
        optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.999), eps=1e-8)
    else:
        optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.999), eps=1e-8)
    scheduler = CosineLRScheduler(
        optimizer, t_initial=EPOCHS * STEPS_PER_EPOCH, lr_min=MIN, warmup_t=WARMUP_EPOCHS * STEPS_PER_EPOCH, warmup_lr_init=WARMUP,
        t_in_epochs=False,
    )
    average = ModelEmaV3(model, decay=0.9, use_warmup=recipe == "layers")
    criterion = torch.nn.BCEWithLogitsLoss() if recipe == "lamb" else SoftTargetCrossEntropy()
    steps = []
    for step in range(STEPS_PER_EPOCH * EPOCHS):
        scheduler.step_update(step)
        rate = max(group["lr"] for group in optimizer.param_groups)
        images = formula(BATCH * 3 * 16 * 16, 1.0, 0.1 * step).reshape(BATCH, 3, 16, 16)
        labels = torch.tensor([(step + 2 * sample) % CLASSES for sample in range(BATCH)])
        smoothing = 0.0 if recipe == "lamb" else SMOOTHING
        targets = torch.full((BATCH, CLASSES), smoothing / CLASSES)
        targets.scatter_(1, labels[:, None], 1 - smoothing + smoothing / CLASSES)
        loss = criterion(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        limit = CLIP if recipe in ("deit", "layers") else math.inf
        norm = torch.nn.utils.clip_grad_norm_([p for _, p in trained], limit)
        optimizer.step()
        average.update(model, step=step + 1 if recipe == "layers" else None)
        steps.append({"loss": loss.item(), "learning_rate": rate, "gradient_norm": norm.item()})
    assert all(math.isfinite(step["loss"]) for step in steps)

    def summary(module: torch.nn.Module) -> list[dict]:
        return [
            {"name": name, "sum": p.detach().double().sum().item(), "norm": p.detach().double().norm().item()}
            for name, p in module.named_parameters()
        ]

    return {"steps": steps, "parameters": summary(model), "average": summary(average.module)}


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    versions = {"torch": torch.__version__, "timm": timm.__version__}
    runs = {recipe: run(recipe) for recipe in ("deit", "lamb", "sgd", "layers")}
    OUT.write_text(json.dumps({"versions": versions, **runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
