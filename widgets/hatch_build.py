"""Build hook: bundles the TypeScript of widgets/src into widgets/nbengine_widgets/static/lab.js, unless it is there.

NBENGINE_SKIP_WIDGETS=1 leaves it out (lint jobs need no bundle).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root) / "widgets"
        bundle = root / "nbengine_widgets" / "static" / "lab.js"
        if os.environ.get("NBENGINE_SKIP_WIDGETS") == "1" or bundle.exists():
            return
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=root, check=True)
        subprocess.run(["npm", "run", "build"], cwd=root, check=True)
