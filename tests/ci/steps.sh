# Sourced: named steps with times. A failing step does not stop the others; steps_close prints what ran and what
# did not, and returns 1 when anything failed.
# shellcheck shell=bash

STEP_LOGS=${STEP_LOGS:-$TARGET/steps}
# No step may hang the run; the slowest, a first build, needs a few minutes on two cores.
STEP_LIMIT=${STEP_LIMIT:-1500}
STEPS_RAN=()
STEPS_SKIPPED=()
STEPS_FAILED=0
STEP_PID=

# Ends the running step with the run.
step_interrupt() {
  [ -z "$STEP_PID" ] || kill "$STEP_PID" 2>/dev/null || true
  exit "$1"
}
trap 'step_interrupt 130' INT
trap 'step_interrupt 143' TERM

# step NAME COMMAND...: runs COMMAND (a program, not a function) without standard input and records how it ended.
step() {
  local name=$1 began=$SECONDS status=0 outcome=ok log shown
  shift
  mkdir -p "$STEP_LOGS"
  log=$STEP_LOGS/${name//[^A-Za-z0-9]/-}.log
  : >"$log"
  printf '\n== %s\n' "$name"
  # Through a file: what a step leaves behind by mistake can hold up neither this step nor the next. A background
  # command of a script would have interrupts switched off, which tests of signals would inherit.
  env --default-signal=INT,QUIT timeout -k 10 "$STEP_LIMIT" "$@" </dev/null >"$log" 2>&1 &
  STEP_PID=$!
  tail -n +1 -s 0.1 -f --pid="$STEP_PID" "$log" &
  shown=$!
  # Unlike a command in the foreground, wait ends when a signal for the run comes.
  wait "$STEP_PID" || status=$?
  wait "$shown" || true
  STEP_PID=
  if [ "$status" != 0 ]; then
    outcome="FAILED"
    [ "$status" != 124 ] || outcome="FAILED (not done after $STEP_LIMIT s)"
    STEPS_FAILED=$((STEPS_FAILED + 1))
    printf '== %s FAILED, exit code %s; its output is in %s\n' "$name" "$status" "$log"
  fi
  STEPS_RAN+=("$name|$outcome|$((SECONDS - began))")
}

# skip NAME REASON: records what cannot run here.
skip() { STEPS_SKIPPED+=("$1|$2"); }

# Prints records of |-separated fields as columns.
step_columns() {
  printf '%s\n' "$@" | awk -F'|' '
    { for (i = 1; i <= NF; i++) { cell[NR, i] = $i; if (length($i) > width[i]) width[i] = length($i) } fields[NR] = NF }
    END { for (r = 1; r <= NR; r++) { line = " "
      for (i = 1; i <= fields[r]; i++) line = line " " sprintf(i < fields[r] ? "%-" width[i] "s " : "%s", cell[r, i])
      print line } }'
}

steps_close() {
  printf '\n== ran\n'
  step_columns "step|outcome|seconds" "${STEPS_RAN[@]}"
  if [ ${#STEPS_SKIPPED[@]} -gt 0 ]; then
    printf '\n== not run\n'
    step_columns "step|why" "${STEPS_SKIPPED[@]}"
  fi
  printf '\n%d passed, %d failed, %d skipped\n' $((${#STEPS_RAN[@]} - STEPS_FAILED)) "$STEPS_FAILED" ${#STEPS_SKIPPED[@]}
  [ "$STEPS_FAILED" = 0 ] && [ ${#STEPS_RAN[@]} -gt 0 ]
}
