#!/usr/bin/env bash
# Set-up, then every test that this machine can run. Closes with what ran and what did not and why.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/ci/common.sh
source tests/ci/common.sh
# shellcheck source=tests/ci/steps.sh
source tests/ci/steps.sh

# What would make a second compilation quicker makes the only one slower.
export CARGO_INCREMENTAL=0
# The binary that tests start; the release build serves the tests, the jobs and the demo.
export CROSSMESH_TEST_BIN=$CROSSMESH

source_steps() {
  step "format" cargo fmt --all --check
  step "step runner" bash tests/ci/steps_check.sh
  step "report" python3 tests/ci/report_check.py
  if have shellcheck; then
    step "shell scripts" bash tests/ci/scripts.sh
  else
    skip "shell scripts" "shellcheck is not installed"
  fi
  step "lints" cargo clippy "${WORKSPACE[@]}" --all-targets -- -D warnings
  step "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc "${WORKSPACE[@]}" --no-deps
}

rust_steps() {
  step "build" bash tests/ci/build.sh
  step "layering" cargo test "${WORKSPACE[@]}" --test integration layering::
  if cargo nextest --version >/dev/null 2>&1; then
    step "unit and integration tests" cargo nextest run "${WORKSPACE[@]}" --no-fail-fast
    step "examples in the documentation" cargo test "${WORKSPACE[@]}" --doc
  else
    step "unit, integration and documentation tests" cargo test "${WORKSPACE[@]}" --no-fail-fast
  fi
  if cargo +nightly miri --version >/dev/null 2>&1; then
    step "undefined behaviour (Miri)" env MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p crossmesh --lib base::
  else
    skip "undefined behaviour (Miri)" "no nightly toolchain with the miri component"
  fi
}

job_steps() {
  local mpi
  for mpi in openmpi mpich; do
    if mpis | grep -qx "$mpi"; then
      step "jobs over MPI: $mpi" bash tests/ci/mpi.sh "$mpi"
    else
      skip "jobs over MPI: $mpi" "mpicc.$mpi or mpirun.$mpi is missing"
    fi
  done
  step "bench" python3 tests/ci/bench_check.py
  if browser >/dev/null; then
    step "page of a plan" python3 tests/ci/plan_page.py
  else
    skip "page of a plan" "no Chromium (apt-get install chromium)"
  fi
  host_steps
  if [ "${CROSSMESH_TEST_LARGE:-}" = 1 ]; then
    step "a tensor over 4 GiB" bash tests/ci/large.sh
  else
    skip "a tensor over 4 GiB" "takes 24 GiB of memory: set CROSSMESH_TEST_LARGE=1"
  fi
}

# Slurm's daemons want root; hosts of their own want namespaces as well.
host_steps() {
  local slurm_missing=""
  have slurmctld && have slurmd && have munged || slurm_missing="slurmctld, slurmd or munged is missing"
  [ "$(id -u)" = 0 ] || slurm_missing=${slurm_missing:-needs root}
  if can_make_hosts; then
    step "emulated hosts" bash tests/rig/hosts_check.sh
    if mpis | grep -qx openmpi; then
      step "refit between two hosts" bash tests/ci/two_hosts.sh
    else
      skip "refit between two hosts" "Open MPI is missing"
    fi
  else
    skip "emulated hosts" "needs root, iproute2, util-linux and the right to make namespaces"
    skip "refit between two hosts" "needs root, iproute2, util-linux and the right to make namespaces"
  fi
  if [ -n "$slurm_missing" ]; then
    skip "Slurm batch" "$slurm_missing"
  else
    step "Slurm batch" bash tests/slurm/batch.sh
  fi
}

device_steps() {
  local rdma="verbs are not supported yet"
  if python3 -m pip --version >/dev/null 2>&1; then
    step "GPU kernels" bash tests/ci/kernels.sh
    step "GPU tests, stand-in driver" bash tests/ci/stand_in.sh
    unshare --uts --ipc true 2>/dev/null || skip "GPU tests on two emulated hosts" "needs the right to make namespaces"
  else
    skip "GPU kernels" "pip is missing, which fetches their compiler"
    skip "GPU tests, stand-in driver" "pip is missing, which fetches the compiler"
  fi
  if [ -e /proc/driver/nvidia/version ]; then
    step "GPU tests" bash tests/ci/gpu.sh
  else
    skip "GPU tests" "no NVIDIA driver"
  fi
  [ -n "$(ls /sys/class/infiniband 2>/dev/null)" ] || rdma="no verbs device"
  skip "RDMA tests" "$rdma"
}

# A failed set-up is a failed step; what can run still runs.
step "set-up" bash tests/ci/setup.sh all
missing=$(bash tests/ci/setup.sh missing | paste -sd ' ')
[ -z "$missing" ] || skip "what needs these packages" "could not be installed: $missing"
# What this machine can build is known once the set-up has run.
# shellcheck source=tests/ci/common.sh
source tests/ci/common.sh
source_steps
rust_steps
job_steps
device_steps
steps_close
