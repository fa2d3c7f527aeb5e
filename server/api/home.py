"""`GET /`: a page for a person who opens the daemon's address in a browser."""

from html import escape

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from server import __version__
from server.service.endpoint import Endpoint, Operation
from server.service.registry import Model, Registry
from server.service.service import service_of

HOME = Endpoint("GET", "/", Operation(arguments={"response_class": HTMLResponse}), order=300)

_PAGE = """\
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>penstock</title>
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 50em; margin: 2em auto; padding: 0 1em }}
td {{ padding: 0 2em .5em 0; vertical-align: top }}
</style></head>
<body>
<h1>penstock {version}</h1>
<p>This server runs language models, embedding models and rerankers behind OpenAI's HTTP API.
<a href="docs">Documentation</a> of every endpoint, to read and to try.</p>
<h2><a href="v1/models">Models</a></h2>
<table>
{models}
</table>
<p><a href="health">Health</a> · <a href="metrics">metrics</a></p>
</body>
</html>
"""


@HOME.answered_by
async def home(request: Request) -> Response:
    """A page for people: what this server is, its models, and where its documentation is."""
    registry = service_of(request).registry
    models = "\n".join(_row(registry, model) for model in registry.models)
    return HTMLResponse(_PAGE.format(version=__version__, models=models))


def _row(registry: Registry, model: Model) -> str:
    names, endpoints = escape(", ".join(model.names)), ", ".join(registry.paths_of(model))
    return f"<tr><td><b>{names}</b></td><td>{endpoints}</td></tr>"
