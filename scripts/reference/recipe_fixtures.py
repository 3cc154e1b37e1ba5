"""Golden values of fifty steps of whole recipes by PyTorch and timm for crates/trainer/tests/recipes.rs.

    pip install torch timm
    cargo run --release -p manyheads-trainer --example draws > crates/trainer/tests/fixtures/draws.json
    python scripts/reference/recipe_fixtures.py [RECIPE…]

Writes crates/trainer/tests/fixtures/recipes.json: for each recipe loss, learning rate and norm of the whole gradient of fifty steps of
DeiT-Ti's body (width 192, depth 12, 3 heads; images of 24 x 24 in patches of 8) with batches of 16, and a sketch of every averaged and
every raw parameter after ten and after fifty steps. What is random (stochastic depth, mixup and CutMix) is read from draws.json, as
the program draws it; optimizers, schedules, losses, mixing, targets and averages are timm's and PyTorch's own. The recipes:

- deit: AdamW, smoothing 0.1, mixup 0.8 / CutMix 1.0 in groups of 8, stochastic depth 0.1 rising linearly, the learning rate by epoch
  and an epoch late as DeiT's main.py steps it, clipping of the global norm, EMA.
- deit3: timm's LAMB with its own clipping, binary cross-entropy, LayerScale 1e-4, no position of the class token, stochastic depth 0.2
  in every layer, the learning rate by step; as DeiT III trains.
- hard, soft: a student with distillation token and second head, a teacher of width 64, DeiT's loss.
- hydra: the deit recipe by step, the last four layers Hydra with the cosine kernel.
- linear: the same with multi-head linear attention.

The numbers are fit to be compared: weights begin as DeiT's do (normal 0.02, biases 0) and images show their class, so that gradients
are no mere noise. One part of the weights is noise for any implementation: softmax does not see the keys' bias, so its gradient is
rounding alone, of which Adam makes full steps. It is left out of the sketches, in softmax layers only.

The same befalls single elements whose gradients happen to vanish at the start: Adam's first steps are of full size whatever a gradient's
length, so that a bias, which begins at 0, takes over the relative error of its smallest gradients. It is worst behind LayerScale, where
gradients are near Adam's eps, and where the learning rate stays at that of the warm-up's start for an epoch. After ten steps PyTorch's
f32 was this far from its own f64 in the worst tensor: deit3 from the first initial values 2.4e-4; deit from the first, third, fourth … eighth
2.4e-5, 6.1e-4, 2.0e-5, 1.5e-4, 9.4e-5, 8.3e-5, 8.3e-5. So these two recipes begin where PyTorch agrees with itself best.

What such luck has no part in is the gradient itself. So there is also, of the first step, a sketch of every vector's gradient in f64, and
how far PyTorch's f32 is from it: no implementation should be much further.

`python scripts/reference/recipe_fixtures.py --control [RECIPE…]` writes nothing, but runs the recipes in f64 too, and prints how far loss,
norm and weights then are apart: what no implementation in f32 can be asked to undercut.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import timm
import timm.data.mixup
import torch
import torch.nn.functional as F
from timm.data import Mixup
from timm.layers import DropPath
from timm.loss import SoftTargetCrossEntropy
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from timm.optim import Lamb
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEma
from torch import nn

FIXTURES = Path(__file__).resolve().parents[2] / "crates/trainer/tests/fixtures"
EPOCHS, STEPS_PER_EPOCH, BATCH, GROUP = 5, 10, 16, 8
IMAGES, CLASSES, SIDE, PATCH = 160, 10, 24, 8
DEPTH, DECAY, EMA_DECAY = 12, 0.05, 0.9
PEAK = {"deit": 1e-3, "deit3": 3e-3, "hard": 1e-3, "soft": 1e-3, "hydra": 1e-3, "linear": 1e-3}
WARMUP_EPOCHS, WARMUP, MIN = 2, 1e-4, 1e-5
CLIP, LAMB_CLIP = 1.0, 1.0
ALPHA, TEMPERATURE = 0.5, 3.0
SKETCH = 8
# See above: other initial values for a recipe.
PREFIX = {"deit": "fourth ", "deit3": "second "}


def words(name: str, count: int) -> np.ndarray:
    """`count` 64-bit words: SplitMix64 started at the 64-bit FNV-1a hash of `name`."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def noise(name: str, count: int, scale: float) -> np.ndarray:
    """Nearly normal numbers of deviation `scale`: the sum of a word's four quarters. The same bits in every language."""
    word = words(name, count)
    total = sum(((word >> np.uint64(16 * quarter)) & np.uint64(0xFFFF)).astype(np.int64) for quarter in range(4))
    return (scale * ((total - 131070).astype(np.float64) * (math.sqrt(3.0) / 65536.0))).astype(np.float32)


def initialise(model: nn.Module, prefix: str, scale: float) -> None:
    """DeiT's initial values: weights normal, biases 0, norms 1; LayerScale stays."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            elif not name.endswith("gamma"):
                parameter.copy_(torch.from_numpy(noise(prefix + name, parameter.numel(), scale)).reshape(parameter.shape))


class Linear(nn.Module):
    """Multi-head linear attention without normaliser, the kernel over the whole width; Hydra where there are as many heads as features.

    Bolya et al., 2022 (arXiv 2209.07484), sections 3.2 and 3.3, with the cosine kernel.
    """

    def __init__(self, attention: nn.Module, heads: int):
        super().__init__()
        self.qkv, self.proj, self.heads = attention.qkv, attention.proj, heads

    def forward(self, x: torch.Tensor, **_) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
        if self.heads == width:
            return self.proj(q * (k * v).sum(dim=1, keepdim=True))
        q, k, v = (t.reshape(batch, tokens, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        mixed = q @ (k.transpose(-2, -1) @ v)
        return self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))


class GivenDepth(nn.Module):
    """timm's `DropPath` with a given choice of the samples that are kept."""

    def __init__(self, rate: float):
        super().__init__()
        self.keep, self.kept = 1 - rate, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (self.kept.to(x.dtype) / self.keep).reshape(-1, 1, 1)


def network(recipe: str) -> nn.Module:
    options = dict(img_size=SIDE, patch_size=PATCH, num_classes=CLASSES, embed_dim=192, depth=DEPTH, num_heads=3)
    if recipe in ("hard", "soft"):
        model = VisionTransformerDistilled(**options, drop_path_rate=0.1)
        model.set_distilled_training(True)
    elif recipe == "deit3":
        model = VisionTransformer(**options, drop_path_rate=0.2, init_values=1e-4, no_embed_class=True)
    else:
        model = VisionTransformer(**options, drop_path_rate=0.1)
    for index, block in enumerate(model.blocks):
        for branch in ("drop_path1", "drop_path2"):
            layer = getattr(block, branch)
            rate = layer.drop_prob if isinstance(layer, DropPath) else 0.0
            # DeiT III drops alike in every layer, which timm's class does not offer.
            setattr(block, branch, GivenDepth(0.2 if recipe == "deit3" else rate))
        if recipe in ("hydra", "linear") and index >= 8:
            block.attn = Linear(block.attn, 192 if recipe == "hydra" else 3)
    initialise(model, PREFIX.get(recipe, ""), 0.02)
    return model


def image(item: int) -> np.ndarray:
    """An image of the item's class, whose number is the item's last digit."""
    count = 3 * SIDE * SIDE
    return noise(f"class {item % CLASSES}", count, 1.0) + noise(f"image {item}", count, 1.0)


class GivenMix(Mixup):
    """timm's `Mixup` with given draws."""

    def __init__(self, smoothing: float):
        super().__init__(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=smoothing, num_classes=CLASSES)
        self.draw = {}
        timm.data.mixup.cutmix_bbox_and_lam = lambda *_, **__: (self.rectangle(), self.draw["lambda"])

    def rectangle(self) -> tuple:
        y, x, height, width = self.draw["rect"]
        return y, y + height, x, x + width

    def _params_per_batch(self):
        return self.draw["lambda"], self.draw["kind"] == "cutmix"

    def group(self, images: torch.Tensor, labels: torch.Tensor, draw: dict) -> tuple[torch.Tensor, torch.Tensor]:
        self.draw = draw
        return self(images.clone(), labels)


def sketch(name: str, values: np.ndarray) -> list[float]:
    """A count sketch: numbers with random signs summed in SKETCH buckets. The length of a difference of sketches estimates that of the
    difference of the tensors (Charikar et al., 2002)."""
    word = words("sketch " + name, values.size)
    signs = np.where(word & np.uint64(1 << 32), -1.0, 1.0)
    buckets = (word % np.uint64(SKETCH)).astype(np.int64)
    return np.bincount(buckets, weights=signs * values.astype(np.float64).ravel(), minlength=SKETCH).tolist()


def summary(model: nn.Module) -> list[dict]:
    summaries = []
    for name, parameter in model.named_parameters():
        values = parameter.detach().double().numpy().copy()
        if name.endswith("qkv.bias") and not isinstance(model.blocks[int(name.split(".")[1])].attn, Linear):
            width = values.size // 3
            values[width : 2 * width] = 0.0
        norm = float(f"{np.linalg.norm(values):.8g}")
        summaries.append({"name": name, "norm": norm, "sketch": [float(f"{v:.8g}") for v in sketch(name, values)]})
    return summaries


def gradients(model: nn.Module) -> list[dict]:
    """Sketches of the gradients of biases and norms, where they do not vanish but for rounding."""
    found = []
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            continue
        values = parameter.grad.double().numpy().copy()
        if name.endswith("qkv.bias") and not isinstance(model.blocks[int(name.split(".")[1])].attn, Linear):
            width = values.size // 3
            values[width : 2 * width] = 0.0
        sums = [float(f"{v:.10g}") for v in sketch(name, values)]
        found.append({"name": name, "norm": float(f"{np.linalg.norm(values):.10g}"), "sketch": sums})
    return found


def gradients_apart(one: list[dict], two: list[dict]) -> float:
    """Root mean square over the tensors of how far they are apart, relative to the length of the second."""
    pairs = [np.linalg.norm(np.subtract(a["sketch"], b["sketch"])) / b["norm"] for a, b in zip(one, two)]
    return float(np.sqrt(np.mean(np.square(pairs))))


def run(recipe: str, draws: dict, dtype: torch.dtype, most: int = EPOCHS * STEPS_PER_EPOCH) -> dict:
    torch.manual_seed(0)
    distilled, bce = recipe in ("hard", "soft"), recipe == "deit3"
    model = network(recipe).to(dtype).train()
    teacher = None
    if distilled:
        teacher = VisionTransformer(img_size=SIDE, patch_size=PATCH, num_classes=CLASSES, embed_dim=64, depth=2, num_heads=1)
        initialise(teacher, "teacher ", 0.1)
        teacher = teacher.to(dtype).eval()
    plain = {"pos_embed", "cls_token"}
    decayed = [p for n, p in model.named_parameters() if p.ndim > 1 and not n.endswith(".bias") and n not in plain]
    rest = [p for n, p in model.named_parameters() if p.ndim <= 1 or n.endswith(".bias") or n in plain]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]
    if recipe == "deit3":
        optimizer = Lamb(groups, lr=PEAK[recipe], betas=(0.9, 0.999), eps=1e-8, max_grad_norm=LAMB_CLIP)
    else:
        optimizer = torch.optim.AdamW(groups, lr=PEAK[recipe], betas=(0.9, 0.999), eps=1e-8)
    by_epoch = recipe == "deit"
    unit = 1 if by_epoch else STEPS_PER_EPOCH
    scheduler = CosineLRScheduler(
        optimizer, t_initial=EPOCHS * unit, lr_min=MIN, warmup_t=WARMUP_EPOCHS * unit, warmup_lr_init=WARMUP, t_in_epochs=by_epoch,
    )
    average = ModelEma(model, decay=EMA_DECAY)
    base = nn.BCEWithLogitsLoss() if bce else SoftTargetCrossEntropy()
    mixer = GivenMix(0.0 if bce else 0.1)
    kept = draws["constant" if bce else "linear"]
    steps, after = [], {}
    for step in range(most):
        epoch, batch = divmod(step, STEPS_PER_EPOCH)
        if not by_epoch:
            scheduler.step_update(step)
        items = [(7 * (batch * BATCH + place) + 13 * epoch) % IMAGES for place in range(BATCH)]
        images = torch.from_numpy(np.stack([image(item) for item in items])).reshape(BATCH, 3, SIDE, SIDE).to(dtype)
        labels = torch.tensor([item % CLASSES for item in items])
        mixed = [
            mixer.group(images[i * GROUP : (i + 1) * GROUP], labels[i * GROUP : (i + 1) * GROUP], draw)
            for i, draw in enumerate(draws["mix"][step])
        ]
        images, targets = torch.cat([m[0] for m in mixed]), torch.cat([m[1] for m in mixed]).to(dtype)
        if bce:
            targets = targets.gt(0.0).to(dtype)
        bits = np.array([int(digit, 16) >> (3 - bit) & 1 for digit in kept[step] for bit in range(4)]).reshape(DEPTH, 2, BATCH)
        for index, block in enumerate(model.blocks):
            block.drop_path1.kept, block.drop_path2.kept = (torch.from_numpy(bits[index, branch]) for branch in (0, 1))
        outputs = model(images)
        if distilled:
            outputs, second = outputs
            with torch.no_grad():
                taught = teacher(images)
            best = taught.topk(2, dim=1).values
            assert (best[:, 0] - best[:, 1]).min() > 1e-4, "the teacher's choice hangs on rounding"
            if recipe == "hard":
                distillation = F.cross_entropy(second, taught.argmax(dim=1))
            else:
                log = lambda logits: F.log_softmax(logits / TEMPERATURE, dim=1)
                distillation = F.kl_div(log(second), log(taught), reduction="sum", log_target=True)
                distillation = distillation * TEMPERATURE**2 / second.numel()
            loss = base(outputs, targets) * (1 - ALPHA) + distillation * ALPHA
        else:
            loss = base(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            first = gradients(model)
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        rate = optimizer.param_groups[0]["lr"]
        optimizer.step()
        average.update(model)
        if by_epoch and batch == STEPS_PER_EPOCH - 1:
            scheduler.step(epoch)
        steps.append({"loss": loss.item(), "learning_rate": rate, "gradient_norm": norm.item()})
        if step + 1 in (10, 50):
            after[str(step + 1)] = {"average": summary(average.ema), "parameters": summary(model)}
    assert all(math.isfinite(step["loss"]) for step in steps)
    return {"steps": steps, "after": after, "gradients": first}


def apart(one: dict, two: dict) -> None:
    """Prints how far two runs are apart up to steps 10 and 50."""
    for count in (10, 50):
        a, b = one["steps"][:count], two["steps"][:count]
        worst = {key: max(abs(x[key] / y[key] - 1) for x, y in zip(a, b)) for key in ("loss", "gradient_norm")}
        tensors = {}
        for kind in ("average", "parameters"):
            pairs = zip(one["after"][str(count)][kind], two["after"][str(count)][kind])
            distance = lambda x, y: np.linalg.norm(np.subtract(x["sketch"], y["sketch"])) / max(y["norm"], 1e-12)
            ranked = sorted(((distance(x, y), x["name"]) for x, y in pairs), reverse=True)
            tensors[kind] = f"{ranked[0][0]:.1e} {ranked[0][1]}"
        print(f"  up to step {count}: " + ", ".join(f"{k} {v:.1e}" for k, v in worst.items()), tensors)


def main() -> None:
    draws = json.loads((FIXTURES / "draws.json").read_text())
    torch.set_num_threads(1)
    chosen = [a for a in sys.argv[1:] if not a.startswith("--")] or list(PEAK)
    runs = {}
    for recipe in chosen:
        runs[recipe] = run(recipe, draws, torch.float32)
        losses = [s["loss"] for s in runs[recipe]["steps"]]
        norms = [s["gradient_norm"] for s in runs[recipe]["steps"]]
        print(f"{recipe}: loss {losses[0]:.3f} … {losses[-1]:.3f}, gradient norm {min(norms):.3f} … {max(norms):.3f}")
        exact = run(recipe, draws, torch.float64, 1)["gradients"]
        distance = gradients_apart(runs[recipe]["gradients"], exact)
        print(f"  gradients of the first step are {distance:.1e} from those in f64")
        runs[recipe] |= {"gradients": exact, "gradients_apart": distance}
        if "--control" in sys.argv:
            apart(run(recipe, draws, torch.float64), runs[recipe])
    if "--control" not in sys.argv:
        path = FIXTURES / "recipes.json"
        others = json.loads(path.read_text()) if len(chosen) < len(PEAK) else {}
        versions = {"torch": torch.__version__, "timm": timm.__version__}
        path.write_text(json.dumps({**others, "versions": versions, **runs}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
