# SPDX-License-Identifier: Apache-2.0
# Sphinx's settings for the site that tools/make_site.py builds. Nothing in a page may come from the network.
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import documents  # noqa: E402

project = "gpumux"
html_title = "gpumux"
extensions = ["myst_parser"]
html_theme = "furo"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_use_index = False
html_static_path = ["static"]
html_css_files = ["site.css"]
# Anchors are those of GitHub, so that a link with an anchor leads to the same heading in both.
myst_heading_anchors = 6
myst_heading_slug_func = documents.slug
# Headings of documents are texts, and a table's heading may be empty.
suppress_warnings = ["myst.header"]
highlight_language = "none"
pygments_style = "default"
