#!/bin/sh
said=/logs/agent/answer.txt
[ -f "$said" ] || said=/app/answer.txt
[ -f "$said" ] || echo "this task is answered in words: put the agent's last message into /app/answer.txt" >&2
if python -c "
import re, sys
told = [line.partition(':')[2] for line in open(sys.argv[1]) if line.startswith('ANSWER:')][-1]
sys.exit(set(re.split('[,\s]+', told.strip())) != set(open('/tests/accepted.txt').read().split()))
" "$said" 2>/dev/null; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
