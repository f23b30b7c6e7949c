"""Forms (`multipart/form-data`): every route that takes one rejects those that do not follow the rules."""

from __future__ import annotations

import pytest

from tests.support.service import Service

#: The routes that take forms.
ROUTES = (
    "/v1/jobs",
    "/openai/v1/files",
    "/openai/v1/audio/transcriptions",
    "/openai/v1/audio/translations",
    "/openai/v1/images/edits",
)
PARTS = (
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\necho\r\n'
    b'--x\r\nContent-Disposition: form-data; name="scene"; filename="a.tif"\r\n\r\nII*\0'
)
END = b"\r\n--x--\r\n"


async def send(service: Service, body: bytes, *, route: str = "/v1/jobs", more: str = "") -> tuple[int, str]:
    kind = f"multipart/form-data; boundary=x{more}"
    answer = await service.http.post(route, content=body, headers={"Content-Type": kind})
    return answer.status_code, answer.text


def named(head: str, text: bytes = b"II*\0") -> bytes:
    """Return a form with one part of this name."""
    return b"--x\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" + text + END


@pytest.mark.parametrize("charset", ["punycode", "undefined", "idna", "x-unknown", "utf-16", "latin-1"])
async def test_a_form_in_another_charset_than_utf_8_is_rejected_before_a_codec_is_tried(
    service: Service, charset: str
) -> None:
    for route in ROUTES:
        for given in (f"; charset={charset}", f'; charset="{charset}"', f"; Charset={charset.upper()}"):
            status, said = await send(service, PARTS + END, route=route, more=given)
            assert (status, "send UTF-8" in said) == (415, True), said


async def test_a_long_content_type_is_rejected_before_its_parameters_are_read(service: Service) -> None:
    assert (await send(service, PARTS + END, more=";" * 2000))[0] == 415


async def test_a_form_may_name_utf_8(service: Service) -> None:
    for given in ("utf-8", '"UTF-8"', "utf8"):
        status, said = await send(service, PARTS + END, more=f"; charset={given}")
        assert (status, "/input/text" in said) == (422, True), said


@pytest.mark.parametrize("route", ROUTES)
async def test_a_form_without_its_closing_boundary_is_rejected(service: Service, route: str) -> None:
    for body in (PARTS, PARTS + b"\r\n--x", PARTS + b"\r\n--x\r\n", PARTS + b"\r\n--x-", b""):
        status, said = await send(service, body, route=route)
        assert (status, "closing boundary is missing" in said) == (400, True), said
    assert not list(service.settings.spool_dir.glob("uploads/*/tmp*"))


async def test_a_closed_form_may_have_an_epilogue(service: Service) -> None:
    for end in (b"\r\n--x--", END, END + b"the end"):
        status, said = await send(service, PARTS + end)
        assert (status, "/input/text" in said) == (422, True), said


async def test_a_name_of_a_file_is_nested_no_deeper_than_json_may_be(service: Service) -> None:
    for steps in (64, 990):  # and the body and its input around them
        status, said = await send(service, named(f'name="{".".join("a" * steps)}"; filename="a.tif"'))
        assert (status, "nested more than 64 deep" in said) == (400, True), said
    status, said = await send(service, named(f'name="{".".join("a" * 63)}[]"; filename="a.tif"'))
    assert (status, "nested more than 64 deep" in said) == (400, True), said
    for name in (".".join("a" * 63), ".".join("a" * 62) + "[]"):
        status, said = await send(service, named(f'name="{name}"; filename="a.tif"'))
        assert (status, "/model" in said) == (422, True), said


async def test_a_name_of_a_file_is_text_as_in_json(service: Service) -> None:
    status, said = await send(service, named('name="a\0b"; filename="a.tif"'))
    assert (status, "a character that is not text" in said) == (400, True), said


async def test_a_text_or_a_name_that_is_not_utf_8_is_rejected(service: Service) -> None:
    for form, what in (
        (named("name=input", b'{"text":"\xff"}'), "the text of the field 'input'"),
        (named("name=model", "\u00e9cho".encode("latin-1")), "the text of the field 'model'"),
        (named("name=NAME").replace(b"NAME", b"\xff"), "the name of a field"),
        (named('name=NAME; filename="a.tif"').replace(b"NAME", b"\xed\xa0\x80"), "the name of a field"),
    ):
        status, said = await send(service, form)
        assert (status, f"{what} is not UTF-8" in said) == (400, True), said


async def test_a_file_has_the_name_of_its_extended_field(service: Service) -> None:
    fields = b'--x\r\nContent-Disposition: form-data; name="input"\r\n\r\n{"text": "hello"}\r\n'
    fields += b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\necho\r\n'
    for head, name in (
        ("name=scene; filename*=UTF-8''gr%C3%BC%C3%9Fe.tif", "/gruße.tif"),
        ("FileName*=utf-8'de'%C3%A4.tif; name=scene", "/a.tif"),
        ("name=scene; filename=\"_.tif\"; filename*=UTF-8''b%20c.tif", "/b_c.tif"),
        ("name=scene; filename*=UTF-8''b.tif; filename=\"_.tif\"", "/b.tif"),
        ("name=scene; filename=\"a.tif\"; filename*=UTF-8''%FF.tif", "/a.tif"),
        ("name=scene; filename=\"a; filename*=UTF-8''b.tif\"", "/a_filename_UTF-8_b.tif"),
    ):
        status, said = await send(service, fields + named(head))
        assert status == 202, said
        assert (await service.claim()).submission.input["scene"].endswith(name)


async def test_a_file_with_another_extended_name_alone_is_rejected_with_the_cause(service: Service) -> None:
    for head in ("FileName*=punycode''a; name=scene", "name=scene;filename*0=a", "name=scene; filename*=a.tif",
                 "name=scene; filename *=UTF-8''a.tif", "name=scene; filename*=UTF-8''%FF"):  # fmt: skip
        status, said = await send(service, named(head))
        assert (status, "filename* alone" in said) == (400, True), said
    both = await send(service, named("name=scene; filename=\"a.tif\"; filename*=UTF-8''b.tif"))
    assert both[0] == 422
    assert "filename*" not in both[1]
    text = await send(service, named('name="a; filename*=b"'))
    assert (text[0], "filename*" in text[1]) == (422, False), text


async def test_a_file_whose_type_no_header_can_hold_is_rejected(service: Service) -> None:
    for kind in ("image/tiff\nX-Own: 1", "tiff", "image/tiff\0"):
        status, said = await send(service, named(f'name="scene"; filename="a.tif"\r\nContent-Type: {kind}'))
        assert (status, "is not a media type" in said) == (400, True), said
