#!/usr/bin/env bash
# run.sh [FOLDER]: runs the bundle that `./x gpu-bundle` staged, on a machine with GPUs: facts, all GPU tests and benches,
# then the same bytes by NCCL where PyTorch is here. Results go to FOLDER (./results). Exits 1 when anything is wrong.
set -euo pipefail
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=${1:-$bundle/results}
mkdir -p "$results"

# NVRTC where the loader does not look: the toolkit, or the wheel of the Python that is in use.
find_compiler() {
  local candidate
  [ -z "${CROSSMESH_NVRTC:-}" ] || return 0
  ldconfig -p | grep -q 'libnvrtc\.so' && return 0
  for candidate in /usr/local/cuda*/lib64/libnvrtc.so.1[23] \
    "$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null)"/nvidia/*/lib/libnvrtc.so.1[23]; do
    if [ -e "$candidate" ]; then
      export CROSSMESH_NVRTC=$candidate
      return 0
    fi
  done
}

find_compiler
export CROSSMESH_TEST_BIN=$bundle/crossmesh
status=0
nvidia-smi --query-gpu=name,uuid,driver_version,pci.bus_id --format=csv || true
timeout 420 "$bundle/gpu-tests" --require --json "$results/gpu.json" 2>&1 | tee "$results/gpu.txt" || status=1
if python3 -c 'import torch' 2>/dev/null; then
  timeout 90 python3 "$bundle/nccl.py" 2>&1 | tee "$results/nccl.txt" || status=1
else
  echo "NCCL not measured: no PyTorch"
fi
exit $status
