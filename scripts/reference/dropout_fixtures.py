"""Golden values of dropout by timm for crates/model/tests/dropout.rs.

    pip install torch timm && python scripts/reference/dropout_fixtures.py

Writes crates/model/tests/fixtures/dropout.json: logits of timm's Vision Transformers in training with every kind of dropout on, where
the masks are given by a formula, and the norm of the gradient of every parameter. The modules that draw masks (torch.nn.Dropout and
timm's PatchDropout) are replaced by ones that take a given mask; where they sit and what they do to a kept value stays timm's.
"""

import json
from pathlib import Path

import numpy as np
import timm
import torch
from timm.layers import PatchDropout
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from recipe_fixtures import words

OUT = Path(__file__).resolve().parents[2] / "crates/model/tests/fixtures/dropout.json"
BATCH, CLASSES, WIDTH, HEADS, SIDE, PATCH = 3, 5, 16, 2, 16, 4
RATES = {"drop_rate": 0.3, "pos_drop_rate": 0.2, "patch_drop_rate": 0.4, "proj_drop_rate": 0.25, "attn_drop_rate": 0.15}


def uniform(name: str, count: int) -> np.ndarray:
    """Numbers in [0, 1)."""
    return (words(name, count) >> np.uint64(11)).astype(np.float64) / 2.0**53


class GivenDropout(nn.Module):
    """torch.nn.Dropout with the mask of a name: a value is dropped where its number is below the rate."""

    def __init__(self, rate: float, names: list[str]):
        super().__init__()
        self.rate, self.names, self.calls = rate, names, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        name = self.names[self.calls % len(self.names)]
        self.calls += 1
        dropped = torch.from_numpy(uniform(name, x.numel()) < self.rate).reshape(x.shape)
        # torch.nn.functional.dropout's arithmetic, with the mask given.
        return x.masked_fill(dropped, 0.0) / (1 - self.rate)


class GivenPatches(PatchDropout):
    """timm's PatchDropout, whose random order of the patches is that of given numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = x.shape[1] - self.num_prefix_tokens
        numbers = torch.from_numpy(uniform("patches", x.shape[0] * patches)).reshape(x.shape[0], patches)
        draw, torch.randn = torch.randn, lambda *_, **__: numbers
        try:
            return super().forward(x)
        finally:
            torch.randn = draw


def run(model: nn.Module, distilled: bool) -> dict:
    model.train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.from_numpy((uniform(name, parameter.numel()) - 0.5) * 0.4).float().reshape(parameter.shape)
            parameter.copy_(values + 1.0 if "norm" in name and name.endswith("weight") else values)
    model.pos_drop = GivenDropout(RATES["pos_drop_rate"], ["positions"])
    model.patch_drop = GivenPatches(RATES["patch_drop_rate"], num_prefix_tokens=model.num_prefix_tokens)
    model.head_drop = GivenDropout(RATES["drop_rate"], ["head", "head_dist"])
    for index, block in enumerate(model.blocks):
        given = lambda key, part: GivenDropout(RATES[key], [f"blocks.{index}.{part}"])
        # Without its fused form timm's attention applies `attn_drop` as a module.
        block.attn.fused_attn = False
        block.attn.attn_drop = given("attn_drop_rate", "attention")
        block.attn.proj_drop = given("proj_drop_rate", "projection")
        block.mlp.drop1, block.mlp.drop2 = given("proj_drop_rate", "hidden"), given("proj_drop_rate", "output")
    images = torch.from_numpy((uniform("images", BATCH * 3 * SIDE * SIDE) - 0.5) * 4).float().reshape(BATCH, 3, SIDE, SIDE)
    logits = model(images)
    logits = logits if distilled else (logits,)
    sum(head.square().sum() for head in logits).backward()
    return {
        "logits": [[float(f"{v:.9g}") for v in head.detach().flatten().tolist()] for head in logits],
        "gradients": {name: float(f"{p.grad.double().norm().item():.9g}") for name, p in model.named_parameters()},
    }


def main() -> None:
    torch.set_num_threads(1)
    options = dict(img_size=SIDE, patch_size=PATCH, num_classes=CLASSES, embed_dim=WIDTH, depth=2, num_heads=HEADS, mlp_ratio=2)
    distilled = VisionTransformerDistilled(**options, **RATES)
    distilled.set_distilled_training(True)
    runs = {"plain": run(VisionTransformer(**options, **RATES), False), "distilled": run(distilled, True)}
    OUT.write_text(json.dumps({"versions": {"torch": torch.__version__, "timm": timm.__version__}, **runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
