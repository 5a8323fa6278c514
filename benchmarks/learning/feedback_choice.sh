#!/bin/bash
# Starts the choice and comparison of feedback's settings on a machine that has torch and no network, apart from this shell.
#
#     bash benchmarks/learning/feedback_choice.sh MINUTES CORES [feedback_choice.py's words ...]
#
# CORES as `taskset -c` takes them, two for each arm: 10-15. Wheels of what is missing lie in .wheels. It returns at
# once; results and logs are in $FEEDBACK_OUT (runs/feedback-choice), and may be copied from there at any time.
set -u
cd "$(dirname "$0")/../.." || exit 1
minutes=$1 cores=$2
shift 2
out=${FEEDBACK_OUT:-runs/feedback-choice}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1
mkdir -p "$out"

bash benchmarks/install_wheels.sh
setsid nohup taskset -c "$cores" python benchmarks/learning/feedback_choice.py all --out "$out" --minutes "$minutes" "$@" \
    >> "$out/log" 2>&1 < /dev/null &
echo "begun: $out/log"
