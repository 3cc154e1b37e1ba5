#!/bin/sh
# A small DeiT on Fashion-MNIST under DeiT's recipe, by this program and by PyTorch with timm under the same settings: top-1 of the weights
# and of their average for softmax attention and for Hydra attention in the last two layers, over several seeds.
#
#     scripts/fashion_mnist.sh TRAIN.tar VAL.tar [SEEDS] [OUT]
#
# The tar files hold Fashion-MNIST as PNG files in class folders. SEEDS (3) runs of each kind go through each program, one thread each;
# what OUT (target/fashion-mnist) holds already is not run again. The Python packages are installed from PyPI into target/bench-venv on
# the first run; PYTHON names another interpreter that has them, PROGRAM another manyheads than target/release/manyheads, KINDS one of
# "deit hydra".
set -eu
train=$(realpath "${1:?usage: fashion_mnist.sh TRAIN.tar VAL.tar [SEEDS] [OUT]}")
val=$(realpath "${2:?usage: fashion_mnist.sh TRAIN.tar VAL.tar [SEEDS] [OUT]}")
seeds=${3:-3}
kinds=${KINDS:-deit hydra}
cd "$(dirname "$0")/.."
out=${4:-target/fashion-mnist}
mkdir -p "$out"
set --
if [ -z "${PYTHON:-}" ]; then
    PYTHON=target/bench-venv/bin/python
    if [ ! -x "$PYTHON" ]; then
        python3 -m venv target/bench-venv
        "$PYTHON" -m pip install --quiet pillow==13.0.0 timm==1.0.31 torch torchvision
    fi
fi
if [ -z "${PROGRAM:-}" ]; then
    cargo build --release
    PROGRAM=target/release/manyheads
fi

seed=0
while [ "$seed" -lt "$seeds" ]; do
    for kind in $kinds; do
        config=configs/fashion-mnist/$kind.toml
        ours=$out/ours-$kind-$seed
        if [ ! -s "$ours.json" ]; then
            echo "manyheads, $kind, seed $seed" >&2
            rm -rf "$ours"
            RAYON_NUM_THREADS=1 "$PROGRAM" train "$config" --out "$ours" --set "run.seed=$seed" --set "data.train=$train" --set "data.val=$val" \
                --set data.workers=0 >&2
            grep '"kind":"eval"' "$ours/metrics.jsonl" | tail -n 1 >"$ours.partial"
            mv "$ours.partial" "$ours.json"
        fi
        peer=$out/peer-$kind-$seed
        if [ ! -s "$peer.json" ]; then
            echo "PyTorch, $kind, seed $seed" >&2
            "$PYTHON" scripts/reference/fashion_mnist.py "$config" "$train" "$val" "$seed" 1 >"$peer.partial"
            mv "$peer.partial" "$peer.json"
        fi
    done
    seed=$((seed + 1))
done

for kind in $kinds; do
    case $kind in
    deit) words="softmax" ;;
    *) words="Hydra in the last 2" ;;
    esac
    set -- "$@" "$words:ours-$kind:peer-$kind"
done
"$PYTHON" scripts/compare_runs.py "$out" "$seeds" "" manyheads "PyTorch + timm" first "$@"
