"""The other side of the benchmark of the service, a process of its own: the service, or a plain
echo of the same shape of loop (one thread, epoll, what is read is answered at once). Prints a line
when it listens, and ends with its parent.

Kept here: the echo does nothing but read a whole message and answer; it is what any service written
so would cost at least.
"""

from __future__ import annotations

import json
import select
import socket
import sys

from bench.peers.child import end_with_parent
from radix.service.config import read_config
from radix.service.server import Server


def echo(path: str, message: int, answer: int) -> None:
    """Answers each ``message`` bytes with the last ``answer`` of them."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(256)
    watch = select.epoll()
    watch.register(listener, select.EPOLLIN)
    links: dict[int, tuple[socket.socket, memoryview]] = {}
    filled: dict[int, int] = {}
    print("{}", flush=True)
    while True:
        for descriptor, _ in watch.poll():
            if descriptor not in links:
                link, _ = listener.accept()
                links[link.fileno()] = link, memoryview(bytearray(message))
                filled[link.fileno()] = 0
                watch.register(link, select.EPOLLIN)
                continue
            link, room = links[descriptor]
            count = link.recv_into(room[filled[descriptor] :])
            filled[descriptor] += count
            if not count:
                watch.unregister(descriptor)
                links.pop(descriptor)[0].close()
            elif filled[descriptor] == message:
                filled[descriptor] = 0
                link.sendall(room[message - answer :])


def main() -> None:
    """``echo PATH MESSAGE ANSWER``, or ``service FLAGS`` as JSON."""
    end_with_parent()
    if sys.argv[1] == "echo":
        echo(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    server = Server(read_config(None, json.loads(sys.argv[2])))
    print(json.dumps(server.addresses), flush=True)
    server.run()


if __name__ == "__main__":
    main()
