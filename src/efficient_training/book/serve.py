"""Serving the rendered book on this machine, to this machine only."""

import errno
import webbrowser
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ..errors import UserError

HOST = "127.0.0.1"


class Handler(SimpleHTTPRequestHandler):
    """Files of the book, never cached: a page may have been rendered again since it was last asked for."""

    def end_headers(self) -> None:
        """Send the headers, with the one that forbids caching."""
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of each request."""


def make_server(directory: Path, port: int) -> ThreadingHTTPServer:
    """A server of `directory` on the loopback interface; port 0 takes any that is free.

    Raises `UserError` where there is no rendered book or the port cannot be had.
    """
    if not (directory / "index.html").is_file():
        raise UserError(f"{directory}: no rendered book there; render it first")
    return _bind(port, partial(Handler, directory=str(directory)))


def check_port(port: int) -> None:
    """Raise `UserError` where the port cannot be had, so that nobody waits for a book that is then not served."""
    _bind(port, Handler).server_close()


def _bind(port: int, handler: Callable[..., SimpleHTTPRequestHandler]) -> ThreadingHTTPServer:
    try:
        return ThreadingHTTPServer((HOST, port), handler)
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise UserError(f"port {port} is in use; choose another with --port") from None
        raise UserError(f"cannot serve on port {port} ({error}); choose another with --port") from None


def serve(directory: Path, port: int, open_browser: bool) -> None:
    """Serve the book in `directory` until Ctrl-C, and print its address."""
    with make_server(directory, port) as server:
        address = f"http://{HOST}:{server.server_port}/"
        print(f"{address} serves {directory}; Ctrl-C stops it", flush=True)
        if open_browser:
            webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
