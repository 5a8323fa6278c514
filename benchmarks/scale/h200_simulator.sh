#!/bin/bash
# Is the simulator right about runs on a GPU? One run whose service times are used, and six that are only compared: three
# to learn from where it is wrong, and three with other settings that nobody looks at until that is mended.
#
#     bash benchmarks/scale/h200_simulator.sh SECONDS OUT [MODEL] [OVERRIDES ...]
#
# SECONDS: all that this command may take (440). OUT: where result.json comes, a line for each of the first three, and
# runs.tar.xz (or .gz): metrics, logs and rollouts of all, so that `simulator.py --fit --check` can be repeated elsewhere. MODEL: a
# fine-tuned checkpoint of recipe nano; "" makes one first, which takes a minute or two of the time. OVERRIDES are of
# all runs; run.device=cpu tries the script on a CPU.
# SIMULATOR_CORES says which cores it may use (the last four): other programs should keep away from those.
# SIMULATOR_WORK says where the runs lie, SIMULATOR_ROOM how many seconds a run needs beside its training (22).
set -u
began=$SECONDS
cd "$(dirname "$0")/../.." || exit 1
until=$1 out=$(realpath -m "$2") model=${3:-}
shift $(( $# < 3 ? $# : 3 ))
work=${SIMULATOR_WORK:-runs/h200-simulator} room=${SIMULATOR_ROOM:-22}
last=$(nproc)
cores=${SIMULATOR_CORES:-$(( last > 4 ? last - 4 : 0 ))-$(( last - 1 ))}
reserve=60  # seconds for the archive and the comparison
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
rm -rf "$work"/{fit,few,small,two,held-few,held-small,held-two}
mkdir -p "$work" "$out"

bash benchmarks/install_wheels.sh
taskset -pc "$cores" $$ > /dev/null || echo "cores $cores cannot be had; the runs share all of them" >&2
left() { echo $(( until - (SECONDS - began) )); }

gpu=(run.device=cuda run.threads=2 run.compute.compile=false)
common=("${gpu[@]}" engine.max_running=256 engine.cache_tokens=262144 engine.prefill_tokens=8192
        engine.prefill_every=2 rl.micro_tokens=32768
        rl.probe_mean=0.5 rl.probe_max=50 rl.probe_p99=10 rl.probe_k3=10)  # what is measured must not stop the run
if [ -z "$model" ]; then
    timeout -k 5 $(( $(left) / 3 )) python -m etude sft nano "${gpu[@]}" pretrain.steps=600 \
        pretrain.save_every=600 demos.count=700 corpus.max_bytes=4000000 "$@" --run "$work/model" > "$work/model.log" 2>&1
    model=$(ls -d "$work"/model/checkpoints/sft-* 2>/dev/null | sort | tail -n 1)
    [ -n "$model" ] || { echo "no model was made:"; tail -n 5 "$work/model.log"; exit 1; }
fi
echo "cores $cores, model $model, $(left) s left"

runs=7
train() {  # NAME OVERRIDES: as long as is left for it
    local name=$1 seconds=$(( ($(left) - reserve) / runs - room ))
    shift; runs=$(( runs - 1 ))
    [ "$seconds" -ge 10 ] || { echo "$name: no time is left"; return; }
    timeout -k 5 $(( seconds + room + 15 )) python -m etude rl nano "${common[@]}" "rl.model=$model" \
        rl.steps=100000 "rl.seconds=$seconds" rl.eval_every=0 rl.save_every=100000 rl.keep_trajectories=6000 \
        "$@" --run "$work/$name" > "$work/$name.log" 2>&1
    local status=$?
    echo "$name: exit $status, $(grep -c '"rl"' "$work/$name/metrics.jsonl" 2>/dev/null) steps in $seconds s, $(left) s left"
    [ "$status" = 0 ] || tail -n 3 "$work/$name.log" | cut -c1-600
    nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2>/dev/null
}
words=("$@")
train fit cluster.rollout_workers=2 rl.concurrency=128 "${words[@]}"
train few cluster.rollout_workers=2 rl.concurrency=32 rl.staleness=1 rl.groups=4 "${words[@]}"
train two cluster.rollout_workers=3 cluster.engines=2 rl.concurrency=160 rl.staleness=3 rl.groups=12 "${words[@]}"
train small cluster.rollout_workers=2 rl.concurrency=96 rl.staleness=4 rl.groups=8 rl.group=4 "${words[@]}"
train held-few cluster.rollout_workers=2 rl.concurrency=48 rl.staleness=2 rl.groups=6 "${words[@]}"
train held-two cluster.rollout_workers=2 cluster.engines=2 rl.concurrency=112 rl.staleness=2 rl.groups=8 "${words[@]}"
train held-small cluster.rollout_workers=3 rl.concurrency=160 rl.staleness=3 rl.groups=6 rl.group=4 "${words[@]}"

pack="xz -T4 -2" ending=xz
command -v xz > /dev/null || pack=gzip ending=gz
cd "$work" || exit 1
for some in '?????[02468]' '?????[05]'; do  # groups by number: every second, or fewer where that is too large
    kept=(*.log)
    for name in fit few two small held-few held-two held-small; do
        for part in metrics.jsonl run.json recipe.toml rl/journal.db rl/journal.db-wal rl/rollouts; do
            [ -e "$name/$part" ] && kept+=("$name/$part")
        done
        for rollout in "$name"/rl/trajectories/$some-*; do
            [ -e "$rollout" ] && kept+=("$rollout")
        done
    done
    printf '%s\n' "${kept[@]}" | tar -c -T - | $pack > "$out/runs.tar.$ending"
    [ "$(stat -c %s "$out/runs.tar.$ending")" -gt 15000000 ] || break
done
cd - > /dev/null || exit 1
du -k "$out"/runs.tar.*

checked=()
for name in few two small; do
    [ -e "$work/$name/metrics.jsonl" ] && checked+=("$name")
done
for name in "${checked[@]}"; do  # a process each: a run that cannot be read costs only its own line
    timeout $(( $(left) > 20 ? $(left) : 20 )) python benchmarks/scale/simulator.py --fit "$work/fit" \
        --check "$work/$name" --own-rollouts --json > "$work/$name.json" 2> "$work/$name.txt" &
done
wait
for name in "${checked[@]}"; do cat "$work/$name.json"; done > "$out/result.json"
for name in "${checked[@]}"; do cat "$work/$name.txt"; done
echo "took $(( SECONDS - began )) s"
