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
#   COMPILE    1: PyTorch's torch.compile too  (0)
set -eu
rounds=${1:-5}
manyheads=${MANYHEADS:-target/release/manyheads}
python=${PYTHON:-python3}
models=${MODELS:-tiny small}
batch=${BATCH:-8}
steps=${STEPS:-5}
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

for round in $(seq "$rounds"); do
    for mode in train infer; do
        for model in $models; do
            for attention in softmax hydra; do
                case="$mode $model $attention"
                printf 'round %s of %s: %s\n' "$round" "$rounds" "$case" >&2
                measure "$case fused" "$manyheads" bench "$mode" --preset "$model" --attention "$attention" --batch "$batch" \
                    --steps "$steps" --warmup 2 --device cpu --json
                peer="$here/bench_cpu_peer.py $mode --model deit_${model}_patch16_224 --attention $attention --batch $batch --steps $steps --warmup 2"
                # shellcheck disable=SC2086
                measure "$case eager" "$python" $peer
                if [ "${COMPILE:-0}" = 1 ]; then
                    # shellcheck disable=SC2086
                    measure "$case compiled" "$python" $peer --compile
                fi
                measure "$case plain" "$manyheads" bench "$mode" --preset "$model" --attention "$attention" --batch "$batch" \
                    --steps "$steps" --warmup 2 --device cpu --ops plain --json
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
print("| images/s | " + " | ".join(titles[c] for c in columns) + " | manyheads / eager | memory, manyheads | memory, eager |")
print("|---|" + "---|" * (len(columns) + 3))
for case in cases:
    def median(column, field):
        found = [run[field] for run in runs.get(f"{case} {column}", []) if run.get(field)]
        return statistics.median(found) if found else None

    speed = {column: median(column, "images_per_second") for column in columns}
    cells = [f"{speed[c]:.1f}" if speed[c] else "–" for c in columns]
    ratio = f"**{speed['fused'] / speed['eager']:.2f}**" if speed.get("fused") and speed.get("eager") else "–"
    memory = [median(c, "peak_memory_bytes") for c in ("fused", "eager")]
    cells += [ratio] + [f"{m / 1e6:.0f} MB" if m else "–" for m in memory]
    print(f"| {case} | " + " | ".join(cells) + " |")
EOF
