#!/usr/bin/env bash
# setup.sh [build|all|missing]: installs the Debian or Ubuntu packages that are missing and checks the Rust toolchain.
# build: what building and the demo need; all (the default): what the tests need besides; missing: only prints what is
# not there.
# Quick when nothing is missing. Where packages cannot be installed it names them and goes on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/ci/common.sh
source tests/ci/common.sh

BUILD_PACKAGES=(pkg-config clang libclang-dev libhwloc-dev libudev-dev libopenmpi-dev openmpi-bin mpich libmpich-dev)
TEST_PACKAGES=(slurm-wlm slurm-wlm-basic-plugins munge iproute2 util-linux shellcheck)
# Packages that another source may stand in for: the package, and the command that shows it is not needed.
BUILD_COMMANDS=(build-essential:cc python3:python3)

# Prints those of the given packages that dpkg does not have installed.
not_installed() {
  local installed
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null | awk '$2 == "installed" {print $1}') || true
  printf '%s\n' "$@" | grep -vxF "${installed:-none}" || true
}

missing_packages() {
  local pair packages=("${BUILD_PACKAGES[@]}")
  [ "$1" = build ] || packages+=("${TEST_PACKAGES[@]}")
  for pair in "${BUILD_COMMANDS[@]}"; do
    have "${pair#*:}" || echo "${pair%%:*}"
  done
  # Any browser of the kind will do.
  [ "$1" = build ] || browser >/dev/null || echo chromium
  python3 -m pip --version >/dev/null 2>&1 || echo python3-pip
  not_installed "${packages[@]}"
}

# Runs apt-get as root, or through sudo.
apt() {
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    as_root=(sudo)
    [ -t 0 ] || as_root+=(-n)
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@"
}

# Installs what it can; the packages that fail together are tried one by one, so that one unknown name costs only itself.
install() {
  local log package
  say "setup: installing $*"
  apt update >/dev/null || warn "apt-get update failed; trying with the lists as they are"
  log=$(mktemp --tmpdir crossmesh-apt.XXXXXX)
  apt install -y --no-install-recommends "$@" >"$log" 2>&1 || for package in "$@"; do
    apt install -y --no-install-recommends "$package" >"$log" 2>&1 || tail -n 5 "$log" >&2
  done
  rm "$log"
}

packages() {
  local missing
  if ! have dpkg-query || ! have apt-get; then
    warn "this is no Debian or Ubuntu; going on with what is here"
    return
  fi
  mapfile -t missing < <(missing_packages "$1")
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" = 0 ] || have sudo; then
    install "${missing[@]}"
    mapfile -t missing < <(missing_packages "$1")
  fi
  [ ${#missing[@]} = 0 ] || warn "going on without these packages; as root: apt-get install ${missing[*]}"
}

toolchain() {
  local needed found
  needed=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
  have cargo || die "no cargo; install rustup (apt-get install rustup on Ubuntu 24.04, else rustup's own installer), then: rustup toolchain install stable"
  found=$(cargo --version | awk '{print $2}')
  if [ "$(printf '%s\n' "$needed" "$found" | sort -V | head -n 1)" != "$needed" ]; then
    die "cargo is $found, $needed or newer is needed; with rustup: rustup toolchain install stable && rustup default stable"
  fi
}

case "${1:-all}" in
  missing) ! have dpkg-query || missing_packages all ;;
  build | all)
    packages "${1:-all}"
    toolchain
    ;;
  *) die "setup.sh takes build, all or missing, got: $1" ;;
esac
