"""The playground, drafting at work in a browser: three files, which call the API beside them."""

from functools import partial
from importlib import resources

from aiohttp import web

_FILES = {
    "/": ("index.html", "text/html"),
    "/playground.css": ("playground.css", "text/css"),
    "/playground.js": ("playground.js", "text/javascript"),
}
# It loads nothing from elsewhere, sends nothing elsewhere, and is shown in no other page.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_playground(router: web.UrlDispatcher) -> None:
    """Serve the playground; nobody needs a key to see it, but it needs one to call the API."""
    folder = resources.files("blockdraft_server") / "playground"
    for path, (name, content_type) in _FILES.items():
        text = (folder / name).read_text(encoding="utf-8")
        router.add_get(path, partial(_file, text, content_type))


async def _file(text: str, content_type: str, request: web.Request) -> web.Response:
    return web.Response(text=text, content_type=content_type, charset="utf-8", headers=_HEADERS)
