"""The one way out of a sandbox that may use a network: a proxy with a list of allowed hosts.

Reading order:

- `policy.py`        which names, ports and addresses may be reached
- `http_message.py`  strict reading of a request's or a response's head
- `authority.py`     a certificate authority made for one host, so that requests inside TLS are seen
- `proxy.py`         the proxy: one request for each connection, headers stripped, a line of log for each
"""
