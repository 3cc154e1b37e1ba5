#!/usr/bin/env python3
"""Measures timm's networks in PyTorch for `manyheads bench gpu --peer`: reads a question a line, answers a line of JSON each.

Training is forward, backward, the gradient's norm and fused AdamW in autocast; attention is PyTorch's SDPA. Images are bytes in pinned
memory, sent to the device and normalised there in every step, as the other side's are. Needs torch with a GPU, and timm. MANYHEADS_PEER_DEVICE=cpu tries it out without one.
"""

import json
import os
import resource
import statistics
import sys
import time

try:
    import timm
    import torch
    import torch.nn as nn
    from timm.loss import SoftTargetCrossEntropy
except ImportError as e:
    for _ in sys.stdin:
        print(json.dumps({"error": f"{sys.executable}: {e}"}), flush=True)
    sys.exit(0)

DEVICE = os.environ.get("MANYHEADS_PEER_DEVICE", "cuda")


def cosine(x):
    return x / x.norm(dim=-1, keepdim=True)


class Linear(nn.Module):
    """Multi-head linear attention with the cosine kernel over the whole width, between timm's projections; sums in f32."""

    def __init__(self, attention):
        super().__init__()
        self.qkv = attention.qkv
        self.proj = attention.proj
        self.heads = attention.num_heads

    def forward(self, x, attn_mask=None, **_):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).float().chunk(3, dim=-1)
        with torch.autocast(x.device.type, enabled=False):
            q, k, v = (t.view(batch, tokens, self.heads, -1).transpose(1, 2) for t in (cosine(q), cosine(k), v))
            x = (q @ (k.transpose(-2, -1) @ v)).transpose(1, 2).reshape(batch, tokens, width)
        return self.proj(x)


class Hydra(nn.Module):
    """Hydra attention as the paper writes it (Bolya et al., 2022, appendix C), between timm's projections; sums in f32."""

    def __init__(self, attention):
        super().__init__()
        self.qkv = attention.qkv
        self.proj = attention.proj

    def forward(self, x, attn_mask=None, **_):
        q, k, v = self.qkv(x).float().chunk(3, dim=-1)
        return self.proj(cosine(q) * (cosine(k) * v).sum(dim=-2, keepdim=True))


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def build(question):
    options = {"img_size": question["image"]}
    for setting in question["sets"]:
        key, value = setting.split("=", 1)
        # A network that timm has no name for.
        name = {"model.patch_size": "patch_size", "model.width": "embed_dim", "model.depth": "depth", "model.heads": "num_heads"}.get(key)
        if name and not question["timm"]:
            options[name] = int(value)
        if key == "model.classes":
            options["num_classes"] = int(value)
    model = timm.create_model(question["timm"] or "vit_tiny_patch16_224", drop_path_rate=0.1, **options)
    replacement = {"linear": Linear, "hydra": Hydra}.get(question["attention"])
    if replacement:
        for block in model.blocks:
            block.attn = replacement(block.attn)
    return model.to(DEVICE)


def measure(question):
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    bf16 = question["precision"] == "bf16"
    batch, side = question["batch"], question["image"]
    model = build(question)
    classes = model.num_classes
    images = torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8)
    labels = torch.arange(batch) % classes
    targets = torch.full((batch, classes), 0.1 / classes).scatter_(1, labels[:, None], 0.9 + 0.1 / classes)
    if DEVICE == "cuda":
        images, targets = images.pin_memory(), targets.pin_memory()
    mean = torch.tensor([0.485, 0.456, 0.406], device=DEVICE).view(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225], device=DEVICE).view(1, 3, 1, 1)

    def upload():
        return (images.to(DEVICE, non_blocking=True).float() / 255 - mean) / std

    forward = torch.compile(model) if question["compile"] else model
    autocast = lambda: torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=bf16)

    if question["step"] == "train":
        model.train()
        decay = [p for p in model.parameters() if p.ndim > 1]
        plain = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=1e-5, fused=True)
        loss_of = SoftTargetCrossEntropy()

        def step():
            x, y = upload(), targets.to(DEVICE, non_blocking=True)
            with autocast():
                loss = loss_of(forward(x).float(), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            # The norm of the gradient, which the other side computes too.
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
            return loss.item()

    else:
        model.eval()

        def step():
            with torch.inference_mode(), autocast():
                return forward(upload()).float().cpu()

    for _ in range(3):
        step()
    synchronize()
    seconds = []
    begin = time.perf_counter()
    while len(seconds) < 50 and (len(seconds) < 2 or time.perf_counter() - begin < question["seconds"]):
        start = time.perf_counter()
        step()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return {
        "images_per_second": batch / statistics.median(seconds),
        "device_memory_bytes": torch.cuda.max_memory_reserved() if DEVICE == "cuda" else None,
        "process_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def describe():
    if DEVICE == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("PyTorch sees no GPU (CUDA)")
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "the CPU"
    return {"torch": torch.__version__, "timm": timm.__version__, "device": name}


def main():
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if DEVICE == "cuda" and torch.cuda.is_available():
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            answer = {"ok": describe() if question["task"] == "describe" else measure(question)}
        except Exception as e:  # Whatever it is, the other side prints it in its table.
            answer = {"error": f"{type(e).__name__}: {e}"}
        finally:
            if question["task"] != "describe":
                torch.compiler.reset()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
