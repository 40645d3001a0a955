#!/usr/bin/env bash
# GPU tests that need no kernels, over a driver that stands in for two GPUs. Needs no GPU; NVRTC as tests/ci/kernels.sh keeps it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/ci/common.sh
source tests/ci/common.sh

folder=$TARGET/stand-in
mkdir -p "$folder"
# Kernels are kept from run to run; what an earlier build found about links is not.
rm -rf "$KERNEL_CACHE"/{order,links}-*.json
cc -O1 -shared -fPIC -Wall -Wextra -o "$folder/libcuda.so" tests/gpu/stand_in.c
CROSSMESH_NVRTC=$(find "$TARGET" -maxdepth 5 -path '*nvrtc-*' -name 'libnvrtc.so.1*' | head -n 1)
export CROSSMESH_NVRTC CROSSMESH_CACHE=$KERNEL_CACHE LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export CROSSMESH_TEST_BIN=$CROSSMESH
cargo build --release --locked --bin crossmesh
cargo test "${WORKSPACE[@]}" --test gpu -- --stand-in --require
