"""Images, audio and files: reading their bytes and finding their types.

A PIL image is recognised if the caller has loaded PIL, which is never imported here. Only `read_file` touches
the disk.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
import sys
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from localagent.errors import InvalidMedia

MAX_BYTES = 20_000_000
"""Bytes of media in one part, about as much as providers take. Pass larger files by URL or id."""

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_DATA_URL = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.IGNORECASE)
_SPACE = re.compile(r"\s+")
# Python's own table: the system's differs between machines, and reading it would be IO at import.
_TYPES = mimetypes.MimeTypes(filenames=())
for _suffix, _type in {
    ".webp": "image/webp",
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".aiff": "audio/aiff",
    ".m4a": "audio/mp4",
}.items():
    _TYPES.add_type(_type, _suffix)


def sniff(data: bytes) -> str | None:
    """The media type, from the first bytes: JPEG, PNG, GIF, WEBP, PDF, MP3, OGG, FLAC, WAV; else None."""
    for magic, media_type in _MAGIC:
        if data.startswith(magic):
            return media_type
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12])
    # A bare MP3 frame: eleven sync bits, then version and layer, of which layer III is 01.
    if len(data) > 1 and data[0] == 0xFF and data[1] in (0xFB, 0xFA, 0xF3, 0xF2, 0xE3, 0xE2):
        return "audio/mpeg"
    return None


def type_of_url(url: str) -> str | None:
    """The media type, from the extension in a URL's path, or None."""
    try:
        return _TYPES.guess_type(urlsplit(url).path)[0]
    except ValueError:  # an address in brackets that is none
        return None


def is_url(text: str) -> bool:
    """Whether the text begins like a URL. Base64 has no colon."""
    return _SCHEME.match(text) is not None


def check_size(size: int) -> None:
    """Raise InvalidMedia for more bytes than a part may hold."""
    if size > MAX_BYTES:
        raise InvalidMedia(
            f"{size / 1e6:,.1f} MB of media: a message holds at most {MAX_BYTES / 1e6:,.0f} MB, "
            "pass larger files by URL or file id"
        )


def decode_base64(text: str) -> bytes:
    """Decode base64 in either alphabet, ignoring white space and missing padding. Raises InvalidMedia."""
    check_size(len(text) * 3 // 4 - 2)  # before decoding; line ends are too few to matter
    packed = _SPACE.sub("", text).rstrip("=")
    alphabet = b"-_" if "-" in packed or "_" in packed else b"+/"
    try:
        data = base64.b64decode(packed + "=" * (-len(packed) % 4), alphabet, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidMedia(f"not base64: {error}") from None
    check_size(len(data))
    return data


def decode_data_url(url: str) -> tuple[bytes, str | None]:
    """The bytes of a data URL, and the media type that it declares. Raises InvalidMedia."""
    head = _DATA_URL.match(url)
    if head is None:
        raise InvalidMedia(f"not a data URL: {url[:40]!r}")
    declared = head[1].strip().lower() or None
    body = url[head.end() :]
    if ";base64" in head[2].lower():
        return decode_base64(body), declared
    check_size(len(body) // 3)
    data = unquote_to_bytes(body)
    check_size(len(data))
    return data, declared


def read_file(path: str | Path) -> bytes:
    """The bytes of a media file. Raises InvalidMedia if it is missing or too large."""
    try:
        file = Path(path).expanduser()
        check_size(file.stat().st_size)
        return file.read_bytes()
    except OSError as error:
        raise InvalidMedia(f"cannot read {str(path)!r:.200}: {error.strerror or error}") from error
    except (RuntimeError, ValueError) as error:  # no such user, a NUL in it
        raise InvalidMedia(f"cannot read {str(path)!r:.200}: {error}") from error


def is_pil_image(value: Any) -> bool:
    """Whether the value is a PIL image; False if PIL was never loaded."""
    pil = sys.modules.get("PIL.Image")
    return pil is not None and isinstance(value, pil.Image)


def encode_pil_image(image: Any) -> bytes:
    """A PIL image as a file, in its own format if models read that, otherwise as PNG.

    Raises InvalidMedia for an image that PIL cannot write, such as a truncated or closed one.
    """
    buffer = BytesIO()
    try:
        match image.format:
            case "JPEG":
                image.save(buffer, "JPEG", quality="keep")  # as it was read, not compressed anew
            case "WEBP":
                image.save(buffer, "WEBP", lossless=True)
            case "GIF":
                image.save(buffer, "GIF", save_all=True)
            case _:
                image.convert(_PNG_MODES.get(image.mode, image.mode)).save(buffer, "PNG")
    except (OSError, ValueError) as error:
        raise InvalidMedia(f"PIL cannot write the image: {error}") from error
    check_size(buffer.tell())
    return buffer.getvalue()


_PNG_MODES = {"I": "I;16", "La": "LA", "RGBa": "RGBA", "RGBX": "RGB", "CMYK": "RGB"} | dict.fromkeys(
    ("F", "HSV", "LAB", "PA", "YCbCr"), "RGB"
)
"""What to convert an image to before it can be a PNG; other modes can be one as they are."""
