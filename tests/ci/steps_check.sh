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
step later true >/dev/null
[ "$(close_status)" = 1 ] || die "a run with failures passed"
report=$(steps_close || true)
expect "bad run" "$report" "2 passed, 2 failed, 1 skipped"
expect "bad run" "$report" "  absent  no such device"
[ "$(cat "$STEP_LOGS/bad-one.log")" = cause ] || die "the output of a failed step is not kept"
grep -q '^  slow .*FAILED (not done after 1 s)' <<<"$report" || die "a hanging step was not named: $report"
say "the step runner counts, goes on and fails as it should"
