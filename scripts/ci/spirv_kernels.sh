#!/usr/bin/env bash
# Compiles every kernel that the tests of the GPU run to SPIR-V, has each checked by Khronos's validator, and holds what it computes to its
# plain form, on the first Vulkan driver there is: a software one will do. Where a driver lacks the extension that CubeCL's SPIR-V needs for
# shared memory, a layer stands in for it.
#
# `.ci/run` runs the same tests through WGSL and only type-checks this build, which takes a quarter of an hour on two cores: run this after a
# change to crates/model/src/ops/gpu. It needs `apt-get install mesa-vulkan-drivers libvulkan-dev spirv-tools`.
set -euo pipefail
cd "$(dirname "$0")/../.."

work="${CARGO_TARGET_DIR:-target}/spirv_kernels"
mkdir -p "$work/kernels"
work="$(cd "$work" && pwd)"
rm -f "$work"/kernels/*

cc -shared -fPIC -O1 -Wall -Werror -o "$work/liblayer.so" scripts/ci/vulkan_explicit_layout.c
cat > "$work/layer.json" << JSON
{"file_format_version": "1.1.2", "layer": {"name": "VK_LAYER_manyheads_explicit_layout", "type": "GLOBAL", "library_path": "./liblayer.so",
 "api_version": "1.3.0", "implementation_version": "1", "description": "VK_KHR_workgroup_memory_explicit_layout for drivers without it"}}
JSON

cargo test --locked --release --workspace --features vulkan --test gpu --no-run
VK_LAYER_PATH="$work" VK_INSTANCE_LAYERS=VK_LAYER_manyheads_explicit_layout SPIRV_KERNELS="$work/kernels" \
    cargo test --locked --release --workspace --features vulkan --test gpu

count=0
for kernel in "$work"/kernels/*.spv; do
    spirv-val --target-env vulkan1.3 "$kernel"
    count=$((count + 1))
done
echo "$count modules of SPIR-V are valid"
