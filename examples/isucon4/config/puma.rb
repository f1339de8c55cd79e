# puma --quiet --environment none --config config/puma.rb config.ru
bind "unix://#{ENV.fetch("ISUCON4_LISTEN")}"
workers Integer(ENV.fetch("ISUCON4_WORKERS", 4))
threads 1, 1
preload_app! # one secret for all workers
