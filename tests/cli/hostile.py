"""A home and words that would drive the terminal of whoever sees them, from every source that there is."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from localagent.hosts.llamacpp.gguf import _Reader
from localagent.messages import (
    AssistantMessage,
    ImagePart,
    MalformedToolCallPart,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from localagent.session import SessionStore

HERE = Path(__file__).parent
CONTROLS = (
    "\x1b]0;",  # the title of the window
    "\x1b]52;c;",  # the clipboard
    "\x1b[2J",  # clears the screen
    "\x1b[31m",  # a colour that this program uses too
    "\x1b[8m",  # hides what follows
    "\x1bP",
    "\x9b2J",  # the same as eight-bit controls, and
    "\x90",
    "\x85",
    "\x07",
    "\x08",
    "\r",  # back to the beginning of the line
    "\x7f",
    "\u2028",
    "\u202e",  # reverses what follows
    "\u2066",
    "\u200f",
    "\u061c",
)
EVIL = "".join(f"{control}EVIL" for control in CONTROLS)
MARKED = f"[bold]{EVIL}[/bold][/]"
"""The same with what rich reads as markup."""
BYTES = b"\x9bEVIL"
"""No UTF-8, as in an argument or a file name: a terminal of eight bits obeys it."""
NAME = EVIL + (os.fsdecode(BYTES) if sys.platform == "linux" else "")
"""A name for a file; elsewhere these have to be Unicode."""
FORBIDDEN = [*(f"{control}EVIL".encode() for control in CONTROLS), BYTES]
SPELT = [r"\x1b]0;EVIL", r"\u001b]0;EVIL"]
"""How the first of them looks when it was made visible, for people and in JSON."""


def driven(shown: bytes) -> list[bytes]:
    """What of EVIL reached the terminal."""
    return [each for each in FORBIDDEN if each in shown]


def told(shown: bytes) -> bool:
    """Whether EVIL came at all, and can be seen. Terminals break lines."""
    text = re.sub(rb"\s", b"", shown).decode("utf-8", "replace")
    return any(spelt in text for spelt in SPELT)


@dataclass(frozen=True)
class World:
    """Where everything hostile lies."""

    home: Path
    gguf: Path
    broken: dict[str, Path]
    catalogue: Path
    root: Path
    servers: dict[str, Path]
    dialect: Path
    session: str

    def copy(self, folder: Path) -> World:
        """The same with a home that a command may change, as hostile a path."""
        folder.mkdir()
        return replace(self, home=Path(shutil.copytree(self.home, folder / NAME)))


def make_world(folder: Path, nano: Path) -> World:
    home = folder / NAME
    home.mkdir()
    weights = home / "models" / "lfm2-350m" / "llamacpp"
    weights.mkdir(parents=True)
    (weights / "part.gguf").write_bytes(b"x")
    gguf = folder / f"model{NAME}.gguf"
    gguf.write_bytes(with_text(nano.read_bytes(), "general.name", EVIL))
    broken = {}
    for key, value in (
        ("general.architecture", EVIL),
        ("tokenizer.ggml.pre", EVIL),
        ("tokenizer.ggml.model", EVIL),
        ("tokenizer.chat_template", "{{ raise_exception(" + repr(EVIL) + ") }}"),
    ):
        broken[key] = folder / f"{key}.gguf"
        broken[key].write_bytes(with_text(nano.read_bytes(), key, value))
    broken["magic"] = folder / "magic.gguf"
    broken["magic"].write_bytes(b"\x1b]0;EVIL" * 9)
    root = folder / "root"
    root.mkdir()
    (root / "plan.txt").write_text(EVIL)
    (root / NAME).write_text(EVIL)
    (root / "results.jsonl").write_text(results())
    dialect = folder / "evil.toml"
    dialect.write_text(
        f"name = {json.dumps(EVIL)}\nbased_on = {json.dumps(EVIL)}\n".replace("\x7f", "\\u007f")
    )
    world = World(home, gguf, broken, make_catalogue(folder), root, make_servers(folder), dialect, NAME)
    make_snapshots(world)
    make_session(SessionStore(home / "sessions"))
    return world


def results() -> str:
    """What a benchmark of hostile things would write."""
    column = {"key": EVIL, "title": EVIL, "unit": EVIL}
    table = {"name": EVIL, "title": EVIL, "columns": [column], "told": EVIL}
    lines = [
        {"kind": "run", "bench": EVIL, "started": EVIL, "options": {EVIL: EVIL}},
        {"kind": "table", **table},
        {"kind": "row", "table": EVIL, EVIL: MARKED},
        {"kind": "skip", "what": EVIL, "reason": EVIL},
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def make_snapshots(world: World) -> None:
    """What a chat with the hostile model leaves in the cache, and the same cut off."""
    environment = {**os.environ, "LOCALAGENT_HOME": str(world.home)}
    line = [sys.executable, "-m", "localagent", "chat", "--model", str(world.gguf), "--max-tokens", "2"]
    subprocess.run(
        [*line, "--threads", "1", "--system", "word " * 40], env=environment, input=b"Hi.\n",
        capture_output=True, check=True,
    )  # fmt: skip
    [kept] = (world.home / "prefixes").rglob("*.prefix")
    kept.with_name(f"{NAME[:60]}.prefix").write_bytes(kept.read_bytes()[:100])


def make_session(store: SessionStore) -> None:
    session = store.create(title=EVIL)
    session.append(SystemMessage.text(EVIL))
    asked = session.append(UserMessage.text(EVIL))
    call = ToolCallPart(id=EVIL, name=EVIL, arguments={EVIL: EVIL})
    broken = MalformedToolCallPart(raw=EVIL, reason="truncated", name=EVIL)
    content = (ReasoningPart(text=EVIL), TextPart(text=EVIL), call, broken)
    session.append(AssistantMessage(model=EVIL, stop_reason="error", error=EVIL, content=content))
    session.append(
        ToolMessage.from_results([ToolResultPart(call_id=EVIL, name=EVIL, content=EVIL, is_error=True)])
    )
    session.branch(asked, EVIL)
    session.append_custom(EVIL, {EVIL: EVIL})
    session.append(UserMessage(content=(EVIL, ImagePart(url=f"https://a.b/{EVIL}"))))
    session.rescue(EVIL)
    session.compact(EVIL, first_kept=session.head)
    unknown = {"id": EVIL, "parent": session.head, "kind": EVIL}
    with session.file.open("ab") as file:
        file.write(json.dumps(unknown).encode() + b"\n" + json.dumps({EVIL: EVIL}).encode() + b"\n")
    lines = session.file.read_bytes().split(b"\n", 1)
    header = {**json.loads(lines[0]), "id": EVIL}
    (session.file.parent / f"{NAME}.jsonl").write_bytes(
        json.dumps(header, separators=(",", ":")).encode() + b"\n" + lines[1]
    )
    session.file.unlink()


def make_catalogue(folder: Path) -> Path:
    path = folder / "models.toml"
    said = json.dumps(MARKED).replace("\x7f", "\\u007f")
    path.write_text(f"""
[licences.evil]
name = {said}
url = {said}
terms = {said}
[models.lfm2-nano]
description = {said}
default = true
dialect = {said}
context = 4096
licence = "evil"
sources.llamacpp = {{ kind = "path", path = {said} }}
[models.lfm2-350m]
description = {said}
dialect = "lfm2"
context = 4096
licence = "evil"
sources.llamacpp = {{ kind = "hf", repo = "a/b", revision = {said}, file = {said.replace(":", "")} }}
""")
    return path


def make_servers(folder: Path) -> dict[str, Path]:
    paths = {}
    for mode in ("works", "fails", "version", "exits"):
        server = {
            "command": sys.executable, "args": [str(HERE / "hostile_server.py"), mode],
            "env": {"HOSTILE_WORDS": EVIL},
        }  # fmt: skip
        paths[mode] = folder / f"{mode}.json"
        name = "evil" if mode in ("works", "fails") else EVIL  # the model writes it as part of the tool's
        paths[mode].write_text(json.dumps({"mcpServers": {name: server}}))
    paths["nothing"] = folder / "nothing.json"
    paths["nothing"].write_text(json.dumps({"mcpServers": {EVIL: {"command": EVIL}}}))
    paths["field"] = folder / "field.json"
    paths["field"].write_text(json.dumps({"mcpServers": {EVIL: {EVIL: EVIL}}}))
    return paths


def with_text(data: bytes, key: str, text: str) -> bytes:
    """A GGUF file with another text under `key`."""
    reader = _Reader(data, len(data))  # type: ignore[arg-type]
    reader.read(keep=True)
    end = -(-reader.at // 32) * 32
    at = data.index(struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", 8)) + 8 + len(key) + 4
    (length,) = struct.unpack_from("<Q", data, at)
    value = text.encode()
    head = data[:at] + struct.pack("<Q", len(value)) + value + data[at + 8 + length : reader.at]
    return head + b"\0" * (-len(head) % 32) + data[end:]
