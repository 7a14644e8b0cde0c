"""A proxy before a vLLM that prefills and one that decodes, over one `radix serve`:

    vllm_prefill_decode.py PREFILLER DECODER [PORT]         each http://host:port

Every request goes to the prefiller first, for one token, so that the KV of its prompt is computed
and stored; then, as it came, to the decoder, which loads that and generates. Where the prefiller
fails the decoder computes the prompt. What either sends back goes to the client as it comes.
"""

import http.client
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PREFILLER, DECODER = sys.argv[1:3]
TIMEOUT_S = 600
PASSED = ("authorization", "content-type", "x-request-id")


def for_one_token(body: bytes) -> bytes:
    """The same request, answered as soon as its prompt is computed."""
    asked = json.loads(body)
    within = asked.get("sampling_params", asked)  # of /inference/v1/generate
    name = "max_completion_tokens" if "max_completion_tokens" in within else "max_tokens"
    within |= {name: 1, "min_tokens": 0}
    asked |= {"stream": False}
    asked.pop("stream_options", None)
    return json.dumps(asked).encode()


class Proxy(BaseHTTPRequestHandler):
    """One request of a client."""

    def ask(self, server: str, body: bytes | None) -> http.client.HTTPResponse:
        """The beginning of a server's answer to this request."""
        link = http.client.HTTPConnection(urlsplit(server).netloc, timeout=TIMEOUT_S)
        headers = {name: value for name, value in self.headers.items() if name.lower() in PASSED}
        link.request(self.command, self.path, body, headers)
        return link.getresponse()

    def do_POST(self) -> None:
        """To the prefiller, then to the decoder."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            self.ask(PREFILLER, for_one_token(body)).read()
        except (OSError, http.client.HTTPException, ValueError, TypeError, AttributeError) as error:
            print(f"{PREFILLER}: {error}", file=sys.stderr, flush=True)
        self.pass_on(body)

    def do_GET(self) -> None:
        """Models, health and metrics are those of the decoder."""
        self.pass_on(None)

    def pass_on(self, body: bytes | None) -> None:
        """The decoder's answer, as it comes."""
        try:
            answer = self.ask(DECODER, body)
        except (OSError, http.client.HTTPException) as error:
            self.send_error(502, f"{DECODER}: {error}")
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type", "application/json"))
        self.end_headers()
        while part := answer.read1(65536):
            self.wfile.write(part)
            self.wfile.flush()


with ThreadingHTTPServer(("127.0.0.1", int([*sys.argv, "8000"][3])), Proxy) as server:
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
