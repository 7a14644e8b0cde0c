"""A service in a process of its own, told by lines: ``check`` walks every invariant of its stores,
``status`` tells what it is, ``waiting`` how many requests are not answered yet; each is answered by
a line of JSON. SIGTERM drains it.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path

from radix.service.config import read_config
from radix.service.server import Server


def check(server: Server) -> None:
    for store in server.context.stores():
        store.flat.check()


def waiting(server: Server) -> int:
    return sum(session.unanswered for session in server.sessions.values())


def main() -> None:
    told = json.loads(sys.argv[1])
    file = told.get("file")
    config = read_config(Path(file) if file else None, told["flags"], told.get("tenants"))
    server = Server(config)
    signal.signal(signal.SIGTERM, lambda *_: server.drain())
    print(json.dumps(server.addresses), flush=True)
    thread = threading.Thread(target=lines, args=(server,), daemon=True)
    thread.start()
    server.run()


def lines(server: Server) -> None:
    for line in sys.stdin:
        try:
            if line.strip() == "check":
                server.ask(lambda: check(server))
                print(json.dumps("sound"), flush=True)
            elif line.strip() == "waiting":
                print(json.dumps(server.ask(lambda: waiting(server))), flush=True)
            else:
                print(json.dumps(server.status().as_json()), flush=True)
        except Exception as error:  # outermost: told to the test, which raises it
            print(json.dumps({"error": repr(error)}), flush=True)


if __name__ == "__main__":
    main()
