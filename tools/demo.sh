#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Three programs share one GPU, under a daemon of their own: tools/demo.sh [FOLDER]
#
# FOLDER is what `tools/build.sh demo` has filled (build/demo), or dist, the default.
#
# Uses the machine's GPU if it has one with a driver, else the simulated one; GPUMUX_DEMO=real or simulated decides.
# Touches nothing outside a temporary folder, and leaves nothing running.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dist=$(realpath "${1:-dist}")
program=$dist/demo/gpumux_demo
seconds=${GPUMUX_DEMO_SECONDS:-8}
for file in "$dist/bin/gpumux" "$dist/bin/gpumuxd" "$dist/lib/libgpumux.so" "$program"; do
  [ -x "$file" ] || { echo "demo: $file is missing; run make demo" >&2; exit 1; }
done

has_gpu() { [ -e /dev/nvidiactl ] && /sbin/ldconfig -p | grep -q 'libcuda\.so\.1 '; }
kind=${GPUMUX_DEMO:-}
if [ -z "$kind" ]; then if has_gpu; then kind=real; else kind=simulated; fi; fi

folder=$(mktemp -d /tmp/gpumux-demo.XXXXXX)
started=()
cleanup() {
  local pid
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${started[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# The user's variables name the user's own files and job queue. Only these two are meant for the demo's daemon.
for variable in "${!GPUMUX_@}"; do
  case $variable in
    GPUMUX_MODE | GPUMUX_QUANTUM) ;;
    *) unset "$variable" ;;
  esac
done
export PATH=$dist/bin:$PATH GPUMUX_RUNTIME_DIR=$folder/run XDG_STATE_HOME=$folder/state
mkdir -m 700 "$folder/run"
: >"$folder/gpumux.toml" # instead of the user's configuration file
case $kind in
  simulated)
    # A machine of its own, so that nothing else on this one takes part.
    export LD_LIBRARY_PATH=$dist/sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export GPUMUX_SIM_DIR=$folder/machine GPUMUX_SIM_GPUS=1
    size=(--elements 1048576 --launches 10)
    echo "No NVIDIA GPU and driver here: using the simulated GPU."
    ;;
  real)
    size=(--elements 16777216 --launches 50)
    echo "Using this machine's GPU:"
    ;;
  *)
    echo "demo: GPUMUX_DEMO can be real or simulated, not $kind" >&2
    exit 2
    ;;
esac

# Quanta that a person can follow; left alone, gpumux chooses them from what a switch costs.
GPUMUX_MODE=${GPUMUX_MODE:-serial} GPUMUX_QUANTUM=${GPUMUX_QUANTUM:-200ms} \
  gpumuxd --private --config "$folder/gpumux.toml" --state-dir "$folder/state/queue" >"$folder/daemon.log" 2>&1 &
started+=($!)
daemon=$!
deadline=$((SECONDS + 60))
until gpumux status --json >/dev/null 2>&1; do
  if ! kill -0 "$daemon" 2>/dev/null || [ "$SECONDS" -gt "$deadline" ]; then
    echo "demo: the daemon does not serve:" >&2
    cat "$folder/daemon.log" >&2
    exit 1
  fi
  sleep 0.05
done
python3 - <(gpumux status --json) <<'PYTHON'
import json, sys
gpu = json.load(open(sys.argv[1]))["gpus"][0]
print(f"  GPU {gpu['index']}: {gpu['name']}, {gpu['memory_total_bytes'] / 2**30:.0f} GiB, {gpu['uuid']}")
PYTHON
echo
echo "alpha and beta compute without a pause; gamma asks for the GPU now and then. Each turn as it ends:"
echo

names=()
pids=()
run() {
  local name=$1
  shift
  gpumux run --name "$name" -- "$program" "${size[@]}" "$@" >"$folder/$name.out" 2>&1 &
  started+=($!)
  pids+=($!)
  names+=("$name")
}
begin=$(date +%s%N)
run alpha --seed 1 --seconds "$seconds"
run beta --seed 2 --seconds "$seconds"
run gamma --seed 3 --seconds "$seconds" --pause-ms 100

: >"$folder/trace"
gpumux trace --follow --since 0 --json >"$folder/trace" &
tracer=$!
started+=("$tracer")
mapping=()
for i in "${!pids[@]}"; do mapping+=(--name "${pids[$i]}=${names[$i]}"); done
tail -n +1 --pid="$tracer" -s 0.1 -f "$folder/trace" | python3 tools/demo_view.py "${mapping[@]}" &
view=$!
started+=("$view")

failed=0
results=()
for i in "${!pids[@]}"; do
  status=0
  wait "${pids[$i]}" || status=$?
  words=$(tail -n 1 "$folder/${names[$i]}.out")
  if [ "$status" != 0 ]; then
    failed=1
    words="$words (exit status $status)"
  fi
  results+=("$(printf '%-10s %s' "${names[$i]}" "$words")")
done
end=$(date +%s%N)
gpumux status --json >"$folder/status"
kill "$tracer" 2>/dev/null || true
wait "$tracer" 2>/dev/null || true
wait "$view" 2>/dev/null || true

echo
gpumux trace --picture --gpu 0
echo
printf '%s\n' "${results[@]}"
python3 - "$folder/status" $((end - begin)) "$kind" <<'PYTHON'
import json, sys
gpu, wall = json.load(open(sys.argv[1]))["gpus"][0], int(sys.argv[2])
print(f"\nThe {sys.argv[3]} GPU changed hands {gpu['switches']} times and was in use "
      f"{100 * gpu['held_ns'] / wall:.0f} % of {wall / 1e9:.1f} s.")
PYTHON
if [ "$failed" != 0 ]; then
  echo "demo: a program failed; its words are above, the daemon's last ones are:" >&2
  tail -n 5 "$folder/daemon.log" >&2
  exit 1
fi
