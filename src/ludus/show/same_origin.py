"""The viewer talks to its own page only.

A web page from anywhere may open a websocket to this machine: the browser sends along where the page is from, and
leaves it to the server to refuse. Viser's does not.
"""

import contextlib
import http
import ipaddress
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from ludus.errors import LudusError

_REFUSAL = "This viewer answers its own page only.\n"


def is_own_page(host: str | None, origin: str | None, any_host: bool = False) -> bool:
    """Whether a request's headers are those of the viewer's own page, or of no page at all.

    The page must be where the request goes to. And that must be this machine by its own name: a stranger's name
    can be made to lead here. `any_host`: the viewer was told to listen to other machines too.
    """
    try:
        asked = urlsplit(f"//{host or ''}")
        if not any_host and not _is_this_machine(asked.hostname or ""):
            return False
        return origin is None or urlsplit(origin).netloc.lower() == asked.netloc.lower()
    except ValueError:
        return False


def _is_this_machine(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def own_pages_only(host: str) -> Iterator[None]:
    """A viser server that is made in this block refuses all others, with 403."""
    import websockets.asyncio.server as module

    serve, guarded = module.serve, list[bool]()

    def guarding_serve(*arguments: Any, process_request: Any = None, **settings: Any) -> Any:
        guarded.append(True)
        return serve(*arguments, process_request=_guard(process_request, not _is_this_machine(host)), **settings)

    module.serve = guarding_serve  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        module.serve = serve  # type: ignore[misc]
    if not guarded:
        raise LudusError("This version of viser serves its page in a way that cannot be guarded; take viser 1.1.")


def _guard(answer: Callable[[Any, Any], Any] | None, any_host: bool) -> Callable[[Any, Any], Any]:
    def guarded(connection: Any, request: Any) -> Any:
        # Several of a header are as good as a wrong one.
        hosts, origins = request.headers.get_all("Host"), request.headers.get_all("Origin")
        single = len(hosts) == 1 and len(origins) <= 1
        if not single or not is_own_page(hosts[0], origins[0] if origins else None, any_host):
            return connection.respond(http.HTTPStatus.FORBIDDEN, _REFUSAL)
        return answer(connection, request) if answer else None

    return guarded
