# frozen_string_literal: true

# The founding case: N requests at the same moment, each on its own connection, to a server that takes its time to
# answer. How far is the mean from the server's own delay, and what does a request cost?
#
#     oroshi target --listen 127.0.0.1:8080 --delay 100ms --cpus 1
#     taskset -c 0 ruby -I ruby/lib ruby/bench/burst.rb http://127.0.0.1:8080/ 1000 oroshi
#
# The client is oroshi, threads (net/http), em (em-http-request) or coolio (a client written here, because Cool.io has
# had none since 1.3). Prints one line of JSON. Each time runs from the moment when Ruby begins the request until it has
# the whole answer; `all_mean_ms` runs from the start of the burst. CPU time is that of this process with all its
# threads, without loading libraries.

require "json"
require "uri"

module Burst
  # A request's start, its outcome and its end.
  Sample = Struct.new(:began, :ended, :ok)

  module_function

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  def run(url, count, client)
    load_client = CLIENTS.fetch(client) { abort "#{client}: no such client; there are #{CLIENTS.keys.join(", ")}" }
    implementation = load_client.call
    cpu = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
    began = now
    samples = implementation.run(url, count)
    wall = now - began
    cpu = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - cpu
    report(client, samples, began, wall, cpu)
  end

  def report(client, samples, began, wall, cpu)
    answered = samples.select(&:ok)
    times = answered.map { |sample| (sample.ended - sample.began) * 1000 }.sort
    {
      client: client, n: samples.size, ok: times.size, failed: samples.size - times.size,
      mean_ms: (times.sum / times.size if times.any?)&.round(2),
      p99_ms: times[[(times.size * 0.99).ceil - 1, 0].max]&.round(2),
      max_ms: times.last&.round(2),
      all_mean_ms: (answered.sum { |sample| sample.ended - began } / answered.size * 1000 if answered.any?)&.round(2),
      cpu_us_per_request: (cpu * 1e6 / samples.size).round(1),
      wall_ms: (wall * 1000).round(1)
    }
  end

  # Oroshi::Client#fetch_all.
  module Oroshi
    # A request for fetch_all, by its to_s.
    Numbered = Struct.new(:url, :sample) do
      alias_method :to_s, :url
    end

    module_function

    def run(url, count)
      client = ::Oroshi::Client.new(max_connections: count, keep_alive: false)
      samples = []
      requests = Enumerator.new do |all|
        count.times { all << Numbered.new(url, Sample.new(Burst.now).tap { |sample| samples << sample }) }
      end
      client.fetch_all(requests) do |result, request|
        request.sample.ended = Burst.now
        request.sample.ok = result.success?
      end
      samples
    end
  end

  # A thread for each request.
  module Threads
    module_function

    def run(url, count)
      uri = URI(url)
      threads = Array.new(count) do
        Thread.new do
          sample = Sample.new(Burst.now)
          begin
            sample.ok = Net::HTTP.get_response(uri).is_a?(Net::HTTPOK)
          rescue SystemCallError, IOError, Timeout::Error
            sample.ok = false
          end
          sample.ended = Burst.now
          sample
        end
      end
      threads.map(&:value)
    end
  end

  # EventMachine, with the two calls needed for more than a thousand connections.
  module Em
    module_function

    def run(url, count)
      EM.epoll
      EM.set_descriptor_table_size(Process.getrlimit(:NOFILE).last)
      samples = []
      EM.run do
        left = count
        count.times do
          samples << sample = Sample.new(Burst.now)
          request = EM::HttpRequest.new(url, connect_timeout: 60, inactivity_timeout: 60).get
          done = lambda do |ok|
            sample.ended = Burst.now
            sample.ok = ok
            EM.stop if (left -= 1).zero?
          end
          request.callback { done.call(request.response_header.status == 200) }
          request.errback { done.call(false) }
        end
      end
      samples
    end
  end

  # Cool.io's TCP sockets, with a minimum of HTTP.
  module CoolIo
    module_function

    def run(url, count)
      uri = URI(url)
      loop = Coolio::Loop.default
      samples = Array.new(count) do
        sample = Sample.new(Burst.now, nil, false)
        connection.connect(uri.host, uri.port, uri, sample).attach(loop)
        sample
      end
      loop.run
      samples
    end

    # A Cool.io class, loaded only where it is measured.
    def connection
      @connection ||= Class.new(Coolio::TCPSocket) do
        def initialize(socket, uri, sample)
          super(socket)
          @uri = uri
          @sample = sample
          @received = +""
        end

        def on_connect
          write("GET #{@uri.request_uri} HTTP/1.1\r\nHost: #{@uri.host}:#{@uri.port}\r\nConnection: close\r\n\r\n")
        end

        def on_read(data)
          @received << data
          head, body = @received.split("\r\n\r\n", 2)
          close if body && body.bytesize >= head[/^content-length: *(\d+)/i, 1].to_i
        end

        def on_close
          @sample.ok = @received.start_with?("HTTP/1.1 200 ")
          @sample.ended = Burst.now
        end
      end
    end
  end

  CLIENTS = {
    "oroshi" => -> { require "oroshi/client"; Oroshi },
    "threads" => -> { require "net/http"; Threads },
    "em" => -> { require "em-http-request"; Em },
    "coolio" => -> { require "cool.io"; CoolIo }
  }.freeze
end

if $PROGRAM_NAME == __FILE__
  url, count, client = ARGV
  abort "usage: burst.rb URL N oroshi|threads|em|coolio" unless client && count.to_i.positive?
  puts JSON.generate(Burst.run(url, Integer(count), client))
end
