"""Media: what they are, where they come from, and what is too much."""

from __future__ import annotations

import base64
import io
import sys

import pytest
from PIL import Image
from pydantic import ValidationError

from localagent.errors import InvalidMedia, InvalidMessage
from localagent.messages import AudioPart, ImagePart, UserMessage, load_messages, media
from localagent.messages.media import MAX_BYTES
from tests.messages.strategies import MAGIC, SOUNDS
from tests.test_layers import run_python

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
)


@pytest.mark.parametrize(("head", "media_type"), list(MAGIC.items()))
def test_images_are_told_by_their_first_bytes(head, media_type):
    assert ImagePart(data=head + b"..").media_type == media_type
    assert ImagePart(data=head, media_type="image/x-wrong").media_type == media_type


@pytest.mark.parametrize(("head", "media_type"), list(SOUNDS.items()))
def test_sounds_are_told_by_their_first_bytes(head, media_type):
    assert AudioPart(data=head + b"..").media_type == media_type


def test_bytes_that_tell_nothing():
    assert AudioPart(data=b"...").media_type == "audio/mpeg"
    assert AudioPart(data=b"...", media_type="audio/aac").media_type == "audio/aac"
    assert ImagePart(data=b"...").media_type is None
    assert ImagePart(data=b"...", media_type="image/svg+xml").media_type == "image/svg+xml"
    assert ImagePart(data=b"RIFF").media_type is None
    assert ImagePart(data=b"RIFF\x04\0\0\0AVI ").media_type is None
    for short in (b"\xff", b"\xff\xf1", b"\xfe\xfb", b"GIF88a", b""):
        assert ImagePart(data=short).media_type is None


@pytest.mark.parametrize("second", [0xFB, 0xFA, 0xF3, 0xF2, 0xE3, 0xE2])
def test_a_bare_frame_of_mp3_is_a_sound(second):
    assert ImagePart(data=bytes([0xFF, second])).media_type == "audio/mpeg"


@pytest.mark.parametrize(
    ("url", "media_type"),
    [
        ("https://a.b/c.JPG?size=3", "image/jpeg"),
        ("https://a.b/c.webp", "image/webp"),
        ("gs://bucket/report.pdf", "application/pdf"),
        ("https://a.b/c.wav", "audio/wav"),
        ("https://a.b/c.flac", "audio/flac"),
        ("https://a.b/c.ogg", "audio/ogg"),
        ("https://a.b/c.aiff", "audio/aiff"),
        ("https://a.b/c.m4a#t=3", "audio/mp4"),
        ("https://a.b/c", None),
        ("http://[", None),
    ],
)
def test_urls_are_told_by_their_extension(url, media_type):
    assert ImagePart(url=url).media_type == media_type


def test_one_image_in_every_form(tmp_path):
    file = tmp_path / "dot.png"
    file.write_bytes(PNG)
    packed = base64.b64encode(PNG).decode()
    expected = ImagePart(data=PNG)
    for source in (
        PNG,
        bytearray(PNG),
        file,
        f"file:{file}",
        f"file://{file}",
        packed,
        packed.rstrip("="),
        packed.replace("+", "-").replace("/", "_"),
        "\n".join(packed[at : at + 20] for at in range(0, len(packed), 20)),
        f"data:image/png;base64,{packed}",
        f"DATA:image/jpeg;charset=x;base64,{packed}",
        "data:image/png," + "".join(f"%{byte:02x}" for byte in PNG),
        expected,
    ):
        assert ImagePart.of(source) == expected
    assert ImagePart.from_file(file) == ImagePart.from_base64(packed) == expected
    assert ImagePart.from_url("https://a.b/c").url == "https://a.b/c"
    assert ImagePart.model_validate({"data": packed}) == expected


def test_what_a_source_says_of_its_type_counts_where_its_bytes_tell_nothing(tmp_path):
    drawing = tmp_path / "a.svg"
    drawing.write_bytes(b"<svg/>")
    assert ImagePart.from_file(drawing).media_type == "image/svg+xml"
    assert ImagePart.of(str(f"file:{drawing}")).media_type == "image/svg+xml"
    assert ImagePart.from_file(str(drawing), "text/plain").media_type == "text/plain"
    (tmp_path / "b.png").write_bytes(b"fLaC")
    assert ImagePart.from_file(tmp_path / "b.png", "image/gif").media_type == "audio/flac"
    assert ImagePart.from_url("https://a.b/c.png", "image/gif").media_type == "image/gif"
    assert ImagePart.from_base64("PHN2Zy8+", "image/svg+xml").media_type == "image/svg+xml"
    for head, media_type in (("data: Image/SVG+xml ;base64", "image/svg+xml"), ("data:;x=y;base64", None)):
        part = ImagePart.of(f"{head},PHN2Zy8+")
        assert (part.data, part.media_type) == (b"<svg/>", media_type)
    assert ImagePart(url="data:a/b,x%20y", media_type="c/d") == ImagePart(data=b"x y", media_type="c/d")
    assert ImagePart.of(memoryview(PNG)) == ImagePart(data=PNG)
    for media_type, is_picture in (("image/png", True), (None, True), ("application/pdf", False)):
        assert ImagePart(file_id="f", media_type=media_type).is_picture is is_picture


def test_a_message_holds_so_many_bytes_and_no_more(monkeypatch, tmp_path):
    monkeypatch.setattr(media, "MAX_BYTES", 600_000)
    (tmp_path / "a").write_bytes(b"x" * 600_000)
    (tmp_path / "b").write_bytes(b"x" * 600_001)
    for size, file in ((600_000, "a"), (600_001, "b")):
        data = b"x" * size
        for source in (
            data,
            tmp_path / file,
            base64.b64encode(data).decode(),
            "data:a/b;base64," + base64.b64encode(data).decode(),
            "data:a/b," + data.decode(),
            "data:a/b," + "%78" * size,
        ):
            if file == "a":
                assert AudioPart.of(source).data == data
            else:
                with pytest.raises(InvalidMedia, match=r"0\.6 MB of media: a message holds at most 1 MB"):
                    AudioPart.of(source)
    packed = base64.b64encode(b"x" * 600_001).decode().rstrip("=")
    assert len(media.decode_base64(base64.b64encode(b"x" * 600_000).decode())) == 600_000
    for decode, text in (
        (media.decode_base64, packed),
        (media.decode_data_url, f"data:;base64,{packed}"),
        (media.decode_data_url, "data:," + "x" * 600_001),
    ):
        with pytest.raises(InvalidMedia) as caught:
            decode(text)
        assert str(caught.value) == (
            "0.6 MB of media: a message holds at most 1 MB, pass larger files by URL or file id"
        )
    monkeypatch.setattr(media, "MAX_BYTES", 10)
    with pytest.raises(
        InvalidMedia, match=r"0\.0 MB of media: a message holds at most 0 MB, pass larger files"
    ):
        ImagePart.of(Image.new("L", (1, 1)))


def test_pil_images_are_written_as_they_were_read():
    noise = Image.effect_noise((16, 16), 90).convert("RGB")

    def kept(form, **options):
        buffer = io.BytesIO()
        noise.save(buffer, form, **options)
        first = Image.open(io.BytesIO(buffer.getvalue()))
        return first, Image.open(io.BytesIO(ImagePart.of(first).data))

    first, second = kept("JPEG", quality=31)
    assert second.quantization == first.quantization
    first, second = kept("WEBP", quality=5)
    assert second.convert("RGB").tobytes() == first.convert("RGB").tobytes()
    first, second = kept("GIF", save_all=True, append_images=[Image.new("RGB", (16, 16))])
    assert (first.n_frames, second.n_frames) == (2, 2)
    modes = {
        "La": "LA",
        "PA": "RGB",
        "RGBa": "RGBA",
        "CMYK": "RGB",
        "YCbCr": "RGB",
        "HSV": "RGB",
        "F": "RGB",
        "I": "I;16",
    }
    for mode, written in (modes | {mode: mode for mode in ("1", "L", "LA", "P", "RGB", "RGBA")}).items():
        assert Image.open(io.BytesIO(ImagePart.of(Image.new(mode, (1, 1))).data)).mode == written, mode


def test_pil_images_are_accepted():
    picture = Image.new("RGB", (2, 2), "red")
    part = ImagePart.of(picture)
    assert part.media_type == "image/png"
    assert Image.open(io.BytesIO(part.data)).getpixel((0, 0)) == (255, 0, 0)
    for form, media_type in [
        ("JPEG", "image/jpeg"),
        ("GIF", "image/gif"),
        ("WEBP", "image/webp"),
        ("BMP", "image/png"),
    ]:
        buffer = io.BytesIO()
        picture.save(buffer, form)
        buffer.seek(0)
        assert UserMessage.with_images("?", [Image.open(buffer)]).images[0].media_type == media_type
    assert ImagePart.of(Image.new("CMYK", (1, 1))).media_type == "image/png"


def test_pil_images_keep_what_a_png_can_hold():
    deep = Image.new("I;16", (1, 1), 30_000)
    assert Image.open(io.BytesIO(ImagePart.of(deep).data)).getpixel((0, 0)) == 30_000
    for mode in ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV", "I", "F"):
        assert ImagePart.of(Image.new(mode, (1, 1))).media_type == "image/png"


def test_pil_images_that_cannot_be_read_are_refused():
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).convert("RGB").save(buffer, "JPEG")
    cut = Image.open(io.BytesIO(buffer.getvalue()[:-500]))
    with pytest.raises(InvalidMedia, match="PIL cannot write the image"):
        ImagePart.of(cut)


def test_pil_is_not_imported_by_the_message_model():
    assert run_python("-c", "import sys, localagent.messages; print('PIL' in sys.modules)") == "False\n"
    assert "PIL" in sys.modules


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (ImagePart, "exactly one of url, data, file_id; this has none"),
        (lambda: ImagePart(data=PNG, file_id="f"), "this has data and file_id"),
        (lambda: ImagePart(url="data:image/png;base64,iVBO", data=PNG), "this has url and data"),
        (lambda: AudioPart(url="https://a.b", data=b"x"), "audio has exactly one"),
        (lambda: ImagePart(data="!!"), "not base64"),
        (lambda: ImagePart(url=""), "at least 1 item"),
        (lambda: ImagePart(file_id=""), "at least 1 item"),
        (lambda: ImagePart(url="data:nonsense"), "not a data URL: 'data:nonsense'"),
        (lambda: ImagePart(data=b"x" * (MAX_BYTES + 1)), "20.0 MB of media: a message holds at most 20 MB"),
        (lambda: ImagePart(url="data:;base64," + "A" * 50_000_000), r"37\.5 MB of media"),
        (lambda: UserMessage(content=[{"kind": "image", "data": "A" * 50_000_000}]), r"37\.5 MB of media"),
    ],
)
def test_what_is_no_media_part_is_refused(make, says):
    with pytest.raises(ValidationError, match=says) as caught:
        make()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("cat.png", "'cat.png' is neither a URL nor base64 .* pass a file as a Path"),
        ("file:/nowhere/cat.png", "cannot read '/nowhere/cat.png': No such file"),
        ("file:~nosuchuser/cat.png", "cannot read '~nosuchuser/cat.png'"),
        ("file:a\0b", "cannot read"),
        (b"x" * (MAX_BYTES + 1), r"20\.0 MB of media"),
        ("data:image/png;base64,!", "not base64"),
        ("file:/", "cannot read '/': Is a directory"),
        (3, "an image cannot be made of int"),
        (AudioPart(data=b"x"), "an image cannot be made of AudioPart"),
        ("C:/cat.png", "'C:/cat.png' is neither a URL nor base64"),
        ("A" * 50_000_000, r"37\.5 MB of media"),
    ],
)
def test_what_is_no_source_is_refused(source, says):
    with pytest.raises(InvalidMedia, match=says) as caught:
        ImagePart.of(source)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    file = tmp_path / "big.png"
    with file.open("wb") as handle:
        handle.truncate(1 << 40)
    with pytest.raises(InvalidMedia, match=r"1,099,511.6 MB of media"):
        ImagePart.from_file(file)


def test_fifty_megabytes_of_base64_are_refused_before_they_are_decoded(monkeypatch):
    monkeypatch.setattr(base64, "b64decode", None)
    text = '[{"role":"user","content":[{"kind":"image","data":"' + "A" * 50_000_000 + '"}]}]'
    with pytest.raises(
        InvalidMessage, match=r"messages\[0\]\.user\.content\[0\]\.image\.data: 37\.5 MB of media"
    ):
        load_messages(text)
