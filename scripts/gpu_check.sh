#!/bin/sh
# Checks a GPU in under eight minutes, without a network: that it computes what the CPU computes, in every attention and precision, and how fast
# it trains and infers DeiT's sizes, beside PyTorch where `import torch, timm` works. Prints tables in Markdown; exit code 1 where something
# does not agree.
#
#   scripts/gpu_check.sh [OPTION…]     options of `manyheads bench gpu`: --device cuda:1, --tiny for a software renderer, --seconds N
#
# Environment:
#   MANYHEADS  the program             (target/release/manyheads, or manyheads-gpu.gz beside this script, as scripts/gpu_build.sh makes it)
#   PYTHON     an interpreter          (python3)
#   OUT        where the JSON goes     (gpu_check.json)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
out=${OUT:-gpu_check.json}

manyheads=${MANYHEADS:-}
if [ -z "$manyheads" ]; then
    for packed in "$here/manyheads-gpu.gz" "$here/../manyheads-gpu.gz"; do
        if [ -f "$packed" ]; then
            unpacked=$(mktemp -d)
            trap 'rm -rf "$unpacked"' EXIT
            gzip -dc "$packed" > "$unpacked/manyheads"
            chmod +x "$unpacked/manyheads"
            manyheads=$unpacked/manyheads
            break
        fi
    done
fi
manyheads=${manyheads:-${CARGO_TARGET_DIR:-$here/../target}/release/manyheads}
if [ ! -x "$manyheads" ]; then
    echo "error: there is no program at $manyheads: build it with \`cargo build --release --features cuda\`, or set MANYHEADS" >&2
    exit 2
fi

for option in "$@"; do
    # Seeking the fastest kernels takes minutes on a software renderer and says nothing of a GPU.
    [ "$option" = --tiny ] && export CUBECL_AUTOTUNE_LEVEL="${CUBECL_AUTOTUNE_LEVEL:-0}"
done

if "$python" -c 'import torch, timm' 2> /dev/null; then
    set -- --peer "$python $here/gpu_peer.py" "$@"
else
    echo "PyTorch is not measured: $python cannot import torch and timm" >&2
fi
"$manyheads" bench gpu --out "$out" "$@"
echo "everything found is in $out" >&2
