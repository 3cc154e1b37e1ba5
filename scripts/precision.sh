#!/bin/sh
# A small Vision Transformer on Fashion-MNIST trained in f32 and in bf16, or with two values of another setting: top-1 of the weights and of
# their average with softmax, linear and Hydra attention, over several seeds.
#
#     scripts/precision.sh TRAIN.tar VAL.tar [SEEDS] [OUT]
#
# The tar files hold Fashion-MNIST as PNG files in class folders. The network and the recipe are configs/quickstart.toml's, for one epoch
# of all 60,000 images, tested on 10,000: a minute of processor time a run. SEEDS (3) runs of each kind are made; what OUT
# (target/precision) holds already is not run again. DEVICE (cpu) is where they train; PROGRAM names another manyheads than
# target/release/manyheads. KEY (train.precision) is the setting that is compared and VALUES ("f32 bf16") its two values, as
# KEY=run.ops VALUES="plain fused".
set -eu
train=$(realpath "${1:?usage: precision.sh TRAIN.tar VAL.tar [SEEDS] [OUT]}")
val=$(realpath "${2:?usage: precision.sh TRAIN.tar VAL.tar [SEEDS] [OUT]}")
seeds=${3:-3}
cd "$(dirname "$0")/.."
out=${4:-target/precision}
key=${KEY:-train.precision}
values=${VALUES:-f32 bf16}
mkdir -p "$out"
if [ -z "${PROGRAM:-}" ]; then
    cargo build --release
    PROGRAM=target/release/manyheads
fi

seed=0
while [ "$seed" -lt "$seeds" ]; do
    for kind in softmax linear hydra; do
        for value in $values; do
            run=$out/$kind-$value-$seed
            if [ ! -s "$run.json" ]; then
                echo "$kind, $value, seed $seed" >&2
                rm -rf "$run"
                "$PROGRAM" train configs/quickstart.toml --out "$run" --device "${DEVICE:-cpu}" --set "run.seed=$seed" \
                    --set data.source=tar --set "data.train=$train" --set "data.val=$val" --set train.epochs=1 --set ema.enabled=true \
                    --set ema.decay=0.99 --set "model.attention.kind=$kind" --set "$key=$value" >&2
                grep '"kind":"eval"' "$run/metrics.jsonl" | tail -n 1 >"$run.partial"
                mv "$run.partial" "$run.json"
            fi
        done
    done
    seed=$((seed + 1))
done

first=${values% *} second=${values#* }
python3 scripts/compare_runs.py "$out" "$seeds" top-1 "$first" "$second" second \
    "softmax:softmax-$first:softmax-$second" "linear:linear-$first:linear-$second" "Hydra:hydra-$first:hydra-$second"
