#!/bin/bash
# Train on four machines of a SLURM cluster, one rank per socket. torchrun restarts failed ranks, and
# SLURM may requeue the job; in both cases training resumes from the newest checkpoint.
#
#   sbatch examples/cluster/slurm.sh demo /shared/dataset /shared/runs/first
#
#SBATCH --job-name=crossbatch
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --requeue
#SBATCH --signal=TERM@120
set -euo pipefail

recipe=$1 data=$2 run=$3
ranks_per_node=2
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / ranks_per_node))

resume=()
if [ -e "$run/config.json" ]; then resume=(--resume); fi

srun torchrun \
  --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$ranks_per_node" --max-restarts 3 \
  --rdzv-backend c10d --rdzv-endpoint "$head:29500" --rdzv-id "$SLURM_JOB_ID" \
  -m crossbatch train "$recipe" --data "$data" --out "$run" --quiet "${resume[@]}"
