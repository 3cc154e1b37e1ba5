#!/usr/bin/env bash
# TensorBoard, as people install it, reads the logs of a whole run and of one killed five times. Needs python3 with venv.
set -euo pipefail
cd "$(dirname "$0")/../.."

target="${CARGO_TARGET_DIR:-target}"
venv="$target/venv-tensorboard"
[ -x "$venv/bin/tensorboard" ] || { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet tensorboard==2.21.0; }
cargo build --locked --release --quiet
"$venv/bin/python" scripts/ci/check_tensorboard.py "$target/release/manyheads"
