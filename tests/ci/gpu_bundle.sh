#!/usr/bin/env bash
# Stages what a machine with GPUs needs to run the GPU tests and benches without Rust: stripped binaries and scripts, in
# FOLDER (target/gpu-bundle), at most 40 MiB. There: bash run.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/ci/common.sh
source tests/ci/common.sh

MOST_KIB=$((40 << 10))
folder=${1:-$TARGET/gpu-bundle}

build() {
  cargo build --release --locked --bin crossmesh
  cargo test --release --locked --test gpu --no-run --message-format=json | python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line) if line.startswith("{") else {}
    if message.get("executable") and message["target"]["name"] == "gpu":
        print(message["executable"])'
}

tests=$(build)
mkdir -p "$folder"
install -m 755 "$CROSSMESH" "$folder/crossmesh"
install -m 755 "$tests" "$folder/gpu-tests"
strip "$folder/crossmesh" "$folder/gpu-tests"
install -m 755 tests/gpu/run.sh "$folder/run.sh"
install -m 644 tests/gpu/nccl.py "$folder/nccl.py"
size=$(du -sk "$folder" | cut -f 1)
[ "$size" -le "$MOST_KIB" ] || die "the bundle in $folder has $size KiB, more than $MOST_KIB"
say "$folder: $size KiB; on the machine with GPUs: bash run.sh"
