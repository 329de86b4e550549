"""The paper's tables and figures on any prepared dataset, as a resumable grid of runs.

`design` says which runs an experiment needs, `grid` trains them in processes of their own, `search`
chooses their settings on validation users, `stability_probe` measures drift and the lemma while
they learn. `tables` and `curves` read run folders alone: they need no torch, and serve the small
records that `folder` keeps as well.
"""
