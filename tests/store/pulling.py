"""Pulls in processes of their own, which can be killed, and the model that they pull."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from localagent.catalog import ModelSpec, Source
from localagent.store import WeightStore
from tests.store.loopback import COMMIT, Loopback, git_id

CHILD = Path(__file__).with_name("child.py")
REPOSITORY = Path(__file__).parents[2]
WEIGHTS = random.Random(0).randbytes(4 << 20)


def make_spec(**sources: Source) -> ModelSpec:
    return ModelSpec.model_validate(
        {
            "name": "tiny",
            "description": "a test model",
            "dialect": "plain",
            "context": 128,
            "licence": {"name": "none"},
            "sources": {name: source.model_dump() for name, source in sources.items()},
        }
    )


def cached(home: Path, repo: str, files: dict[str, bytes], commit: str = COMMIT) -> Path:
    """Hugging Face's cache, as its own programs leave it."""
    folder = home / "hf" / "hub" / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    (folder / "blobs").mkdir()
    for name, content in files.items():
        large = len(content) > 10_000
        blob = folder / "blobs" / (hashlib.sha256(content).hexdigest() if large else git_id(content))
        blob.write_bytes(content)
        link = folder / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return folder / "snapshots" / commit


class Puller:
    """Pulls in processes of their own, against the loopback servers."""

    def __init__(self, store: WeightStore, loopback: Loopback, scratch: Path) -> None:
        self.store, self.environment = (
            store,
            {k: v for k, v in os.environ.items() if not k.startswith("PIP_")},
        )
        self.environment |= {
            "HF_ENDPOINT": loopback.url,
            "HF_HOME": str(scratch / "hf"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"{loopback.url}/simple",
            "PYTHONPATH": str(REPOSITORY),
            "NO_PROXY": "127.0.0.1",
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, spec: ModelSpec, backend: str = "llamacpp", stop: str | None = None
    ) -> subprocess.Popen[str]:
        command = [sys.executable, str(CHILD), spec.model_dump_json(), str(self.store.root), backend]
        process = subprocess.Popen(
            [*command, *([stop] if stop else [])],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def finish(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        out, err = process.communicate(timeout=60)
        assert out.strip(), err
        return json.loads(out.strip().splitlines()[-1])

    def pull(self, spec: ModelSpec, backend: str = "llamacpp") -> dict[str, Any]:
        return self.finish(self.start(spec, backend))

    def kill_at(self, spec: ModelSpec, stop: str, backend: str = "llamacpp") -> None:
        """Start a pull, let it come to the moment `stop`, and end it with SIGKILL."""
        process = self.start(spec, backend, stop)
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
        rest, err = process.communicate(timeout=60)
        assert line == "stopped\n", (line, rest, err)

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=60)
