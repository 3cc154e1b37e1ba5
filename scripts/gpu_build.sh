#!/bin/sh
# Builds the program for a machine with a GPU and without a compiler: one stripped file for CUDA, wgpu and the CPU, packed with gzip. It is run
# where it is unpacked, needs no library but the system's, the GPU's driver and, for CUDA, NVIDIA's libdevice.10.bc (README, Devices), and
# scripts/gpu_check.sh finds it.
#
#   scripts/gpu_build.sh [FILE]     (manyheads-gpu.gz)
#
# Environment:
#   FEATURES  Cargo features     (cuda,wgpu,flex)
#   LIMIT     bytes it may have  (60000000)
#
# On two cores a first build takes about 20 minutes.
set -eu
cd "$(dirname "$0")/.."
out=${1:-manyheads-gpu.gz}
features=${FEATURES:-cuda,wgpu,flex}
limit=${LIMIT:-60000000}

case ",$features," in
*,cuda,*)
    # CUDA's build downloads LLVM; where the download fails, a distribution's takes its place.
    if ! cargo build --locked --release --no-default-features --features "$features"; then
        as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -E "$@"; fi; }
        as_root env HOME="$HOME" scripts/ci/llvm_for_cuda.sh
        cargo build --locked --release --no-default-features --features "$features"
    fi
    ;;
*) cargo build --locked --release --no-default-features --features "$features" ;;
esac

program=${CARGO_TARGET_DIR:-target}/release/manyheads
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
strip -o "$work/manyheads" "$program"
# The stripped file still works.
"$work/manyheads" --version
gzip -9 -c "$work/manyheads" > "$out"
size=$(wc -c < "$out")
printf '%s: %s bytes, unpacked %s bytes, features %s\n' "$out" "$size" "$(wc -c < "$work/manyheads")" "$features"
# Whatever is not the C library has to be on the other machine too.
printf 'shared libraries: %s\n' "$(ldd "$work/manyheads" | awk '{ print $1 }' | xargs)"
if [ "$size" -gt "$limit" ]; then
    echo "error: $out has more than $limit bytes" >&2
    exit 1
fi
