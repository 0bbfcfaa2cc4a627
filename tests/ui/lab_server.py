"""A real JupyterLab in a real browser, and a side door into the kernel that it runs.

`LabServer` starts JupyterLab on a folder of notebooks; `LabPage` opens one of them in Chromium, runs it and clicks;
`LabPage.ask(expression)` evaluates an expression in the notebook's own kernel, so that a test can compare what is drawn with
what the engine says.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from jupyter_client import BlockingKernelClient
from playwright.sync_api import Browser, Locator, Page, Playwright

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

SETTINGS: dict[str, dict[str, Any]] = {
    "@jupyter-widgets/jupyterlab-manager/plugin": {"saveState": True},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false"},
}


def chromium_path() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def launch(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM_FLAGS)


class LabServer:
    """JupyterLab over `folder`, with settings, runtime files and workspaces of its own under `home`."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.runtime = home / "runtime"
        self.runtime.mkdir(parents=True, exist_ok=True)
        env = os.environ | {
            "JUPYTER_RUNTIME_DIR": str(self.runtime),
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "JUPYTER_DATA_DIR": str(home / "data"),
            "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
            "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
            "JUPYTER_PLATFORM_DIRS": "1",
        }
        for plugin, settings in SETTINGS.items():
            file = home / "settings" / f"{plugin}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(settings))
        self.log = (home / "lab.log").open("w")
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0", "--ip=127.0.0.1"]
        command += [
            "--IdentityProvider.token=",
            "--ServerApp.disable_check_xsrf=True",
            f"--ServerApp.root_dir={folder}",
            "--LabApp.news_url=None",
            "--LabApp.expose_app_in_browser=True",
        ]
        self.process = subprocess.Popen(command, env=env, stdout=self.log, stderr=self.log)
        self.url = self._wait_for_url()

    def _wait_for_url(self) -> str:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for info in self.runtime.glob("jpserver-*.json"):
                url = str(json.loads(info.read_text())["url"])
                try:
                    urllib.request.urlopen(url + "api/status", timeout=2).close()
                except OSError:
                    break
                return url
            time.sleep(0.2)
        raise TimeoutError(f"JupyterLab did not start; its log is {self.log.name}")

    def kernels(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(self.url + "api/kernels", timeout=5) as answer:
            return list(json.load(answer))

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class LabPage:
    """One notebook, open in JupyterLab in a browser page."""

    def __init__(self, server: LabServer, page: Page, notebook: str, *, theme: str = "JupyterLab Light") -> None:
        self.server, self.page = server, page
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(f"{server.url}lab/tree/{notebook}?reset")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        self.wait_idle()
        self._client: BlockingKernelClient | None = None
        if theme != "JupyterLab Light":
            self.command("apputils:change-theme", {"theme": theme})
            page.wait_for_function("document.body.dataset.jpThemeLight === 'false'")

    def command(self, name: str, args: dict[str, Any] | None = None) -> None:
        """Run a JupyterLab command by its id."""
        self.page.evaluate("([id, args]) => window.jupyterapp.commands.execute(id, args)", [name, args or {}])

    def wait_idle(self, timeout_s: float = 120) -> None:
        """Until the kernel is connected and has nothing to do."""
        self.page.wait_for_function(
            "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'",
            timeout=timeout_s * 1000,
        )

    def run_all(self, timeout_s: float = 180) -> None:
        """Run every cell and wait until the last one has its number."""
        self.page.locator(".jp-Notebook .jp-CodeCell").first.click()
        self.command("notebook:run-all-cells")
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            prompts = self.page.evaluate(
                "window.jupyterapp.shell.currentWidget.content.widgets.filter(w => w.model.type === 'code' && "
                "w.model.sharedModel.getSource().trim()).map(w => w.model.executionCount)"
            )
            if prompts and all(prompts):
                self.wait_idle()
                return
            time.sleep(0.3)
        raise TimeoutError("the notebook did not finish")

    def wait_cell(self, index: int, timeout_s: float = 120) -> None:
        """Until a cell that was started has its number: the kernel's own status also tells of messages from widgets."""
        self.page.wait_for_function(
            "i => window.jupyterapp.shell.currentWidget.content.widgets[i].model.executionCount",
            arg=index,
            timeout=timeout_s * 1000,
        )

    def run_cell(self, index: int) -> None:
        """Start one cell; does not wait for it."""
        self.page.evaluate(
            "i => { const n = window.jupyterapp.shell.currentWidget.content; n.deselectAll(); n.activeCellIndex = i; }",
            index,
        )
        self.page.evaluate("void window.jupyterapp.commands.execute('notebook:run-cell')")
        self.page.wait_for_timeout(300)

    def kernel(self) -> BlockingKernelClient:
        if self._client is None:
            (kernel,) = self.server.kernels()
            client = BlockingKernelClient(connection_file=str(self.server.runtime / f"kernel-{kernel['id']}.json"))
            client.load_connection_file()
            client.start_channels()
            client.wait_for_ready(timeout=30)
            self._client = client
        return self._client

    def ask(self, expression: str) -> Any:
        """The value of a Python expression in the notebook's kernel (through its repr)."""
        answers = {"answer": expression}
        while True:
            reply = self.kernel().execute("", silent=True, user_expressions=answers, reply=True, timeout=60)
            if reply["content"]["status"] != "aborted":  # a cell that failed takes those in the queue along
                break
        answer = reply["content"]["user_expressions"]["answer"]
        if answer["status"] != "ok":
            raise AssertionError(f"{expression}: {answer['ename']}: {answer['evalue']}")
        return ast.literal_eval(answer["data"]["text/plain"])

    def lab(self, number: int = 0) -> Locator:
        return self.page.locator(".nbe-lab").nth(number)

    def save(self) -> None:
        """Save the notebook and wait until it is on the disk."""
        self.command("docmanager:save")
        self.page.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty")

    def close(self) -> None:
        if self._client is not None:
            self._client.stop_channels()
        for kernel in self.server.kernels():
            request = urllib.request.Request(f"{self.server.url}api/kernels/{kernel['id']}", method="DELETE")
            urllib.request.urlopen(request, timeout=10).close()
        self.page.close()
