# Sourced by every script here, from the repository's root: messages, paths, what the machine has.
# shellcheck shell=bash disable=SC2034 # the names are for those who source this

TARGET=${CARGO_TARGET_DIR:-target}
# Scripts that run elsewhere (batch jobs, emulated hosts) need it absolute.
[[ $TARGET == /* ]] || TARGET=$PWD/$TARGET
CROSSMESH=$TARGET/release/crossmesh
# Kernels that kernels.sh has compiled.
KERNEL_CACHE=$TARGET/kernels
# The package that needs an MPI to build; left out of workspace-wide commands where there is none.
ADAPTER_PACKAGE=crossmesh-bootstrap-mpi

say() { printf '%s\n' "$*"; }
warn() { printf 'x: %s\n' "$*" >&2; }
die() {
  warn "$*"
  exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# The MPIs whose compiler wrapper and starter are here, by the names of Debian's alternatives.
mpis() {
  local mpi
  for mpi in openmpi mpich; do
    if have "mpicc.$mpi" && have "mpirun.$mpi"; then echo "$mpi"; fi
  done
}

# What this machine can build. Tests are compiled in this selection alone: another has other features, and so everything again.
WORKSPACE=(--workspace --locked)
[ -n "$(mpis)" ] && have clang || WORKSPACE+=(--exclude "$ADAPTER_PACKAGE")

# A Chromium for the test of pages, by any of its names; Debian has it as chromium.
browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }

# Whether this user may make network namespaces.
can_make_hosts() {
  [ "$(id -u)" = 0 ] && have ip && have nsenter && unshare --net --uts --ipc --mount true 2>/dev/null
}

# Where daemons and ip are, which not every user's PATH has.
PATH=$PATH:/usr/sbin:/sbin
# rustup's place, for shells that have not read its profile.
have cargo || PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
