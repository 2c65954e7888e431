"""Channel options of the internal connections, matched on both ends."""

# A prefill's features are sent in chunks of at most a few MiB; the margin is for large batches.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A peer is given up 10 s after its last word: what it was asked goes on elsewhere.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Of pings that gRPC sends of its own accord; while one is under way, the above sends none.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A restarted peer should be found again within a fraction of a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A client may ping a silent (queued) stream every 5 s; without these it is cut off.
    ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Who is gone without a word must not hold contexts and answers for hours.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    # Two processes on one port would each take half of the calls.
    ("grpc.so_reuseport", 0),
)
