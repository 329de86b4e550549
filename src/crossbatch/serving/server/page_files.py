"""The web page's files, read once: nothing of a request ever becomes a path on disk."""

import hashlib
from importlib.resources import files

from fastapi import Request, Response

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def _load() -> dict[str, tuple[bytes, str, str]]:
    """Body, kind and tag of each file by its URL path; the page itself is at the root."""
    found = {}
    for file in files("crossbatch.serving").joinpath("page").iterdir():
        kind = KINDS.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            body = file.read_bytes()
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            found[path] = (body, kind, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
    return found


PAGE_FILES = _load()


async def page_file(request: Request) -> Response:
    """A file of the page; unchanged ones are not sent again."""
    body, kind, tag = PAGE_FILES[request.url.path]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=kind, headers=headers)
