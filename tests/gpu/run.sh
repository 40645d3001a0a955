#!/usr/bin/env bash
# run.sh [STEP...]: runs the bundle that `./x gpu-bundle` staged, on a machine with GPUs: facts, then the steps, all where none
# is named: tests (of transfers and collectives, and benches of transfers), nccl (the bytes of those transfers by NCCL, where
# PyTorch is here), allreduce (benches of collectives, beside NCCL and PyTorch where it is here). By name only: tune (a tuning table of this machine), fabric
# (memory of GPUs mapped by fabric handles, by $RANKS ranks, 2 or 8, over the hosts of the allocation that this runs in). A
# further step is a function step_NAME below, named in STEPS. Results go to $RESULTS (./results). Exits 1 when anything is wrong.
set -euo pipefail
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=${RESULTS:-$bundle/results}
STEPS=(tests nccl allreduce)
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

step_tests() {
  timeout 460 "$bundle/gpu-tests" --require --json "$results/gpu.json" 2>&1 | tee "$results/gpu.txt"
}

step_nccl() {
  if python3 -c 'import torch' 2>/dev/null; then
    timeout 90 python3 "$bundle/nccl.py" 2>&1 | tee "$results/nccl.txt"
  else
    echo "NCCL not measured: no PyTorch"
  fi
}

# bench NAME ARGUMENT...: `crossmesh bench` on two ranks; its table and JSON go to NAME.txt and NAME.json.
bench() {
  local name=$1
  shift
  echo "== crossmesh bench $*"
  timeout 120 "$bundle/crossmesh" run --starter local -n 2 --prefix never -- \
    "$bundle/crossmesh" bench "$@" --json "$results/$name.json" 2>&1 | tee "$results/$name.txt"
}

step_allreduce() {
  local wrong=0 against=() bf16=(-d bfloat16 -R 1)
  if python3 -c 'import torch' 2>/dev/null; then
    against=(--against "nccl,torch")
  else
    echo "neither NCCL nor PyTorch measured: no PyTorch"
  fi
  bench limits limits || wrong=1
  bench allreduce allreduce -b 16 -e 256M --modes graph "${bf16[@]}" "${against[@]}" || wrong=1
  bench allreduce-forms allreduce -b 8K -e 8M -f 32 --l2 warm,cold "${bf16[@]}" "${against[@]}" || wrong=1
  for kind in all_gather reduce_scatter broadcast; do
    bench "$kind" "$kind" -b 1K -e 64M -f 16 --modes graph "${bf16[@]}" "${against[@]}" || wrong=1
  done
  bench norm norm -b 16K -e 1M --modes graph -d bfloat16 "${against[@]}" || wrong=1
  bench crossover crossover --svg "$results/crossover.svg" || wrong=1
  return "$wrong"
}

# Measures this machine's tuning table anew; by name only, since it takes minutes.
step_tune() {
  timeout 300 "$bundle/crossmesh" run --starter local -n 2 --prefix never -- "$bundle/crossmesh" tune \
    --output "$results/tuning.json" 2>&1 | tee "$results/tuning.txt"
}

# Tensors, the test of links, and buffers of a channel; on one host with CROSSMESH_GPU_HANDLES=fabric.
step_fabric() {
  local wrong=0
  timeout 300 "$bundle/crossmesh" run -n "${RANKS:-8}" --prefix never -- "$bundle/gpu-tests" rank fabric by-fabric links channel 2>&1 |
    tee "$results/fabric.txt" || wrong=1
  [ "$(grep -c '"passed":true' "$results/fabric.txt")" = 3 ] || wrong=1
  return "$wrong"
}

[ $# -gt 0 ] || set -- "${STEPS[@]}"
for step in "$@"; do
  if ! declare -F "step_$step" >/dev/null; then
    echo "run.sh: no step '$step'; allowed: ${STEPS[*]}" >&2
    exit 2
  fi
done
find_compiler
export CROSSMESH_TEST_BIN=$bundle/crossmesh
status=0
nvidia-smi --query-gpu=name,uuid,driver_version,pci.bus_id --format=csv || true
for step in "$@"; do
  "step_$step" || status=1
done
exit $status
