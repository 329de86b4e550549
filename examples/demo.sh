#!/bin/sh
# The whole path on generated data, from a log file to recommendations. Usage: demo.sh FOLDER
set -eu
out=${1:-demo}
here=$(dirname "$0")/..

echo "1/7  generate a log of 120,000 interactions, an item table   -> $out/raw"
crossbatch synth --raw "$out/raw" --seed 7 --overwrite --quiet
echo "2/7  filter, re-index, split, encode content                 -> $out/dataset"
crossbatch prepare "$out/raw" --out "$out/dataset" --cold-items 0.05 --overwrite --quiet
echo "3/7  train with in-batch negatives                           -> $out/in_batch"
crossbatch train "$here/recipes/demo.toml" --data "$out/dataset" --out "$out/in_batch" --resume \
  --set 'sampler={name="in_batch"}'
echo "4/7  train with cross-batch negatives                        -> $out/cross_batch"
crossbatch train "$here/recipes/demo.toml" --data "$out/dataset" --out "$out/cross_batch" --resume
echo "5/7  rank the whole catalogue for every test user"
crossbatch evaluate "$out/in_batch" "$out/cross_batch"
crossbatch recommend "$out/cross_batch" --user 3 -k 10
echo "6/7  export a bundle: towers, vectors, ids, parity check     -> $out/bundle"
crossbatch export "$out/cross_batch" --out "$out/bundle" --force --quiet
echo "7/7  report: curves, diagnostics, configurations             -> $out/report.html"
crossbatch report "$out/in_batch" "$out/cross_batch" --out "$out/report.html"
echo "Open $out/report.html in a browser. To try the model by hand: .venv/bin/crossbatch serve $out/bundle"
