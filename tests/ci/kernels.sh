#!/usr/bin/env bash
# Compiles every GPU kernel for every architecture it is written for, checks registers and spills. Needs no GPU: the
# compiler is a Python wheel, kept under the target folder, as the kernels are for stand_in.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/ci/common.sh
source tests/ci/common.sh

VERSION=13.0.88
wheel=$TARGET/nvrtc-$VERSION
if [ ! -e "$wheel/nvidia" ]; then
  python3 -m pip install --quiet --no-deps --target "$wheel.new" "nvidia-cuda-nvrtc==$VERSION"
  mv "$wheel.new" "$wheel"
fi
CROSSMESH_NVRTC=$(find "$wheel" -name 'libnvrtc.so.1*' | head -n 1)
export CROSSMESH_NVRTC CROSSMESH_CACHE=$KERNEL_CACHE KERNELS_MUST_COMPILE=1
cargo test "${WORKSPACE[@]}" --test integration kernels:: -- --nocapture
