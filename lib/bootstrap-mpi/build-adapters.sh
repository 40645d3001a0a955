#!/usr/bin/env bash
# build-adapters.sh [PROFILE_DIR ...]: builds the MPI adapter for each MPI whose compiler is here and copies it beside the
# binaries, to target/release and, when present, target/debug (or to the folders given). Says what is missing.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
folders=("$@")
if [ ${#folders[@]} = 0 ]; then
  folders=("$target/release")
  if [ -d "$target/debug" ]; then folders+=("$target/debug"); fi
fi

built=0
build() { # NAME COMPILER PACKAGES
  local name=$1 compiler=$2 packages=$3 folder
  if ! command -v "$compiler" >/dev/null; then
    echo "no adapter for $name: $compiler is missing: apt install $packages libclang-dev clang pkg-config" >&2
    return 0
  fi
  MPICC=$compiler cargo build --release --manifest-path "$root/Cargo.toml" -p crossmesh-bootstrap-mpi --lib --target-dir "$target/$name"
  for folder in "${folders[@]}"; do
    mkdir -p "$folder"
    # A running program may have the old file mapped: replace it, never write into it.
    cp "$target/$name/release/libcrossmesh_bootstrap_mpi.so" "$folder/.libcrossmesh_bootstrap_$name.so.$$"
    mv "$folder/.libcrossmesh_bootstrap_$name.so.$$" "$folder/libcrossmesh_bootstrap_$name.so"
    echo "$folder/libcrossmesh_bootstrap_$name.so"
  done
  built=$((built + 1))
}

build openmpi mpicc.openmpi "libopenmpi-dev openmpi-bin"
build mpich mpicc.mpich "mpich libmpich-dev"
if [ $built = 0 ]; then exit 1; fi
