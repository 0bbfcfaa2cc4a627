"""One HTML file with the Lab and a recording in it: no kernel, no network, nothing to install."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from nbengine_widgets.publisher import pack

STATIC = Path(__file__).parent / "static"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{css}</style>
</head>
<body class="nbe-page">
<div id="lab"><p class="nbe-page-note">This page plays a recorded run of nbengine. It needs JavaScript.</p></div>
<script type="application/octet-stream" id="records">{records}</script>
<script type="text/plain" id="bundle">{bundle}</script>
<script type="module">
const text = (id) => document.getElementById(id).textContent;
const url = URL.createObjectURL(new Blob([text("bundle")], {{ type: "text/javascript" }}));
const {{ mountRecording }} = await import(url);
mountRecording(document.getElementById("lab"), text("records"));
</script>
</body>
</html>
"""


class BundleFile:
    """A file of the bundle, read when its text is wanted: importing must work before the bundle is built."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        path = STATIC / self.name
        if not path.exists():
            raise FileNotFoundError(f"The widget bundle {path.name} is missing: run `npm ci && npm run build` in widgets/.")
        return path.read_text(encoding="utf-8")


def page_html(records: Sequence[bytes], *, title: str = "nbengine Lab") -> str:
    """A self-contained page that shows `records` in the Lab.

    Args:
        records: a record stream as nbengine.observe.records.encoder made it, the Header first.
        title: of the page.
    """
    return _PAGE.format(
        title=html.escape(title),
        css=str(BundleFile("lab.css")).replace("</style", "<\\/style"),
        bundle=str(BundleFile("lab.js")).replace("</script", "<\\/script"),
        records=base64.b64encode(pack(records)).decode("ascii"),
    )
