#!/bin/sh
cd /app
cp -R /tests/. /app/
failed=0
for file in $(sed 's/::.*//' /tests/ids.txt | sort -u); do
    node --test "$file" || failed=1
done
if [ "$failed" = 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
