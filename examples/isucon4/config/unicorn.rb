# unicorn --env none --no-default-middleware --config-file config/unicorn.rb config.ru
listen ENV.fetch("ISUCON4_LISTEN"), backlog: 1024
worker_processes Integer(ENV.fetch("ISUCON4_WORKERS", 4))
preload_app true # one secret for all workers
