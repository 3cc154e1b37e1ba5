"""Logits of manyheads beside those of timm and transformers, from the photograph's file on, for many presets; and the way back.

    pip install torch timm==1.0.31 transformers pillow
    python scripts/reference/check_presets.py target/release/manyheads PHOTOGRAPHS [--only NAME]...

PHOTOGRAPHS is a folder with at least 8 JPEGs, in subfolders or not. For each preset a timm model with random weights, none of them zero
or constant, is saved; `manyheads predict` reads it and the photographs; its logits must lie within 2e-4 of timm's f32 logits on the CPU
after timm's own evaluation transform, with the same best class. `manyheads weights convert` then writes the weights for timm and, where
transformers can hold the model, for Hugging Face; both must load with nothing missing or left over and give the same logits. Models of
transformers are read in the same way. Ends with status 1 where anything differs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

import timm
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.data import create_transform, resolve_data_config

TOLERANCE = 2e-4
PHOTOGRAPHS = 8

# name: arguments of timm.create_model beside it. A pool other than the preset's is said to manyheads too.
PRESETS = {
    "deit_tiny_patch16_224": {},
    "deit_small_patch16_224": {},
    "deit_base_patch16_224": {},
    "deit_base_distilled_patch16_224": {},
    "deit_base_patch16_384": {},
    "deit3_small_patch16_224": {},
    "deit3_base_patch16_224.fb_in22k_ft_in1k": {},
    "vit_base_patch32_224": {},
    "vit_base_patch16_224": {"global_pool": "avg"},
    "vit_base_patch16_gap_224": {},
    "vit_small_patch14_reg4_dinov2": {"num_classes": 1000},
    "vit_medium_patch16_gap_256": {},
    "vit_wee_patch16_reg1_gap_256": {},
    "vit_small_patch8_224": {"num_classes": 10},
}

DEIT_TINY = dict(hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768, num_labels=1000)
# name: configuration, the preset whose preparation of images is used, and where the model differs from it: a distillation token that no
# head reads is a register.
HUGGING_FACE = {
    "ViTForImageClassification": (transformers.ViTConfig, "vit_tiny_patch16_224", []),
    "DeiTForImageClassification": (transformers.DeiTConfig, "deit_tiny_patch16_224", ["model.registers=1"]),
    "DeiTForImageClassificationWithTeacher": (transformers.DeiTConfig, "deit_tiny_distilled_patch16_224", []),
}


def perturb(model, seed) -> None:
    """Adds noise to every parameter, so that each matters, and keeps logits near 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name or "token" in name or "gamma" in name or "pos_embed" in name or "position" in name:
                parameter.add_(0.3 * noise)
            else:
                parameter.add_(0.02 * noise)


def logits_of(model, batches):
    model.eval()
    with torch.inference_mode():
        outputs = [model(batch) for batch in batches]
    return torch.cat([getattr(output, "logits", output) for output in outputs]).float()


def predict(binary, weights, preset, sets, photographs):
    command = [binary, "predict", "--weights", weights, "--preset", preset, "--logits", "--json", "--device", "cpu"]
    command += [word for key in sets for word in ("--set", key)] + photographs
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"manyheads predict ended with {result.returncode}: {result.stderr.strip()}")
    return torch.tensor([image["logits"] for image in json.loads(result.stdout)["images"]])


def convert(binary, weights, preset, layout, out):
    command = [binary, "weights", "convert", weights, "--to", layout, "--out", out]
    if preset is not None:
        command += ["--preset", preset]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"manyheads weights convert ended with {result.returncode}: {result.stderr.strip()}")


class Table:
    def __init__(self):
        self.failed = False

    def row(self, name, what, ours, theirs, seconds):
        worst = (ours - theirs).abs().max().item()
        same = bool((ours.argmax(1) == theirs.argmax(1)).all())
        good = worst <= TOLERANCE and same
        self.failed |= not good
        size = theirs.abs().max().item()
        print(f"{name:42} {what:24} {worst:10.2e} {size:8.3f} {'same' if same else 'OTHER':6} {'ok' if good else 'FAIL':4} {seconds:6.1f} s", flush=True)

    def error(self, name, what, error):
        self.failed = True
        print(f"{name:42} {what:24} FAIL {error}", flush=True)


def check_timm(table, binary, name, arguments, photographs, folder) -> None:
    model = timm.create_model(name, **arguments)
    perturb(model, sum(map(ord, name)))
    transform = create_transform(**resolve_data_config({}, model=model))
    batches = [transform(Image.open(path).convert("RGB"))[None] for path in photographs]
    theirs = logits_of(model, batches)
    weights = folder / "weights.safetensors"
    save_file(model.state_dict(), weights)

    sets = ['model.pool="avg"'] if "global_pool" in arguments else []
    # Without a preset the model is recognised from the file.
    preset = None if sets else name
    start = time.time()
    try:
        table.row(name, "timm -> manyheads", predict(binary, weights, name, sets, photographs), theirs, time.time() - start)
    except RuntimeError as error:
        return table.error(name, "timm -> manyheads", error)

    out = folder / "out.safetensors"
    start = time.time()
    try:
        convert(binary, weights, preset, "timm", out)
        back = load_file(out)
        assert all(torch.equal(value, back[key]) for key, value in model.state_dict().items()), "values differ"
        model.load_state_dict(back, strict=True)
        table.row(name, "-> timm, strict", logits_of(model, batches), theirs, time.time() - start)
    except (RuntimeError, AssertionError) as error:
        table.error(name, "-> timm, strict", error)

    plain = not (model.no_embed_class or model.global_pool != "token" or model.num_reg_tokens) and not hasattr(model.blocks[0].ls1, "gamma")
    if plain:
        out = folder / "hugging_face"
        start = time.time()
        try:
            convert(binary, weights, preset, "huggingface", out)
            table.row(name, "-> transformers, strict", logits_of(from_pretrained(out), batches), theirs, time.time() - start)
        except (RuntimeError, AssertionError, OSError) as error:
            table.error(name, "-> transformers, strict", error)


def from_pretrained(folder):
    """The model of a folder; nothing may be missing, left over or of another shape."""
    kind = getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])
    model, info = kind.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    left = {key: value for key, value in info.items() if value}
    assert not left, f"transformers says {left}"
    return model


def check_hugging_face(table, binary, name, config, preset, sets, photographs, folder) -> None:
    model = getattr(transformers, name)(config(**DEIT_TINY))
    perturb(model, sum(map(ord, name)))
    transform = create_transform(**resolve_data_config({}, pretrained_cfg=timm.get_pretrained_cfg(preset).to_dict()))
    batches = [transform(Image.open(path).convert("RGB"))[None] for path in photographs]
    theirs = logits_of(model, batches)
    source = folder / "source"
    model.save_pretrained(source)
    start = time.time()
    try:
        table.row(name, "transformers -> manyheads", predict(binary, source, preset, sets, photographs), theirs, time.time() - start)
        out = folder / "back"
        start = time.time()
        convert(binary, source, None, "huggingface", out)
        table.row(name, "-> transformers, strict", logits_of(from_pretrained(out), batches), theirs, time.time() - start)
    except (RuntimeError, AssertionError, OSError) as error:
        table.error(name, "transformers -> manyheads", error)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=Path)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--only", action="append", metavar="NAME")
    arguments = parser.parse_args()
    found = sorted(path for path in arguments.photographs.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    # Spread over the folder, so that sizes and orientations vary.
    photographs = [found[index * len(found) // PHOTOGRAPHS] for index in range(PHOTOGRAPHS)] if len(found) >= PHOTOGRAPHS else []
    if not photographs:
        sys.exit(f"{arguments.photographs} holds {len(found)} JPEGs, fewer than {PHOTOGRAPHS}")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"timm {timm.__version__}, torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"{'model':42} {'way':24} {'worst':>10} {'largest':>8} {'argmax':6}")
    table = Table()
    wanted = lambda name: not arguments.only or name in arguments.only
    for name, extra in filter(lambda entry: wanted(entry[0]), PRESETS.items()):
        with tempfile.TemporaryDirectory() as folder:
            check_timm(table, arguments.binary, name, extra, photographs, Path(folder))
    for name, (config, preset, sets) in filter(lambda entry: wanted(entry[0]), HUGGING_FACE.items()):
        with tempfile.TemporaryDirectory() as folder:
            check_hugging_face(table, arguments.binary, name, config, preset, sets, photographs, Path(folder))
    sys.exit(1 if table.failed else 0)


if __name__ == "__main__":
    main()
