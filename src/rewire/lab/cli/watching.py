"""``rewire watch``: films of rewirings, on a page or as a file."""

from rewire.film.server import Server, find_films, save
from rewire.lab.cli import arguments as cli


def watch(command: "cli.Watch", words: str) -> None:
    """Serve the page until it is interrupted, or write it."""
    films = find_films(command.target)
    if command.save is not None:
        save(films, command.save)
        print(f"written to {command.save}")
        return
    server = Server(films, command.port, folder=command.target)
    print(f"watch {len(films)} film{'s' if len(films) > 1 else ''} at {server.url} (Ctrl-C ends)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        server.server_close()
