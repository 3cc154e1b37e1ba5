#!/bin/sh
# Training and inference on the CPU: manyheads beside PyTorch (timm's model, AdamW, soft targets), on one machine, in turn.
#
#   scripts/bench_cpu.sh [ROUNDS]
#
# Prints the README's table: the median over the rounds (5) of images per second, and the most memory of a process. Every round runs each
# program once, so that whatever else the machine does meets all of them. Environment:
#   MANYHEADS  the program                     (target/release/manyheads)
#   PYTHON     an interpreter with torch, timm (python3)
#   MODELS     presets, separated by spaces    ("tiny small")
#   BATCH      images at once                  (8)
#   STEPS      measured steps of a run         (5)
#   PRECISIONS of the matrix products          ("f32"; "f32 bf16" for both)
#   COMPILE    1: PyTorch's torch.compile too  (0)
#   PLAIN      0: without Burn's operations    (1)
set -eu
rounds=${1:-5}
manyheads=${MANYHEADS:-target/release/manyheads}
python=${PYTHON:-python3}
models=${MODELS:-tiny small}
batch=${BATCH:-8}
steps=${STEPS:-5}
precisions=${PRECISIONS:-f32}
here=$(dirname "$0")
results=$(mktemp)
trap 'rm -f "$results"' EXIT

measure() { # key, command…
    key=$1
    shift
    if out=$("$@" 2>/dev/null); then
        printf '%s\t%s\n' "$key" "$out" >> "$results"
    else
        printf '%s: failed\n' "$key" >&2
    fi
}

ours() { # key, options…
    key=$1
    shift
    measure "$key" "$manyheads" bench "$mode" --preset "$model" --attention "$attention" --batch "$batch" --steps "$steps" --warmup 2 \
        --set "train.precision=\"$precision\"" --set "eval.precision=\"$precision\"" --device cpu --json "$@"
}

peer() { # key, options…
    key=$1
    shift
    [ "$precision" = f32 ] || set -- "$@" "--$precision"
    measure "$key" "$python" "$here/bench_cpu_peer.py" "$mode" --model "deit_${model}_patch16_224" --attention "$attention" --batch "$batch" \
        --steps "$steps" --warmup 2 "$@"
}

for round in $(seq "$rounds"); do
    for precision in $precisions; do
        for mode in train infer; do
            for model in $models; do
                for attention in softmax hydra; do
                    case="$mode $model $attention $precision"
                    printf 'round %s of %s: %s\n' "$round" "$rounds" "$case" >&2
                    ours "$case fused"
                    peer "$case eager"
                    [ "${COMPILE:-0}" != 1 ] || peer "$case compiled" --compile
                    [ "${PLAIN:-1}" != 1 ] || ours "$case plain" --ops plain
                done
            done
        done
    done
done

"$python" - "$results" << 'EOF'
import collections
import json
import statistics
import sys

runs = collections.defaultdict(list)
for line in open(sys.argv[1]):
    key, text = line.rstrip("\n").split("\t")
    runs[key].append(json.loads(text))
cases = list(dict.fromkeys(key.rsplit(" ", 1)[0] for key in runs))
columns = [c for c in ("plain", "eager", "compiled", "fused") if any(key.endswith(" " + c) for key in runs)]
titles = {
    "plain": "Burn's operations",
    "eager": "PyTorch eager",
    "compiled": "PyTorch compiled",
    "fused": "manyheads",
}
peers = [column for column in columns if column in ("eager", "compiled")]
heads = [titles[column] for column in columns] + [f"manyheads / {peer}" for peer in peers]
print("| images/s | " + " | ".join(heads) + " | memory, manyheads | memory, eager |")
print("|---|" + "---|" * (len(columns) + len(peers) + 2))
for case in cases:
    def median(column, field):
        found = [run[field] for run in runs.get(f"{case} {column}", []) if run.get(field)]
        return statistics.median(found) if found else None

    speed = {column: median(column, "images_per_second") for column in columns}
    cells = [f"{speed[c]:.1f}" if speed[c] else "–" for c in columns]
    ratios = [
        f"**{speed['fused'] / speed[peer]:.2f}**" if speed.get("fused") and speed.get(peer) else "–" for peer in peers
    ]
    memory = [median(c, "peak_memory_bytes") for c in ("fused", "eager")]
    cells += ratios + [f"{m / 1e6:.0f} MB" if m else "–" for m in memory]
    print(f"| {case} | " + " | ".join(cells) + " |")
EOF
