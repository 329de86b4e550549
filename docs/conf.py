"""Sphinx configuration of the documentation site; `make docs` builds it in build/site.

The pages are plain Markdown that can also be read without the site. The site loads nothing from
the network: fonts and scripts are local.
"""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "crossbatch"
author = "The crossbatch authors"
project_copyright = author
version = release = installed_version("crossbatch")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "commands", "examples"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_block", "colon_fence"]

default_role = "code"  # docstrings write `name`, as Markdown does
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
suppress_warnings = ["ref.python"]  # names such as `Recommender` stand in several packages
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
highlight_language = "text"

html_theme = "furo"
html_title = "crossbatch"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e5a", "color-brand-content": "#0b6e5a"},
    "dark_css_variables": {"color-brand-primary": "#5fd0b3", "color-brand-content": "#5fd0b3"},
}
