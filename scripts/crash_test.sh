#!/bin/sh
# Kills a small run KILLS (1000) times with SIGKILL at random moments, a third of them while a checkpoint is being written, and resumes it.
# After every kill all visible checkpoints are read and compared with their hashes; each time a run has come to its end, its weights, their
# average, the optimizer's state, the metrics, TensorBoard's events and the summary must be those of the run that nobody killed.
#
#     scripts/crash_test.sh [KILLS]
#
# CARGO_FLAGS (--no-default-features --features flex) is how the program is built.
set -eu
cd "$(dirname "$0")/.."
# shellcheck disable=SC2086
MANYHEADS_KILLS=${1:-1000} cargo test --release -p manyheads ${CARGO_FLAGS:---no-default-features --features flex} --test crashes \
    killed_at_random_moments -- --nocapture
