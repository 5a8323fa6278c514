#!/bin/bash
# Makes the ladder's first rung from a folder of packages, without a network: a process for each package, all cores.
#
#     bash benchmarks/flagship_ladder.sh SECONDS PACKAGES TASKS
#
# PACKAGES has packages.txt (lines of NAME, train or held_out, and how many tasks; 0: they are there already),
# repositories.tar.xz (the store's folder of sources, so that the versions are fixed) and wheels of what they need. What
# is made by then stays.
set -u
began=$SECONDS
cd "$(dirname "$0")/.." || exit 1
until=$1 packages=$(realpath "$2") tasks=$3
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1
store=$(python -c "from etude.sandbox.store.layers import default_store; print(default_store())")
mkdir -p "$store/repositories" "$tasks"
tar -xJf "$packages/repositories.tar.xz" -C "$store/repositories"

one() {  # NAME SIDE COUNT
    words=("$1" --out "$tasks" --rungs 1 --count "$3" --workers 3 --find-links "$packages" --json)
    [ "$2" = held_out ] && words+=(--held-out "$1")
    timeout -k 10 "$(( until - SECONDS + began ))" nice -n 10 python -m etude tasks ladder "${words[@]}" > "$tasks/$1.log" 2>&1
    echo "$1: $(find "$tasks/$1" -maxdepth 1 -name "*-rung1-*" 2>/dev/null | wc -l) tasks after $(( SECONDS - began )) s"
}
while read -r name side count; do
    [ "$count" -gt 0 ] && one "$name" "$side" "$count" &
done < "$packages/packages.txt"
wait
