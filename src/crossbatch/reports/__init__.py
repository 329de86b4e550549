"""Tables, plots and one HTML page from run folders; needs NumPy and jinja2, but no torch.

The parts in reading order: `runs` and `journal` read folders, `variants` groups seeds, `comparison`
compares, `plots` says what is drawn and `svg` draws it, and `html`, `markdown` and `figures` write.
"""
