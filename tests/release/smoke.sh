#!/bin/sh
# A first look at an installed package, as a user would take it. Usage: smoke.sh BIN (the bin folder of an environment)
set -eu
bin=$(cd "$1" && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"  # away from the sources: what is imported is what was installed
unset PYTHONPATH
export OMP_NUM_THREADS=1

"$bin/crossbatch" --version
"$bin/python" -c 'import crossbatch.negatives, pathlib; assert "site-packages" in str(pathlib.Path(crossbatch.negatives.__file__))'
"$bin/python" -c 'from crossbatch import kernels; assert kernels.available(), "the compiled operations are not used"'
"$bin/crossbatch" synth --out data --users 400 --items 200 --interactions 8000 --quiet
"$bin/crossbatch" init
"$bin/crossbatch" train recipe.toml --data data --out run --quiet --set train.max_steps=40 --set train.eval_every=20 --set model.tower.race_seconds=1 --set model.tower.first_steps=20
"$bin/crossbatch" train --recipe demo --data data --out bank --quiet --set train.max_steps=40 --set train.eval_every=20 --set sampler.warmup_steps=10
"$bin/crossbatch" evaluate run bank --baselines popularity,item_knn
"$bin/crossbatch" report run bank --out report.html
"$bin/crossbatch" export run --out bundle --quiet
"$bin/crossbatch" recommend bundle --history B00000017,B00000004 -k 3
echo "The installed package works: $("$bin/crossbatch" --version)"
