#!/usr/bin/env bash
# Checks the step runner itself: a failure is counted, does not stop what follows, and fails the whole.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/ci/common.sh
source tests/ci/common.sh

STEP_LOGS=$(mktemp -d)
trap 'rm -rf "$STEP_LOGS"' EXIT
# shellcheck source=tests/ci/steps.sh
source tests/ci/steps.sh

expect() {
  local what=$1 text=$2 wanted=$3
  grep -qxF -- "$wanted" <<<"$text" || die "$what: no line '$wanted' in:
$text"
}

close_status() {
  local status=0
  steps_close >/dev/null || status=$?
  echo "$status"
}

[ "$(close_status)" = 1 ] || die "a run without any step passed"
step good true >/dev/null
skip absent "no such device"
[ "$(close_status)" = 0 ] || die "a good run failed"
expect "good run" "$(steps_close)" "1 passed, 0 failed, 1 skipped"

step "bad one" sh -c 'echo cause; exit 7' >/dev/null
STEP_LIMIT=1 step slow sleep 20 >/dev/null
began=$SECONDS
step leaky sh -c 'sleep 20 & echo left behind' >"$STEP_LOGS/shown"
[ $((SECONDS - began)) -lt 10 ] || die "a process that a step left behind held up the run"
grep -qx "left behind" "$STEP_LOGS/shown" || die "the output of a step is not shown"
step later true >/dev/null
[ "$(close_status)" = 1 ] || die "a run with failures passed"
report=$(steps_close || true)
expect "bad run" "$report" "3 passed, 2 failed, 1 skipped"
expect "bad run" "$report" "  absent  no such device"
[ "$(cat "$STEP_LOGS/bad-one.log")" = cause ] || die "the output of a failed step is not kept"
grep -q '^  slow .*FAILED (not done after 1 s)' <<<"$report" || die "a hanging step was not named: $report"

# An interrupted run ends its step.
bash -c 'TARGET=$1 STEP_LOGS=$1; source tests/ci/steps.sh; step long sleep 300' bash "$STEP_LOGS" >/dev/null &
run=$!
sleep 1
children() { cat "/proc/$1/task/$1/children" 2>/dev/null || true; }
read -ra parts <<<"$(children "$run")"
[ ${#parts[@]} -gt 0 ] || die "the step of the run to be interrupted did not start"
began=$SECONDS
kill -TERM "$run"
status=0
wait "$run" || status=$?
[ "$status" = 143 ] || die "an interrupted run ended with $status"
[ $((SECONDS - began)) -lt 10 ] || die "an interrupted run went on for $((SECONDS - began)) s"
for part in "${parts[@]}"; do
  for _ in $(seq 50); do
    grep -qs '^State:[[:space:]]*[^Z[:space:]]' "/proc/$part/status" || break
    sleep 0.1
  done
  if grep -qs '^State:[[:space:]]*[^Z[:space:]]' "/proc/$part/status"; then die "an interrupted run left its step running"; fi
done
say "the step runner counts, goes on and fails as it should"
