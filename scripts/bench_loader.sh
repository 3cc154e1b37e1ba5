#!/bin/sh
# The whole loader beside torchvision on Pillow in PyTorch's DataLoader, by turns, on a folder of photographs: medians of five rounds,
# as ratios, in wall time and per second of processor time.
#
#     scripts/bench_loader.sh FOLDER [WORKERS]
#
# FOLDER holds class folders of JPEGs of ImageNet's size, some hundreds; both read them from the page cache, in batches of 64 floats,
# with WORKERS threads or processes (2). The last two rows of ours read a file of `manyheads data pack --short-side 352` and are
# compared with the peer on the folder. The Python packages are installed from PyPI into target/bench-venv on the first run; PYTHON
# names another interpreter that has them, PROGRAM another manyheads than target/release/manyheads.
set -eu
folder=$(cd "${1:?usage: bench_loader.sh FOLDER [WORKERS]}" && pwd)
workers=${2:-2}
cd "$(dirname "$0")/.."
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
lines=$(mktemp)
packed=$(mktemp -u).pack
trap 'rm -f "$lines" "$packed" "$packed.partial"' EXIT
"$PROGRAM" data pack "$folder" --out "$packed" --short-side 352 >&2

ours() { # name, path, then options
    name=$1 path=$2
    shift 2
    "$PROGRAM" bench data "$path" --threads "$workers" --seconds 2 --json --set train.batch_size=64 "$@" | sed "s/^/ours $name /" >>"$lines"
}
randaugment=augment.auto=rand-m9-mstd0.5-inc1
for round in 1 2 3 4 5; do
    echo "round $round of 5" >&2
    ours train "$folder"
    "$PYTHON" scripts/bench_loader_peer.py "$folder" "$workers" train | sed 's/^/peer train /' >>"$lines"
    ours randaugment "$folder" --set "$randaugment"
    "$PYTHON" scripts/bench_loader_peer.py "$folder" "$workers" randaugment | sed 's/^/peer randaugment /' >>"$lines"
    ours eval "$folder" --eval
    "$PYTHON" scripts/bench_loader_peer.py "$folder" "$workers" eval | sed 's/^/peer eval /' >>"$lines"
    ours packed-train "$packed"
    ours packed-randaugment "$packed" --set "$randaugment"
done
"$PYTHON" - "$lines" <<'PYTHON'
import json
import statistics
import sys

values = {}
for line in open(sys.argv[1]):
    side, name, text = line.split(" ", 2)
    row = json.loads(text)
    if side == "ours":
        loader = next(m for m in row["measurements"] if m["stage"] == "loader")
        row = {"wall": loader["images_per_second"], "cpu": 1 / loader["cpu_seconds_per_image"]}
    for key in ("wall", "cpu"):
        values.setdefault((side, name, key), []).append(row[key])
print(f"{'images a second of':20} {'wall time':>24} {'processor time':>26}")
print(f"{'':20} {'ours':>8} {'peer':>7} {'ratio':>7} {'ours':>10} {'peer':>7} {'ratio':>7}")
for name in ("train", "randaugment", "eval", "packed-train", "packed-randaugment"):
    cells = []
    for key in ("wall", "cpu"):
        ours = statistics.median(values["ours", name, key])
        peer = statistics.median(values["peer", name.removeprefix("packed-"), key])
        cells += [ours, peer, ours / peer]
    print("{:20} {:8.0f} {:7.0f} {:7.2f} {:10.0f} {:7.0f} {:7.2f}".format(name, *cells))
PYTHON
