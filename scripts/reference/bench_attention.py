#!/usr/bin/env python3
"""Times one attention in PyTorch and in manyheads, in turn, and prints both.

PyTorch's softmax attention is scaled_dot_product_attention and the plain three lines; its Hydra attention is the four lines of Bolya et
al., 2022, appendix C. Every round runs ours and each of PyTorch's once on the same number of threads, so that whatever else the machine
does falls on all of them; what is printed is the median of the rounds.

    python scripts/reference/bench_attention.py target/release/manyheads --threads 2 --rounds 5
    python scripts/reference/bench_attention.py target/release/manyheads --sweep

`--sweep` goes through numbers of tokens instead, from an image of 224 pixels to one of 1,434, for one image of ViT-B, and prints how time
and memory of forward and backward pass grow: as powers of the number of tokens between its smallest and largest values; and Hydra's share
of the bandwidth of a copy. All that is read from memory: with the caches filled with other things before each repetition, since a short
sequence that fits into them is read faster than any copy. How much faster Hydra is than PyTorch's is taken with warm caches, for both. It ends with code 1 where softmax attention's memory
grows faster than the tokens, Hydra's time is no power of 1.0 +- 0.1, its share is below a half, or it is not twice as fast as PyTorch's.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time

SHAPES = [(8, 197, 3, 64), (8, 197, 6, 64), (64, 197, 3, 16), (1, 1025, 12, 64)]


def packed(torch, batch, tokens, heads, head_width):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, tokens, 3 * heads * head_width, generator=generator)
    return x.requires_grad_(), torch.ones(batch, tokens, heads * head_width)


def split(x, heads):
    batch, tokens, tripled = x.shape
    return x.reshape(batch, tokens, 3, heads, tripled // 3 // heads).permute(2, 0, 3, 1, 4).unbind(0)


def merge(x):
    batch, heads, tokens, head_width = x.shape
    return x.transpose(1, 2).reshape(batch, tokens, heads * head_width)


def forms(torch, kind):
    def sdpa(x, heads):
        q, k, v = split(x, heads)
        return merge(torch.nn.functional.scaled_dot_product_attention(q, k, v))

    def eager(x, heads):
        q, k, v = split(x, heads)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        return merge(scores.softmax(dim=-1) @ v)

    def hydra(x, _):
        q, k, v = x.chunk(3, dim=-1)
        q = q / q.norm(dim=-1, keepdim=True)
        k = k / k.norm(dim=-1, keepdim=True)
        return q * (k * v).sum(dim=-2, keepdim=True)

    return {"sdpa": sdpa, "eager": eager} if kind == "softmax" else {"hydra": hydra}


def time_torch(torch, form, x, gradient, heads, repeats):
    """Seconds of the median forward pass and of the median forward and backward pass."""
    forward, both = [], []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        with torch.no_grad():
            form(x, heads)
        forward.append(time.perf_counter() - start)
        start = time.perf_counter()
        form(x, heads).backward(gradient)
        both.append(time.perf_counter() - start)
        x.grad = None
    return [statistics.median(times[1:]) for times in (forward, both)]


def report_of_ours(program, kind, shape, threads, repeats, *flags):
    batch, tokens, heads, head_width = shape
    command = [program, "bench", "attention", "--device", "cpu", "--kind", kind, "--json", *flags]
    for name, value in [("batch", batch), ("tokens", tokens), ("heads", heads), ("width", heads * head_width), ("repeats", repeats)]:
        command += [f"--{name}", str(value)]
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads))
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def time_ours(*arguments):
    report = report_of_ours(*arguments)
    return [report[part]["seconds"] for part in ("forward", "forward_backward")]


TOKENS = [197, 577, 1025, 2049, 4097, 8041]


def sweep(torch, args):
    """Prints the table of `--sweep`; whether it is as it should be."""
    rows = {kind: [] for kind in ("softmax", "hydra")}
    for tokens in TOKENS:
        shape = (1, tokens, 12, 64)
        x, gradient = packed(torch, *shape)
        hydra = forms(torch, "hydra")["hydra"]
        ours, warm, theirs = {kind: [] for kind in rows}, [], []
        for _ in range(args.rounds):
            for kind, reports in ours.items():
                repeats = args.repeats if kind == "hydra" else max(2, args.repeats * 197 // tokens)
                reports.append(report_of_ours(args.program, kind, shape, args.threads, repeats, "--cold"))
            warm.append(report_of_ours(args.program, "hydra", shape, args.threads, args.repeats)["forward_backward"]["seconds"])
            theirs.append(time_torch(torch, hydra, x, gradient, 12, args.repeats)[1])
        for kind, reports in ours.items():
            both = [report["forward_backward"] for report in reports]
            share = statistics.median(part["bandwidth_share"] for part in both)
            memory = max(part["peak_memory_growth_bytes"] for part in both)
            seconds = statistics.median(part["seconds"] for part in both)
            rows[kind].append((tokens, seconds, memory, share, statistics.median(theirs) / statistics.median(warm)))
    print("| tokens | softmax, ms | softmax, MB | Hydra, ms | Hydra, MB | of a copy's bandwidth | times PyTorch's Hydra |")
    print("|---|---|---|---|---|---|---|")
    for (tokens, time_s, memory_s, *_), (_, time_h, memory_h, share, ratio) in zip(rows["softmax"], rows["hydra"]):
        cells = f"| {1e3 * time_s:.1f} | {memory_s / 1e6:.0f} | {1e3 * time_h:.2f} | {memory_h / 1e6:.0f} | {share:.2f} | {ratio:.1f} |"
        print(f"| {tokens} {cells}")

    def power(kind, column):
        first, last = rows[kind][0], rows[kind][-1]
        return math.log(last[column] / first[column]) / math.log(last[0] / first[0])

    powers = {f"{kind}'s {what}": power(kind, column) for kind in rows for what, column in (("time", 1), ("memory", 2))}
    print("\nas powers of the tokens: " + ", ".join(f"{name} {value:.2f}" for name, value in powers.items()))
    last = rows["hydra"][-1]
    checks = {
        "softmax's memory grows with the tokens": powers["softmax's memory"] < 1.1,
        "Hydra's time is a power of 1.0 +- 0.1": abs(powers["hydra's time"] - 1.0) <= 0.1,
        "Hydra reaches half of a copy's bandwidth": last[3] >= 0.5,
        "Hydra is twice as fast as PyTorch's": min(row[4] for row in rows["hydra"]) >= 2.0,
    }
    for name, held in checks.items():
        print(f"{name}: {'yes' if held else 'NO'}")
    return all(checks.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--kind", choices=["softmax", "hydra"], default="softmax")
    parser.add_argument("--shape", action="append", help="batch,tokens,heads,head width; may be repeated")
    parser.add_argument("--sweep", action="store_true", help="how time and memory grow with the tokens")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()

    import torch

    torch.set_num_threads(args.threads)
    if args.sweep:
        sys.exit(0 if sweep(torch, args) else 1)
    shapes = [tuple(int(part) for part in shape.split(",")) for shape in args.shape or []] or SHAPES
    print(f"{'batch,tokens,heads,head width':30}{'':8}{'forward ms':>12}{'both ms':>12}{'ours faster, forward':>22}{'both':>8}")
    for shape in shapes:
        heads = shape[2]
        x, gradient = packed(torch, *shape)
        times = {name: [] for name in ["ours", *forms(torch, args.kind)]}
        for _ in range(args.rounds):
            times["ours"].append(time_ours(args.program, args.kind, shape, args.threads, args.repeats))
            for name, form in forms(torch, args.kind).items():
                times[name].append(time_torch(torch, form, x, gradient, heads, args.repeats))
        medians = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in times.items()}
        for name, (forward, both) in medians.items():
            ours = medians["ours"]
            ratios = "" if name == "ours" else f"{forward / ours[0]:>20.2f} x{both / ours[1]:>6.2f} x"
            print(f"{','.join(map(str, shape)):30}{name:8}{1e3 * forward:>12.3f}{1e3 * both:>12.3f}{ratios}", flush=True)


if __name__ == "__main__":
    main()
