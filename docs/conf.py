"""Sphinx: the Markdown of this folder and the docstrings as one site. ``make docs`` builds it into ``build/docs``."""

import os
from importlib.metadata import version as installed_version

project = "Rewire"
author = project_copyright = "The Rewire authors"
release = version = installed_version("rewire")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_class_signature = "separated"
nitpicky = False

# Cross-links into torch's own reference, where the build may fetch its inventory.
if os.environ.get("REWIRE_DOCS_ONLINE"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {"torch": ("https://docs.pytorch.org/docs/stable/", None)}

exclude_patterns = ["results/*"]
html_theme = "furo"
html_title = "Rewire"
html_static_path = ["_static"]
html_css_files = ["home.css"]
html_show_sourcelink = False
pygments_style, pygments_dark_style = "friendly", "github-dark"
