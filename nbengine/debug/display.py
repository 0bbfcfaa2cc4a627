"""The way from a Debugger to a notebook: the Lab if nbengine_widgets is there, looked up by name when it is wanted.

The engine's packages do not depend on the widgets; this is the one place that knows what they are called.
"""

from __future__ import annotations

import base64
import html
import importlib
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

from nbengine.errors import NBEngineError

WIDGETS = "nbengine_widgets"


def has_lab() -> bool:
    """Whether a Lab can be shown here, as far as installed packages go."""
    return os.environ.get("NBENGINE_STATIC") != "1" and importlib.util.find_spec(WIDGETS) is not None


def make_lab(source: Any) -> Any:
    """The Lab widget for a LabSource. Raises NBEngineError without the widgets."""
    return _widgets().Lab(source)


def plain_view(source: Any) -> Any:
    """One output of the cell that is updated, without widgets. Raises NBEngineError without nbengine_widgets."""
    return importlib.import_module(".plain", _widgets().__name__).PlainView(source)


def static_page(records: Sequence[bytes], *, title: str = "nbengine Lab") -> str:
    """One HTML page with the Lab and these records in it. Raises NBEngineError without the widgets."""
    page: str = _widgets().page_html(list(records), title=title)
    return page


def _widgets() -> Any:
    try:
        return importlib.import_module(WIDGETS)
    except ImportError as error:
        raise NBEngineError(f"The Lab needs the package {WIDGETS}, which cannot be imported: {error}") from error


def illustrated(bundle: dict[str, Any], png: bytes) -> dict[str, Any]:
    """A MIME bundle whose HTML shows the picture above its table.

    Inside the HTML, because readers without a kernel (GitHub, nbviewer, nbconvert) show HTML and ignore a picture beside it.
    """
    words, data = html.escape(bundle["text/plain"]), base64.b64encode(png).decode()
    image = f'<img alt="{words}" style="max-width: 100%" src="data:image/png;base64,{data}">'
    return {**bundle, "text/html": image + bundle["text/html"]}
