"""The Lab: an inference engine under glass, in a notebook. Needs records only: neither torch nor zmq."""

from __future__ import annotations

from nbengine_widgets.lab import Lab, LabControl, LabPane
from nbengine_widgets.source import CAPABILITIES, LabSource
from nbengine_widgets.static_page import page_html

__all__ = ["CAPABILITIES", "Lab", "LabControl", "LabPane", "LabSource", "page_html"]
