# frozen_string_literal: true

# ISUCON4_DATABASE: path of MariaDB's socket. ISUCON4_SECRET: signs sessions; unset: a new one at each start, the same
# in all workers, because every server here loads the application before it forks.

require "securerandom"
require_relative "app"

# Behind nginx (config/nginx.conf) these requests do not come here.
use Rack::Static, urls: ["/assets"], root: File.join(__dir__, "public"),
                  header_rules: [[:all, { "cache-control" => "max-age=3600" }]]
store = Isucon4::Store.new(ENV.fetch("ISUCON4_DATABASE"))
run Isucon4::App.new(store, ENV.fetch("ISUCON4_SECRET") { SecureRandom.hex(32) })
