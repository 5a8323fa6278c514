#!/bin/bash
# The arms of the study rl-against-sft on cores that pretraining leaves idle: two cores each, six at a time.
#
#     bash benchmarks/flagship_studies.sh SECONDS OUT [KEY=VALUE ...]
#
# SECONDS: all that it may take. Models that the arms start from are made first, on the GPU, unless they lie in
# $STUDY_RUNS (runs/studies); arms begin after $STUDY_WAIT seconds. What is not done in time goes on with the next
# command. KEY=VALUE tries it smaller.
set -u
began=$SECONDS
cd "$(dirname "$0")/.." || exit 1
until=$1 out=$2
shift 2
runs=${STUDY_RUNS:-runs/studies}
device=${STUDY_DEVICE:-cuda}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1
mkdir -p "$out"
smaller=()
for change in "$@"; do smaller+=(--set "$change"); done

for seed in 0 1 2; do
    python -m etude study run rl-against-sft --arm rl-long --seed $seed --bases-only --runs "$runs" --results "$out" \
        --set "run.device=$device" --set run.compute.compile=false "${smaller[@]}" > "$out/base-$seed.log" 2>&1 &
done
wait
echo "bases after $(( SECONDS - began )) s"
# The corpus is built by all cores; arms whose seconds are counted begin behind it.
while [ $(( SECONDS - began )) -lt "${STUDY_WAIT:-0}" ]; do sleep 1; done
minutes=$(python -c "print(($until - $SECONDS + $began) / 60)")
# Stated minutes are of a laptop, and an arm that is cut off goes on: one that may just not end is begun as well.
python studies/run_many.py --only rl-against-sft --arm rl-long --arm sft-long --jobs "${STUDY_JOBS:-6}" --slower 0.8 \
    --minutes "$minutes" --grace 0 --runs "$runs" --results "$out" "${smaller[@]}"
