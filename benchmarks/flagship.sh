#!/bin/bash
# Starts the flagship on a machine that has torch and no network, or goes on with it.
#
#     bash benchmarks/flagship.sh SECONDS OUT [LADDER] [flagship.py's words ...]
#
# SECONDS: all that this command may take, installing included. LADDER: a folder of the ladder's tasks; or one with
# packages.txt, whose tasks appear beside pretraining: those of ladder.tar.xz (benchmarks/learning/carry_ladder.py packs
# it), and those that are made there (flagship_ladder.sh), in $LADDER_SECONDS (420); "" for katas alone. Wheels of what
# is missing lie in .wheels.
# FLAGSHIP_WORK says where the runs lie. FLAGSHIP_STUDIES=1 runs arms of a study on the idle cores of this command
# (flagship_studies.sh) and puts their results into OUT; not for the command that does reinforcement learning.
set -u
began=$SECONDS
cd "$(dirname "$0")/.." || exit 1
until=$1 out=$2 ladder=${3:-}
shift $(( $# < 3 ? $# : 3 ))
work=${FLAGSHIP_WORK:-runs/flagship}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$work" "$out"

bash benchmarks/install_wheels.sh
words=()
if [ -f "$ladder/packages.txt" ]; then
    held_out=$(awk '$2 == "held_out" { print $1 }' "$ladder/packages.txt" | paste -sd,)
    words=(--ladder "$work/ladder" --held-out "$held_out")
    if [ -d "$work/ladder" ]; then
        echo "the ladder is there"
    else
        mkdir -p "$work/ladder"
        if [ -f "$ladder/ladder.tar.xz" ]; then
            python benchmarks/learning/carry_ladder.py unpack "$ladder/ladder.tar.xz" "$work/ladder" > "$out/unpack.log" 2>&1 &
        fi
        bash benchmarks/flagship_ladder.sh "${LADDER_SECONDS:-420}" "$ladder" "$work/ladder" > "$out/ladder.log" 2>&1 &
    fi
elif [ -d "$ladder" ]; then
    words=(--ladder "$ladder")
elif [ -n "$ladder" ]; then  # not katas alone instead: that would be another run than the one asked for
    echo "there is no ladder in $ladder; give a folder, an archive, or \"\" for katas alone" >&2
    exit 1
else
    echo "no ladder: katas alone"
fi
left=$(( until - (SECONDS - began) ))
if [ -n "${FLAGSHIP_STUDIES:-}" ]; then
    setsid bash benchmarks/flagship_studies.sh $(( left - 10 )) "$work/studies" > "$out/studies.log" 2>&1 &
    studies=$!
fi
python benchmarks/flagship.py --work "$work" --out "$out" --until "$left" "${words[@]}" "$@"
status=$?
if [ -n "${studies:-}" ]; then
    kill -TERM -- "-$studies" 2>/dev/null  # what it began goes on with the next command
    wait "$studies" 2>/dev/null
    cp "$work"/studies/results.json "$out/studies.json" 2>/dev/null
    tail -n 20 "$out/studies.log"
fi
exit $status
