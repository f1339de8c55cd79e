# frozen_string_literal: true

worker_timeout "30s"
min_memory_per_child "350m"
max_memory_per_child "400m"
log_format "json"
status_socket ENV.fetch("STATUS_SOCKET", "/tmp/oroshi.status")
