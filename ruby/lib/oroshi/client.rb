# frozen_string_literal: true

require "io/wait"
require_relative "version"

module Oroshi
  # An event-driven client of HTTP/1.1 and HTTP/2. One native thread carries out its requests and never holds Ruby's lock
  # (the GVL): thousands at once cost no Ruby threads.
  #
  #   client = Oroshi::Client.new(max_connections: 1000, timeout: 10)
  #   response = client.get("https://example.org/", query: { page: 1 })
  #   response.status          # => 200
  #   response.json
  #
  #   client.fetch_all(urls) do |result, url|
  #     puts result.failed? ? "#{url}: #{result.message}" : "#{url}: #{result.status}"
  #   end
  #
  # Any number of threads and fibers may use a client at the same time; they share its connections. A waiting call lets
  # other threads run, and other fibers if there is a scheduler. Interrupts (`Timeout`, `Thread#raise`, Ctrl-C) end the
  # wait and the request. After a `fork` the child's first request starts its own thread and connections; the parent's
  # continue. A client may be frozen.
  #
  # docs/client.md explains every option, and the life of a request.
  class Client
    require "oroshi/client_native"
    require_relative "client/errors"
    require_relative "client/headers"
    require_relative "client/response"
    require_relative "client/multipart"
    require_relative "client/options"
    require_relative "client/cookies"
    require_relative "client/engine"
    require_relative "client/call"
    require_relative "client/burst"
    private_constant :Native, :Multipart, :Options, :Engine, :Call, :Burst

    # options: see docs/client.md. Starts nothing yet; the first request does.
    #
    # Raises ArgumentError for an unknown option, an invalid value, or an unusable file.
    def initialize(**options)
      settings = Native::Settings.new(Options.of_client(options))
      @base_url = options[:base_url]&.to_s&.then { |url| Native.join(url, "").freeze }
      @raise_for_status = options.fetch(:raise_for_status, false)
      @max_connections = settings.max_connections # as asked for, or less where descriptors are few
      @limits = options.slice(:timeout, :queue_timeout).freeze
      @engine = Engine.new(settings)
      @cookies = settings.cookies? ? Cookies.new(settings) { |url| Options.url(url, @base_url) } : nil
    end

    # The client's Cookies; nil without the option `cookies`.
    attr_reader :cookies

    # Sends a request, and waits for the whole response.
    #
    # method: a String or Symbol, in capitals on the wire. url: a String or URI. options: headers, query, body, json,
    # form, basic_auth, bearer_auth, and the per-request options of docs/client.md.
    #
    # With a block the body is not kept: the block receives it piece by piece, as it comes and is unpacked, binary, with
    # the Response (without a body) as a second argument. While the block runs, at most half a megabyte waits, beside what
    # the kernel holds. max_body_bytes does not limit the body. A block that breaks or raises ends the request.
    #
    # Returns a Response, whatever its status unless raise_for_status is set. Raises an Error that names the phase in
    # which the request failed, and ArgumentError.
    def request(method, url, **options, &block)
      order = Options.order(method, url, options, @base_url)
      order[4] = { **order[4].to_h, stream: true } if block
      checks = options.fetch(:raise_for_status, @raise_for_status)
      Call.open(@engine, @limits, options) do |call|
        call.submit(0, *order)
        result = block ? hand_over(call, checks, &block) : call.wait_for_one
        result = result.checked if checks
        raise result if result.failed?

        result
      end
    end

    # Sends a GET request; see #request, as for all that follow.
    def get(url, **options, &)
      request("GET", url, **options, &)
    end

    def head(url, **options, &)
      request("HEAD", url, **options, &)
    end

    def post(url, **options, &)
      request("POST", url, **options, &)
    end

    def put(url, **options, &)
      request("PUT", url, **options, &)
    end

    def patch(url, **options, &)
      request("PATCH", url, **options, &)
    end

    def delete(url, **options, &)
      request("DELETE", url, **options, &)
    end

    # Sends many requests at the same time, and yields each result as it arrives.
    #
    # requests: anything with `each`: URLs, or Hashes such as `{ url: "...", method: "POST", json: { a: 1 } }`, whose
    # other keys are options of `request`. They are read one after another as there is room, so an endless source works.
    # concurrency: maximum requests under way or waiting to be yielded. Default: max_connections.
    # options: defaults for every request.
    #
    # The block receives the result, a Response or an Error (see `result.failed?`), and the request. A failing request
    # raises nothing. If the block breaks or raises, all other requests are cancelled.
    #
    # Returns the number of results; without a block all of them, in the order of the requests.
    def fetch_all(requests, concurrency: @max_connections, **options, &block)
      Options.check(:concurrency, concurrency)
      raise ArgumentError, "requests: expected something with each, such as an Array of URLs, got nil" if requests.nil?

      requests = [requests] unless requests.respond_to?(:each) && !requests.is_a?(Hash)
      results = []
      # A lambda takes exactly the arguments that it names.
      hand_over = if block.nil? then ->(result, _request, n) { results[n] = result }
                  # -2 is `&:status`.
                  elsif block.lambda? && [1, -2].include?(block.arity)
                    ->(result, _request, _n) { block.call(result) }
                  else ->(result, request, _n) { block.call(result, request) }
                  end
      options = { raise_for_status: @raise_for_status }.merge(options) if @raise_for_status
      count = Call.open(@engine, @limits, options) do |call|
        Burst.new(call, concurrency, options, @base_url, &hand_over).run(requests)
      end
      block ? count : results
    end

    # Returns the client's state and history as a Hash: connections that are open or idle, requests that wait or are
    # in_flight, max_connections (less than configured where descriptors are few), and the counts of requests, connects,
    # retries, redirects and failures (requests without a response's head; not those whose body failed). They belong to
    # the thread, and restart from zero with the next one: in a child, after `close`, after a defect.
    def counts
      Call.open(@engine, @limits) do |call|
        call.count
        result = call.wait_for_one
        raise result if result.is_a?(Error)

        result
      end
    end

    # Closes the idle connections.
    def close_idle
      @engine.close_idle
      nil
    end

    # Releases the thread and its connections; they end after the requests under way. A further request starts new ones,
    # even if another thread sends it at the same moment.
    def close
      @engine.close
      nil
    end

    # Shows no headers: they may contain secrets.
    def inspect
      "#<#{self.class} max_connections=#{@max_connections}>"
    end

    # How much of a body StatusError keeps where a block would have received it.
    REASON_BYTES = 65_536
    private_constant :REASON_BYTES

    private

    def with_body(response, body)
      response.body.replace(body.force_encoding(response.body.encoding))
      response
    end

    # Yields the pieces of a body, but not those of a response that raises. Returns the result.
    def hand_over(call, checks)
      response = kept = nil
      call.each_part do |kind, part|
        case kind
        when :head then kept = +"" if (response = part).status >= 400 && checks
        when :piece
          next yield(part, response) unless kept

          kept << part.byteslice(0, REASON_BYTES - kept.bytesize)
          return with_body(response, kept) if kept.bytesize == REASON_BYTES # the rest may have no end
        else return kept && !part.failed? ? with_body(part, kept) : part
        end
      end
    end
  end
end
