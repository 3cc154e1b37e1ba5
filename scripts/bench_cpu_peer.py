#!/usr/bin/env python3
"""One measurement of PyTorch on the CPU, beside `manyheads bench train` and `bench infer`: a timm model on synthetic images.

Prints one JSON object with images_per_second (median step), seconds_per_step, cpu_seconds_per_step and peak_memory_bytes.
Needs torch and timm.
"""

import argparse
import json
import resource
import statistics
import time

import timm
import torch
import torch.nn as nn
from timm.loss import SoftTargetCrossEntropy


class Hydra(nn.Module):
    """Hydra attention as the paper writes it (Bolya et al., 2022, appendix C), between timm's projections."""

    def __init__(self, attention):
        super().__init__()
        self.qkv = attention.qkv
        self.proj = attention.proj

    def forward(self, x, attn_mask=None, **_):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q / q.norm(dim=-1, keepdim=True)
        k = k / k.norm(dim=-1, keepdim=True)
        return self.proj(q * (k * v).sum(dim=-2, keepdim=True))


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=["train", "infer"])
    parser.add_argument("--model", default="deit_tiny_patch16_224")
    parser.add_argument("--attention", choices=["softmax", "hydra"], default="softmax")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bf16", action="store_true", help="autocast")
    options = parser.parse_args()

    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = timm.create_model(options.model, drop_path_rate=0.1)
    if options.attention == "hydra":
        for block in model.blocks:
            block.attn = Hydra(block.attn)
    images = torch.randn(options.batch, 3, 224, 224)
    labels = torch.arange(options.batch) % 1000
    targets = torch.full((options.batch, 1000), 0.1 / 1000).scatter_(1, labels[:, None], 0.9 + 0.1 / 1000)

    if options.mode == "train":
        model.train()
        decay = [p for p in model.parameters() if p.ndim > 1]
        plain = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=1e-5)
        loss_of = SoftTargetCrossEntropy()
        forward = torch.compile(model) if options.compile else model

        def step():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.bf16):
                loss = loss_of(forward(images).float(), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            # The norm of the gradient, which the peer computes too.
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
            return loss.item()

    else:
        model.eval()
        forward = torch.compile(model) if options.compile else model

        def step():
            with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.bf16):
                return forward(images).float().sum().item()

    for _ in range(options.warmup):
        step()
    seconds = []
    cpu = cpu_seconds()
    for _ in range(options.steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    cpu = (cpu_seconds() - cpu) / options.steps
    median = statistics.median(seconds)
    print(
        json.dumps(
            {
                "images_per_second": options.batch / median,
                "seconds_per_step": median,
                "fastest_step": min(seconds),
                "cpu_seconds_per_step": cpu,
                "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
