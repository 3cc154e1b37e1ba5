"""Golden logits of timm's and Hugging Face's Vision Transformers, in every layout and container, for the tests of crates/model.

    pip install torch==2.15 timm==1.0.31 transformers && python scripts/reference/model_family_fixtures.py

Writes crates/model/tests/fixtures/family/:
- NAME.safetensors: a small model under its library's names, every parameter random (f16 or f32 values), and NAME.json: what the test
  builds it from, and the logits that the library computes in float64 for `images.safetensors`;
- hf_*/: directories as `save_pretrained` writes them;
- *.pth: the model `plain` in PyTorch's containers, nested as training programs nest it;
- positions.safetensors: position embeddings before and after timm's `resample_abs_pos_embed`, and DeiT's resizing.
"""

import json
import shutil
from collections import OrderedDict
from pathlib import Path

import timm
import torch
import transformers
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn

OUT = Path(__file__).resolve().parents[2] / "crates/model/tests/fixtures/family"
CLASSES = 5
SMALL = dict(num_classes=CLASSES, embed_dim=32, depth=2, num_heads=2, mlp_ratio=2)


def perturb(model, generator) -> None:
    """Every parameter random, of a size that matters, and exact in f16."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            value = centre + 0.2 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(value.half().float())


def images(size, generator):
    height, width = size
    return torch.randn(2, 3, height, width, generator=generator).half().float()


def write(name, tensors, logits, pixels, keys) -> None:
    save_file({key: value.detach().half().contiguous() for key, value in tensors.items()}, OUT / f"{name}.safetensors", {"format": "pt"})
    describe(name, logits, pixels, keys)


def describe(name, logits, pixels, keys) -> None:
    save_file({"images": pixels.half().contiguous()}, OUT / f"{name}.images.safetensors")
    text = {"config": keys, "logits": logits.flatten().tolist(), "shape": list(logits.shape)}
    (OUT / f"{name}.json").write_text(json.dumps(text) + "\n")


def logits_of(model, pixels):
    model = model.double().eval()
    with torch.no_grad():
        output = model(pixels.double())
    model.float()
    return getattr(output, "logits", output)


def timm_model(name, cls=VisionTransformer, size=(32, 32), keys=None, **arguments):
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    model = cls(img_size=size, **{**SMALL, **arguments})
    perturb(model, generator)
    pixels = images(size, generator)
    common = {"image_size": list(size), "patch_size": arguments.get("patch_size", 16), "classes": CLASSES, "width": 32, "depth": 2, "heads": 2, "mlp_ratio": 2.0}
    write(name, model.state_dict(), logits_of(model, pixels), pixels, {**common, **(keys or {})})
    return model, pixels


def resized(name, model, pixels_generator, size, **arguments) -> None:
    """The weights of `model`, read by timm into a model of another image size."""
    other = VisionTransformer(img_size=size, patch_size=8, **{**SMALL, **arguments})
    other.load_state_dict(checkpoint_filter_fn(dict(model.state_dict()), other), strict=True)
    pixels = images(size, pixels_generator)
    describe(name, logits_of(other, pixels), pixels, {"image_size": list(size)})


def hugging_face(name, config_class, model_class, size=32, **extra):
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    config = config_class(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=size, patch_size=8, num_labels=CLASSES, **extra)
    model = model_class(config)
    perturb(model, generator)
    pixels = images((size, size), generator)
    logits = logits_of(model, pixels)
    target = OUT / name
    shutil.rmtree(target, ignore_errors=True)
    model.save_pretrained(target)
    for left in target.glob("generation_config.json"):
        left.unlink()
    describe(name, logits, pixels, {})
    return model


def pytorch_files(model) -> None:
    state = OrderedDict((key, value.half()) for key, value in model.state_dict().items())
    average = OrderedDict((key, value * 0.5) for key, value in state.items())
    torch.save(state, OUT / "plain_legacy.pth", _use_new_zipfile_serialization=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.save({"model": state, "model_ema": average, "optimizer": optimizer.state_dict(), "epoch": 3, "args": {"lr": 5e-4}}, OUT / "plain_deit.pth")
    torch.save({"state_dict": OrderedDict(("module." + key, value) for key, value in state.items()), "epoch": 3}, OUT / "plain_module.pth")
    names = sorted(state)
    half = len(names) // 2
    target = OUT / "plain_shards"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    map_ = {}
    for index, part in enumerate([names[:half], names[half:]]):
        file = f"model-{index + 1:05}-of-00002.safetensors"
        save_file({key: state[key].contiguous() for key in part}, target / file)
        map_ |= dict.fromkeys(part, file)
    (target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": map_}) + "\n")


def positions() -> None:
    generator = torch.Generator().manual_seed(7)
    tensors = {}
    for name, prefix, old, new in [
        ("up", 1, (14, 14), (24, 24)),
        ("other", 1, (14, 14), (12, 18)),
        ("down", 2, (14, 14), (7, 9)),
        ("oblong", 0, (12, 18), (14, 14)),
        ("steep", 5, (37, 37), (16, 16)),
    ]:
        before = torch.randn(1, prefix + old[0] * old[1], 4, generator=generator)
        tensors[f"{name}.before"] = before
        tensors[f"{name}.timm"] = resample_abs_pos_embed(before, list(new), list(old), num_prefix_tokens=prefix)
        grid = before[:, prefix:].reshape(1, *old, 4).permute(0, 3, 1, 2)
        grid = torch.nn.functional.interpolate(grid, size=new, mode="bicubic", align_corners=False)
        grid = grid.permute(0, 2, 3, 1).flatten(1, 2)
        tensors[f"{name}.deit"] = torch.cat([before[:, :prefix], grid], dim=1)
        tensors[f"{name}.sizes"] = torch.tensor([prefix, *old, *new], dtype=torch.float32)
    save_file({key: value.contiguous() for key, value in tensors.items()}, OUT / "positions.safetensors")


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    plain, _ = timm_model("plain", patch_size=8)
    pytorch_files(plain)
    generator = torch.Generator().manual_seed(99)
    resized("plain_larger", plain, generator, (48, 48))
    resized("plain_oblong", plain, generator, (24, 40))
    resized("plain_smaller", plain, generator, (16, 16))
    timm_model("distilled", VisionTransformerDistilled, patch_size=8, keys={"distilled": True})
    deit3, _ = timm_model("deit3", patch_size=8, init_values=1e-4, no_embed_class=True, keys={"layer_scale": 1e-4, "no_embed_class": True})
    resized("deit3_larger", deit3, generator, (48, 48), init_values=1e-4, no_embed_class=True)
    timm_model("average", patch_size=8, global_pool="avg", keys={"pool": "avg"})
    timm_model("average_tokenless", patch_size=8, global_pool="avg", class_token=False, fc_norm=False, qkv_bias=False, keys={"class_token": False, "fc_norm": False, "qkv_bias": False})
    timm_model("registers", patch_size=8, reg_tokens=4, init_values=1e-5, keys={"registers": 4, "layer_scale": 1e-5})
    timm_model("registers_unplaced", patch_size=8, reg_tokens=4, no_embed_class=True, class_token=False, global_pool="avg", keys={"registers": 4, "no_embed_class": True, "class_token": False})
    timm_model("oblong", size=(32, 48), patch_size=16)
    timm_model("patch14", size=(42, 42), patch_size=14)
    timm_model("patch32", size=(64, 64), patch_size=32)
    hugging_face("hf_vit", transformers.ViTConfig, transformers.ViTForImageClassification)
    hugging_face("hf_deit", transformers.DeiTConfig, transformers.DeiTForImageClassification)
    hugging_face("hf_distilled", transformers.DeiTConfig, transformers.DeiTForImageClassificationWithTeacher, layer_norm_eps=1e-3)
    positions()
    total = sum(path.stat().st_size for path in OUT.rglob("*") if path.is_file())
    print(f"{OUT}: {total} bytes; timm {timm.__version__}, torch {torch.__version__}, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
