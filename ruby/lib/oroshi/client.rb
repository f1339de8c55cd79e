# frozen_string_literal: true

require "io/wait"
require_relative "version"

module Oroshi
  # An event-driven HTTP/1.1 client. Its requests are carried out by one native thread, which never holds Ruby's lock
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
  # A client can be used by any number of threads and fibers at the same time; they share its connections. Whoever
  # waits for an answer lets other threads run, and other fibers where there is a scheduler. Interrupts (`Timeout`,
  # `Thread#raise`, Ctrl-C) end the wait and the request. After a `fork` the child's first request starts a thread and
  # connections of its own; the parent's go on. A client may be frozen.
  #
  # docs/client.md explains every option, and what becomes of a request.
  class Client
    require "oroshi/client_native"
    require_relative "client/errors"
    require_relative "client/headers"
    require_relative "client/response"
    require_relative "client/multipart"
    require_relative "client/options"
    require_relative "client/engine"
    require_relative "client/call"
    require_relative "client/burst"
    private_constant :Native, :Multipart, :Options, :Engine, :Call, :Burst

    # options: see docs/client.md. Starts nothing yet: that does the first request.
    #
    # Raises ArgumentError for an option that there is none of, a value that makes no sense, or a file that cannot be used.
    def initialize(**options)
      settings = Native::Settings.new(Options.of_client(options))
      Client.warn_of_proxy
      @max_connections = settings.max_connections # as asked for, or less where descriptors are few
      @limits = options.slice(:timeout, :queue_timeout).freeze
      @engine = Engine.new(settings)
    end

    PROXY_VARIABLES = %w[http_proxy https_proxy all_proxy HTTPS_PROXY ALL_PROXY].freeze
    private_constant :PROXY_VARIABLES

    class << self
      # Says once that the environment names a proxy, which other clients would use and this one does not. Its address may hold a
      # password and is not shown. (HTTP_PROXY in capitals is left alone: in CGI it is a header of a request.)
      def warn_of_proxy # :nodoc:
        name = PROXY_VARIABLES.find { |variable| !ENV.fetch(variable, "").empty? }
        return if name.nil? || @warned_of_proxy

        @warned_of_proxy = true
        warn "Oroshi::Client: #{name} is set, and this client uses no proxies: it connects to each URL's host itself"
      end
    end

    # Sends a request, and waits until its answer has come whole.
    #
    # method: a String or Symbol, in capitals on the wire. url: a String or URI. options: headers, query, body, json,
    # form, basic_auth, bearer_auth; and those of docs/client.md that a request may have for itself.
    #
    # Returns a Response, whatever its status. Raises an Error that says in which phase the request failed, and
    # ArgumentError.
    def request(method, url, **options)
      raise ArgumentError, "a block: expected none; the Response has the whole body, and fetch_all takes a block" if block_given?

      order = Options.order(method, url, options)
      Call.open(@engine, @limits, options) do |call|
        call.submit(0, *order)
        result = call.wait_for_one
        raise result if result.failed?

        result
      end
    end

    # A GET request; see #request, as for all that follow.
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

    # Sends many requests at the same time, and gives each result to the block as it comes.
    #
    # requests: anything with `each`: URLs, or Hashes such as `{ url: "...", method: "POST", json: { a: 1 } }`, whose
    # other keys are options of `request`. They are taken one after another as there is room, so that an endless source
    # is fine.
    # concurrency: how many may be under way or wait to be given to the block. Default: max_connections.
    # options: for every request that does not have them itself.
    #
    # The block gets the result, which is a Response or an Error (`result.failed?` tells), and what was asked for.
    # Nothing is raised for a request that fails. If the block breaks or raises, all other requests are cancelled.
    #
    # Returns how many results there were; without a block all of them, in the order of the requests.
    def fetch_all(requests, concurrency: @max_connections, **options, &block)
      Options.check(:concurrency, concurrency)
      raise ArgumentError, "requests: expected something with each, such as an Array of URLs, got nil" if requests.nil?

      requests = [requests] unless requests.respond_to?(:each) && !requests.is_a?(Hash)
      results = []
      # A lambda wants just as many arguments as it names.
      hand_over = if block.nil? then ->(result, _request, n) { results[n] = result }
                  # -2 is `&:status`.
                  elsif block.lambda? && [1, -2].include?(block.arity)
                    ->(result, _request, _n) { block.call(result) }
                  else ->(result, request, _n) { block.call(result, request) }
                  end
      count = Call.open(@engine, @limits, options) { |call| Burst.new(call, concurrency, options, &hand_over).run(requests) }
      block ? count : results
    end

    # What the client holds now, and what it has done, as a Hash: connections that are open or idle, requests that wait
    # or are in_flight, max_connections (less than asked for where descriptors are few), and the counts of requests,
    # connects, retries, redirects and failures (requests without a response's head; not those whose body failed). All are
    # those of its thread, and start from zero with the next one: in a child, after `close`, after a defect.
    def counts
      Call.open(@engine, @limits) do |call|
        call.count
        result = call.wait_for_one
        raise result if result.is_a?(Error)

        result
      end
    end

    # Closes the connections that are idle now.
    def close_idle
      @engine.close_idle
      nil
    end

    # Lets go of the thread and its connections; they end when the requests under way have. Another request begins anew,
    # also one that another thread sends just then.
    def close
      @engine.close
      nil
    end

    # Shows no headers: they may hold secrets.
    def inspect
      "#<#{self.class} max_connections=#{@max_connections}>"
    end
  end
end
