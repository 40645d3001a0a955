#!/usr/bin/env bash
# A tensor of a little more than 4 GiB, unevenly cut, between two domains; wants 20 GiB of free memory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/ci/common.sh
source tests/ci/common.sh

NEEDED_KIB=$((20 << 20))
available=$(awk '$1 == "MemAvailable:" {print $2}' /proc/meminfo)
[ "$available" -ge $NEEDED_KIB ] || die "$((available >> 20)) GiB of memory are available, 20 GiB are needed"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# 1048577 rows of 2048 two-byte elements: 4 GiB and one row.
echo '{"lm_head.weight": {"shape": [1048577, 2048], "dtype": "BF16", "shard": "model-00001-of-00001.safetensors"}}' \
  >"$folder/large.model.json"
timeout -k 10 900 "$CROSSMESH" run -n 4 --domains 2 -- "$CROSSMESH" refit "$folder/large.model.json" \
  --src tp=2 --dst tp=2 --verify --json "$folder/hierarchical.json"
python3 slurm/report.py --folder "$folder" --ranks 4 hierarchical | tee "$folder/report"
grep -qx '1 tensors, 4294971392 bytes, bit-exact on 4 ranks' "$folder/report"
