"""Cross-batch negatives in other people's tools: one file each, none imported unless asked for.

| module | tool | extra |
|---|---|---|
| `lightning` | PyTorch Lightning | `lightning` |
| `sentence_transformers` | sentence-transformers | `text` |
| `huggingface` | Hugging Face datasets | `hf` |

TensorBoard and MLflow are `crossbatch train --track`, Optuna is `crossbatch tune`.
"""
