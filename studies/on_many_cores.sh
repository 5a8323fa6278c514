#!/bin/bash
# Runs studies on a machine that has torch, no network and a limit to the time of one command.
#
#     bash studies/on_many_cores.sh SECONDS OUT [run_many.py's words ...]
#
# The first call starts studies/run_many.py apart from this command; each call waits for SECONDS, or until it has ended,
# and copies its results and logs to OUT. So give the same line again until it says that it has ended; the line after that
# begins with what is left. Wheels of what is missing lie in .wheels. STUDY_RUNS says where bases and results lie
# (runs/studies).
#
#     bash studies/on_many_cores.sh 570 OUT --cores 4-15 --bases 8 --bases-set run.device=cuda --minutes 26
set -u
began=$SECONDS
cd "$(dirname "$0")/.." || exit 1
until=$1 out=$2
shift 2
runs=${STUDY_RUNS:-runs/studies}
kept=$runs/out
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$kept" "$out"

bash benchmarks/install_wheels.sh
if ! [ -f "$kept/pid" ]; then
    setsid nohup python studies/run_many.py --runs "$runs" --results "$kept" "$@" > "$kept/said" 2>&1 < /dev/null &
    echo $! > "$kept/pid"
fi
pid=$(cat "$kept/pid")
while [ $(( SECONDS - began )) -lt "$until" ] && kill -0 "$pid" 2>/dev/null; do sleep 1; done
cp "$kept/results.json" "$kept/log" "$out/" 2>/dev/null
tar -czf "$out/logs.tar.gz" -C "$kept" logs said 2>/dev/null
tail -n 40 "$kept/said"
if kill -0 "$pid" 2>/dev/null; then
    echo "still running; give the same line again"
else
    rm "$kept/pid"  # so that the next line, this one or another, begins again with what is left
    echo "ended"
fi
