"""timm's names of plain Vision Transformers: what each is, and how its images are prepared.

    pip install torch timm==1.0.31 && python scripts/reference/model_presets.py

Writes crates/model/tests/fixtures/parameters.json, the number of parameters of each model in timm with 1000 classes, and
crates/model/src/preset/timm.json: every model of timm's `vision_transformer` and `deit` modules whose arguments manyheads has
keys for, with the pretrained configuration of each of its tags, the default tag first. Nothing is downloaded, and no model's memory is taken.
"""

import functools
import json
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

import timm
import timm.models.deit
import torch
import timm.models.vision_transformer
from timm.models import _registry as registry

MODEL = Path(__file__).resolve().parents[2] / "crates/model"
OUT = MODEL / "src/preset/timm.json"
PARAMETERS = MODEL / "tests/fixtures/parameters.json"

BASE = {
    "patch": 16,
    "width": 768,
    "depth": 12,
    "heads": 12,
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "class_token": True,
    "distilled": False,
    "registers": 0,
    "no_embed_class": False,
    "pool": "token",
    "fc_norm": None,
    "layer_scale": None,
    "norm_eps": 1e-6,
}
KEYS = {
    "patch_size": "patch",
    "embed_dim": "width",
    "depth": "depth",
    "num_heads": "heads",
    "mlp_ratio": "mlp_ratio",
    "qkv_bias": "qkv_bias",
    "class_token": "class_token",
    "distilled": "distilled",
    "reg_tokens": "registers",
    "no_embed_class": "no_embed_class",
    "global_pool": "pool",
    "fc_norm": "fc_norm",
    "init_values": "layer_scale",
}
# Arguments that change no number of a plain model.
NEUTRAL = {"img_size", "dynamic_img_size", "pretrained_filter_fn", "feature_cfg", "pretrained_strict", "weight_init", "out_indices"}


class Captured(Exception):
    pass


captured = {}


def capture(model_class, variant, pretrained, **arguments):
    captured["class"] = model_class
    captured["arguments"] = arguments
    raise Captured


def shape_of(name):
    """The model's keys, or none where it has a part that manyheads lacks."""
    try:
        registry.model_entrypoint(name)(pretrained=False)
    except Captured:
        pass
    arguments = captured["arguments"]
    shape = dict(BASE)
    shape["distilled"] = captured["class"] is timm.models.deit.VisionTransformerDistilled
    for key, value in arguments.items():
        if key in KEYS:
            shape[KEYS[key]] = value
        elif key == "norm_layer" and isinstance(value, functools.partial) and value.func.__name__ == "LayerNorm":
            if set(value.keywords) != {"eps"}:
                return None
            shape["norm_eps"] = value.keywords["eps"]
        elif key not in NEUTRAL:
            return None
    if shape["pool"] not in ("token", "avg"):
        return None
    shape["mlp_ratio"] = float(shape["mlp_ratio"])
    if shape["fc_norm"] is None:
        shape["fc_norm"] = shape["pool"] == "avg"
    return shape


def weights_of(name):
    tags = [key for key in registry._model_pretrained_cfgs if key == name or key.startswith(name + ".")]
    default = timm.get_pretrained_cfg(name).tag
    entries = {}
    for key in tags:
        cfg = registry._model_pretrained_cfgs[key]
        entries[cfg.tag or ""] = {
            "tag": cfg.tag or "",
            "input": list(cfg.input_size[1:]),
            "classes": cfg.num_classes,
            "crop_pct": cfg.crop_pct,
            "crop_mode": cfg.crop_mode,
            "interpolation": cfg.interpolation,
            "mean": list(cfg.mean),
            "std": list(cfg.std),
        }
    return [entries.pop(default or "")] + [entries[tag] for tag in sorted(entries)]


def count_parameters(names) -> None:
    counts = {}
    with torch.device("meta"):
        for name in names:
            model = timm.create_model(name, num_classes=1000)
            counts[name] = sum(parameter.numel() for parameter in model.parameters())
    PARAMETERS.write_text(json.dumps(counts, indent=0) + "\n")


def main() -> None:
    builders = timm.models.vision_transformer.build_model_with_cfg, timm.models.deit.build_model_with_cfg
    timm.models.vision_transformer.build_model_with_cfg = capture
    timm.models.deit.build_model_with_cfg = capture
    lines = []
    for name in sorted(timm.list_models(module="vision_transformer") + timm.list_models(module="deit")):
        if not name.startswith(("vit_", "deit")):
            continue
        shape = shape_of(name)
        if shape is None:
            continue
        weights = weights_of(name)
        # timm drops the rest of an image that the patch does not divide; manyheads refuses such sizes.
        if all(side % shape["patch"] == 0 for entry in weights for side in entry["input"]):
            lines.append(json.dumps({"name": name, "model": shape, "weights": weights}))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(f'{{"timm": "{timm.__version__}", "presets": [\n' + ",\n".join(lines) + "\n]}\n")
    timm.models.vision_transformer.build_model_with_cfg, timm.models.deit.build_model_with_cfg = builders
    count_parameters([json.loads(line)["name"] for line in lines])
    print(f"{OUT}: {len(lines)} models, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
