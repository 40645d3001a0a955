#!/usr/bin/env bash
# fuzz.sh [SECONDS [TARGET...]]: libFuzzer on every fuzz target, or those named, for so long each (default 60). Wants the
# nightly toolchain. Inputs are kept in target/fuzz/corpus, what fails in target/fuzz/findings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/ci/common.sh
source tests/ci/common.sh

seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || die "fuzz.sh takes whole seconds, got: $seconds"
shift || true
cargo +nightly --version >/dev/null 2>&1 || die "no nightly toolchain; with rustup: rustup toolchain install nightly"
targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(basename -s .rs tests/fuzz/fuzz_targets/*.rs)

corpus=$TARGET/fuzz/corpus findings=$TARGET/fuzz/findings build=$TARGET/fuzz/build
mkdir -p "$findings"
cargo run --locked -p crossmesh-fuzz --bin crossmesh-fuzz-seeds -- "$corpus"

# What cargo-fuzz passes, without a sanitizer: what is fuzzed has no unsafe code.
flags="--cfg fuzzing -Cdebug-assertions -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags+=" -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-sanitizer-coverage-stack-depth"
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
# Build scripts are not instrumented when a target is named.
RUSTFLAGS=$flags CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=$build cargo +nightly build --release --locked --target "$host" \
  -p crossmesh-fuzz --features libfuzzer "${targets[@]/#/--bin=}"

failed=()
for target in "${targets[@]}"; do
  say "== $target"
  "$build/$host/release/$target" -max_total_time="$seconds" -max_len=8192 -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_funcs=0 \
    -print_final_stats=1 -artifact_prefix="$findings/$target-" "$corpus/$target" || failed+=("$target")
done
[ ${#failed[@]} = 0 ] || die "findings in ${failed[*]}: see $findings"
say "no findings"
