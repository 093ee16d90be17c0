"""Ports kept for a worker until its server listens."""

import socket


def port_holder() -> socket.socket:
    """Returns an unbound socket of the kind that TensorFlow's server binds.

    The server listens on all interfaces, IPv6 too where there is any. A port that is
    free on 127.0.0.1 only is not free for it: an outgoing connection from another
    address of this machine may have it.
    """
    dual = socket.has_dualstack_ipv6()
    holder = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
    if dual:
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return holder


def hold_any_port(holder: socket.socket) -> int:
    """Binds `holder` to a port that nobody else gets, and returns its number.

    The socket does not listen: Linux gives such a port to nobody who asks for any free
    port, yet lets a server with SO_REUSEADDR, which gRPC sets, listen on it. So no
    other program can take the port between its choice and the moment when TensorFlow
    listens.
    """
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))
    return holder.getsockname()[1]
