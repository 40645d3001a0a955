#!/usr/bin/env bash
# Set-up for building, the release build, and the adapter libraries for each MPI and for hwloc where they are here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/ci/common.sh
source tests/ci/common.sh

bash tests/ci/setup.sh build
cargo build --release --locked
if [ -n "$(mpis)" ]; then
  bash lib/bootstrap-mpi/build-adapters.sh
else
  warn "no MPI found (mpicc.openmpi, mpicc.mpich); crossmesh can start ranks without it: crossmesh run --starter local"
fi
if pkg-config --exists hwloc 2>/dev/null; then
  cargo build --release --locked -p crossmesh-topology-hwloc
else
  warn "no hwloc (libhwloc-dev); crossmesh reads topologies from /sys alone"
fi
