# frozen_string_literal: true

# ISUCON4_DATABASE: path of MariaDB's socket. ISUCON4_SECRET: the key of session signatures. If it is unset, each start
# makes a new one. All workers share it, because every server here loads the application before it forks.

require "securerandom"
require_relative "app"

# Only without nginx: config/nginx.conf serves these files itself.
use Rack::Static, urls: ["/assets"], root: File.join(__dir__, "public"),
                  header_rules: [[:all, { "cache-control" => "max-age=3600" }]]
store = Isucon4::Store.new(ENV.fetch("ISUCON4_DATABASE"))
run Isucon4::App.new(store, ENV.fetch("ISUCON4_SECRET") { SecureRandom.hex(32) })
