# SPDX-License-Identifier: Apache-2.0
# Sphinx's settings for the site that tools/make_site.py builds. Nothing in a page may come from the network.
import pathlib
import re
import sys

import furo

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
html_search_scorer = str(pathlib.Path(__file__).with_name("scorer.js"))
# Anchors are those of GitHub, so that a link with an anchor leads to the same heading in both.
myst_heading_anchors = 6
myst_heading_slug_func = documents.slug
# Headings of documents are texts, and a table's heading may be empty.
suppress_warnings = ["myst.header"]
highlight_language = "none"
pygments_style = "default"

# Debian builds furo without furo's own tools. So the dark colours lack the rule for a dark system, and the script,
# which is in two parts, does not run.
FURO_STYLES = pathlib.Path(furo.__file__).parent / "theme" / "furo" / "static" / "styles" / "furo.css"
DARK = re.search(r'body\[data-theme="?dark"?\]\s*\{(.*?)\}', FURO_STYLES.read_text(encoding="utf-8"), re.DOTALL)
html_theme_options = {"dark_css_variables": dict(re.findall(r"--([\w-]+):\s*([^;]+)", DARK.group(1)))}
html_js_files = [("scripts/gumshoe-patched.js", {"priority": 100})]


def join_script(app, _error):
    script = pathlib.Path(app.outdir) / "_static" / "scripts" / "furo.js"
    script.write_text(re.sub(r"^import .*\n", "", script.read_text(encoding="utf-8")), encoding="utf-8")


def setup(app):
    app.connect("build-finished", join_script)
