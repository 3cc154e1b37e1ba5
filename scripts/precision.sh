#!/bin/sh
# A small Vision Transformer on Fashion-MNIST trained in f32 and in bf16: top-1 of the weights and of their average with softmax, linear and
# Hydra attention, over several seeds.
#
#     scripts/precision.sh TRAIN.tar VAL.tar [SEEDS] [OUT]
#
# The tar files hold Fashion-MNIST as PNG files in class folders. The network and the recipe are configs/quickstart.toml's, for one epoch
# of all 60,000 images, tested on 10,000: a minute of processor time a run. SEEDS (3) runs of each kind are made; what OUT
# (target/precision) holds already is not run again. DEVICE (cpu) is where they train; PROGRAM names another manyheads than
# target/release/manyheads.
set -eu
train=$(realpath "${1:?usage: precision.sh TRAIN.tar VAL.tar [SEEDS] [OUT]}")
val=$(realpath "${2:?usage: precision.sh TRAIN.tar VAL.tar [SEEDS] [OUT]}")
seeds=${3:-3}
cd "$(dirname "$0")/.."
out=${4:-target/precision}
mkdir -p "$out"
if [ -z "${PROGRAM:-}" ]; then
    cargo build --release
    PROGRAM=target/release/manyheads
fi

seed=0
while [ "$seed" -lt "$seeds" ]; do
    for kind in softmax linear hydra; do
        for precision in f32 bf16; do
            run=$out/$kind-$precision-$seed
            if [ ! -s "$run.json" ]; then
                echo "$kind, $precision, seed $seed" >&2
                rm -rf "$run"
                "$PROGRAM" train configs/quickstart.toml --out "$run" --device "${DEVICE:-cpu}" --set "run.seed=$seed" \
                    --set data.source=tar --set "data.train=$train" --set "data.val=$val" --set train.epochs=1 --set ema.enabled=true \
                    --set ema.decay=0.99 --set "model.attention.kind=$kind" --set "train.precision=$precision" >&2
                grep '"kind":"eval"' "$run/metrics.jsonl" | tail -n 1 >"$run.partial"
                mv "$run.partial" "$run.json"
            fi
        done
    done
    seed=$((seed + 1))
done

python3 scripts/compare_runs.py "$out" "$seeds" top-1 f32 bf16 second \
    softmax:softmax-f32:softmax-bf16 linear:linear-f32:linear-bf16 Hydra:hydra-f32:hydra-bf16
