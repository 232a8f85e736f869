"""kombu's Redis transport, mended for a broker that goes away while a task runs.

Two things then ended the whole worker with an AttributeError instead of letting it reconnect (kombu 5.7): a
closing channel puts unacknowledged messages back over the connection that it has lost, and the task that was
running acknowledges its message on that closed channel. Neither is needed: PostgreSQL knows the jobs, and Redis
still holds the message, which at worst is delivered again and finds nothing to do.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import redis


class Channel(redis.Channel):
    """Lets go of messages whose connection is gone."""

    def close(self) -> None:
        """Close, restoring unacknowledged messages only where that is possible."""
        if self.connection is None or self.connection.client is None:
            self.do_restore = False
        super().close()  # type: ignore[no-untyped-call]

    def basic_ack(self, delivery_tag: Any, multiple: bool = False) -> None:
        """Acknowledge, unless the channel is closed."""
        if not self.closed:
            super().basic_ack(delivery_tag, multiple)  # type: ignore[no-untyped-call]

    def basic_reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """Reject, unless the channel is closed."""
        if not self.closed:
            super().basic_reject(delivery_tag, requeue)  # type: ignore[no-untyped-call]


class Transport(redis.Transport):
    """Redis with that channel; named by ``broker_transport``."""

    Channel = Channel
