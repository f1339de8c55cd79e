# oroshi-rack -c config/oroshi.rb config.ru
listen ENV.fetch("ISUCON4_LISTEN")
max_workers Integer(ENV.fetch("ISUCON4_WORKERS", 4))
max_request_per_child 0 # as the others: workers are not replaced
# Warmup moves objects, and mysql2 0.5.3 (Debian 12) does not follow: it then raises garbage in place of its errors.
warmup false
