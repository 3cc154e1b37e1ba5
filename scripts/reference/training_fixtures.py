"""Golden values of training steps by PyTorch and timm for the tests of crates/trainer.

    pip install torch timm && python scripts/reference/training_fixtures.py

Writes crates/trainer/tests/fixtures/training.json: loss, learning rate and gradient norm of each of twelve steps of a small Vision
Transformer, and the sum and norm of every parameter after them. Initial weights and images come from formulas, so that nothing large
is stored. The recipe is DeiT's: AdamW with its decay groups, smoothed soft targets, warm-up and cosine of timm by step, and besides
clipping of the global norm. Computed in f32 on the CPU, as the tests do.
"""

import json
import math
from pathlib import Path

import timm
import torch
from timm.loss import SoftTargetCrossEntropy
from timm.scheduler import CosineLRScheduler
from timm.models.vision_transformer import VisionTransformer

OUT = Path(__file__).resolve().parents[2] / "crates/trainer/tests/fixtures/training.json"
STEPS_PER_EPOCH, EPOCHS, WARMUP_EPOCHS = 4, 3, 1
PEAK, WARMUP, MIN = 2e-3, 1e-5, 1e-4
BATCH, CLASSES, SMOOTHING, CLIP = 6, 5, 0.1, 0.5


def formula(count: int, scale: float, phase: float) -> torch.Tensor:
    """`scale` * sin(1.7 i + phase), computed in f64 and rounded once."""
    index = torch.arange(count, dtype=torch.float64)
    return (scale * torch.sin(1.7 * index + phase)).to(torch.float32)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = VisionTransformer(img_size=16, patch_size=8, num_classes=CLASSES, embed_dim=16, depth=2, num_heads=2, mlp_ratio=2)
    with torch.no_grad():
        for number, (name, parameter) in enumerate(model.named_parameters()):
            values = formula(parameter.numel(), 0.1, 0.3 * number).reshape(parameter.shape)
            if "norm" in name and name.endswith("weight"):
                values += 1.0
            parameter.copy_(values)

    skip = {"pos_embed", "cls_token"}
    decayed = [p for n, p in model.named_parameters() if p.ndim > 1 and not n.endswith(".bias") and n not in skip]
    plain = [p for n, p in model.named_parameters() if p.ndim <= 1 or n.endswith(".bias") or n in skip]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}], lr=PEAK, betas=(0.9, 0.999), eps=1e-8
    )
    scheduler = CosineLRScheduler(
        optimizer, t_initial=EPOCHS * STEPS_PER_EPOCH, lr_min=MIN, warmup_t=WARMUP_EPOCHS * STEPS_PER_EPOCH, warmup_lr_init=WARMUP,
        t_in_epochs=False,
    )
    criterion = SoftTargetCrossEntropy()
    steps = []
    for step in range(STEPS_PER_EPOCH * EPOCHS):
        scheduler.step_update(step)
        images = formula(BATCH * 3 * 16 * 16, 1.0, 0.1 * step).reshape(BATCH, 3, 16, 16)
        labels = torch.tensor([(step + 2 * sample) % CLASSES for sample in range(BATCH)])
        targets = torch.full((BATCH, CLASSES), SMOOTHING / CLASSES)
        targets.scatter_(1, labels[:, None], 1 - SMOOTHING + SMOOTHING / CLASSES)
        loss = criterion(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        steps.append({"loss": loss.item(), "learning_rate": optimizer.param_groups[0]["lr"], "gradient_norm": norm.item()})

    parameters = [
        {"name": name, "sum": p.detach().double().sum().item(), "norm": p.detach().double().norm().item()}
        for name, p in model.named_parameters()
    ]
    assert all(math.isfinite(step["loss"]) for step in steps)
    versions = {"torch": torch.__version__, "timm": timm.__version__}
    OUT.write_text(json.dumps({"versions": versions, "steps": steps, "parameters": parameters}, indent=1) + "\n")


if __name__ == "__main__":
    main()
