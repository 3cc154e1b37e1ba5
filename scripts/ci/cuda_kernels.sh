#!/usr/bin/env bash
# Compiles every kernel of ours for CUDA without a device, through the program's own compiler to PTX and with NVIDIA's assembler to a
# processor's code, and prints registers, spills and shared memory of each. It fails where a kernel does not compile, or spills.
#
# A build with CUDA takes about twenty minutes on two cores, so `.ci/run` only type-checks it: run this after a change to
# crates/model/src/ops/gpu. LLVM comes from scripts/ci/llvm_for_cuda.sh, the assembler and libdevice from NVIDIA's package on PyPI.
set -euo pipefail
cd "$(dirname "$0")/../.."

work="${CARGO_TARGET_DIR:-target}/cuda_kernels"
mkdir -p "$work/kernels"
work="$(cd "$work" && pwd)"
rm -f "$work"/kernels/*

venv="$work/venv"
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet nvidia-cuda-nvcc-cu12==12.9.86
CUDA_PATH="$(echo "$venv"/lib/python3*/site-packages/nvidia/cuda_nvcc)"
export CUDA_PATH
ptxas="$CUDA_PATH/bin/ptxas"
chmod +x "$ptxas"

cc -shared -fPIC -O1 -o "$work/libcuda.so" scripts/ci/libcuda_without_device.c

LD_LIBRARY_PATH="$work" CUDA_KERNELS="$work/kernels" \
    cargo test --locked --release --workspace --features cuda --test gpu -- --ignored every_kernel_is_compiled_for_cuda

report="$work/report.txt"
for ptx in "$work"/kernels/*.ptx; do
    name="$(grep -o '\.entry [A-Za-z0-9_]*' "$ptx" | head -1 | sed 's/\.entry //; s/_[0-9a-f]*$//')"
    said="$("$ptxas" -arch=sm_90a -v -o /dev/null "$ptx" 2>&1)" || said="error: $said"
    told="$(grep -oE 'error.*|[0-9]+ bytes spill stores|Used [0-9]+ registers' <<< "$said" | paste -sd ' ')"
    printf '%-50s %s\n' "$name" "$told"
done | sort | uniq -c > "$report"
cat "$report"
# Burn's own kernels are in the folder, too; spilling is their affair.
ours='byte_patches|features|spread|sum_pieces|squares|step_kernel|forward_f|query_gradients|key_gradients|row_means|token_sums|gate|normalise|bias_gelu|residual_kernel|scaled_backward|column_sums|losses'
if grep error "$report" || grep -E " ($ours)[a-z0-9_]* +[1-9][0-9]* bytes spill" "$report"; then
    echo "a kernel does not compile, or spills" >&2
    exit 1
fi
