#!/bin/bash
# Starts the flagship on a machine that has torch and no network, or goes on with it.
#
#     bash benchmarks/flagship.sh SECONDS OUT [LADDER] [flagship.py's words ...]
#
# SECONDS: all that this command may take, installing included. LADDER: a folder of the ladder's tasks, or the archive
# that benchmarks/learning/carry_ladder.py packs; "" for katas alone. Wheels of what is missing lie in .wheels.
# FLAGSHIP_WORK says where the runs lie.
set -u
began=$SECONDS
cd "$(dirname "$0")/.." || exit 1
until=$1 out=$2 ladder=${3:-}
shift $(( $# < 3 ? $# : 3 ))
work=${FLAGSHIP_WORK:-runs/flagship}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$work" "$out"

if ! python -c "import pydantic, tomli_w, psutil, yaml, pytest" 2>/dev/null; then
    python -m pip install -q --no-index --find-links .wheels pydantic tomli-w psutil pyyaml pytest 2>&1 | tail -2
fi
if [ -f "$ladder" ]; then
    if [ ! -d "$work/ladder" ]; then
        python benchmarks/learning/carry_ladder.py unpack "$ladder" "$work/ladder.part" && mv "$work/ladder.part" "$work/ladder"
    fi
    ladder=$work/ladder
fi
words=()
if [ -d "$ladder" ]; then
    words=(--ladder "$ladder")
elif [ -n "$ladder" ]; then  # not katas alone instead: that would be another run than the one asked for
    echo "there is no ladder in $ladder; give a folder, an archive, or \"\" for katas alone" >&2
    exit 1
else
    echo "no ladder: katas alone"
fi
left=$(( until - (SECONDS - began) ))
python benchmarks/flagship.py --work "$work" --out "$out" --until "$left" "${words[@]}" "$@"
