# frozen_string_literal: true

# Prints the CPU time of one call of each application in experiments/rack-requests.toml, without a server:
#
#     ruby ruby/bench/app_alone.rb [CALLS]
#
# A server's time per request less this is what the server adds. A call gets a copy of one environment. Bodies by `each`
# are read; those that are an Array, or a file by `to_path`, are left to the server.

require "rack"
require "tmpdir"

EXPERIMENT = File.expand_path("../../experiments/rack-requests.toml", __dir__)
PATHS = {
  "config.ru" => "/search?q=oroshi&page=2", "large.ru" => "/", "file.ru" => "/",
  "sinatra.ru" => "/hello/world", "rails.ru" => "/hello/world"
}.freeze
CALLS = Integer(ARGV.fetch(0, 20_000))
FIRST_CALLS = 500

# Returns the applications' texts by their names.
def applications
  text = File.read(EXPERIMENT)
  text.scan(/^"(\w+\.ru)" = (?:'''\n(.*?)'''|'(.*?)'$)/m).to_h { |name, long, short| [name, long || short] }
end

def call(app, env)
  status, _, body = app.call(env.dup)
  raise "status #{status}" unless status == 200

  body.each { |piece| piece } unless body.is_a?(Array) || body.respond_to?(:to_path)
  body.close if body.respond_to?(:close)
end

# Returns microseconds of CPU time per call.
def measure(app, env)
  FIRST_CALLS.times { call(app, env) }
  GC.start
  before = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
  CALLS.times { call(app, env) }
  (Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - before) / CALLS * 1e6
end

ENV["RACK_ENV"] = ENV["RAILS_ENV"] = "production"
found = applications
PATHS.each do |name, path|
  # A process for each, because frameworks change Ruby's own classes.
  Process.wait(fork do
    Dir.mktmpdir do |folder|
      Dir.chdir(folder)
      File.write(name, found.fetch(name))
      app, = Rack::Builder.parse_file(name)
      puts format("%-12s %8.2f us per call without a server", name, measure(app, Rack::MockRequest.env_for(path)))
    rescue LoadError => e
      puts format("%-12s left out: %s", name, e.message)
    end
  end)
end
