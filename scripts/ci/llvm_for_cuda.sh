#!/usr/bin/env bash
# Lets the `cuda` feature be type-checked and built where only distribution packages can be had.
#
# cubecl-cuda 0.11 links a bundle of LLVM 23 that its build script downloads. This lays out Debian's LLVM 22 in the bundle's place:
# enough to compile and link. Where the download works, do not use this.
set -euo pipefail

bundle="${XDG_DATA_HOME:-$HOME/.local/share}/tracel/tracel-llvm-23.1.0-4"
if [ -e "$bundle/.tracel-llvm-installed" ]; then
    echo "LLVM bundle is in place: $bundle"
    exit 0
fi

apt-get update -qq
apt-get install -y -qq llvm-22-dev libpolly-22-dev libz3-dev zlib1g-dev libzstd-dev libxml2-dev > /dev/null

llvm=/usr/lib/llvm-22
mkdir -p "$bundle/bin"
for part in lib include cmake share; do
    ln -sfn "$llvm/$part" "$bundle/$part"
done
for tool in "$llvm"/bin/*; do
    ln -sfn "$tool" "$bundle/bin/"
done

# Debian's llvm-config names libz3 by its path; the build script reads only `-l` options.
rm -f "$bundle/bin/llvm-config"
printf '#!/bin/sh\n%s/bin/llvm-config "$@" | sed "s#/[^ ]*/libz3\\.so#-lz3#g"\n' "$llvm" > "$bundle/bin/llvm-config"
chmod +x "$bundle/bin/llvm-config"
touch "$bundle/.tracel-llvm-installed"
echo "LLVM bundle laid out: $bundle"
