"""Tables, plots and one HTML page from run folders; needs NumPy, and neither torch nor a browser.

The parts are read in this order: `runs` and `journal` read folders, `variants` groups seeds,
`tables` compares, `curves` and `svg` draw, and `html`, `markdown` and `figures` write.
"""
