# frozen_string_literal: true

require "webmock"
require_relative "../client"

module Oroshi
  class Client
    # Lets WebMock answer the requests of Oroshi::Client.
    #
    #   require "webmock/minitest" # or webmock/rspec
    #   require "oroshi/client/webmock"
    #   stub_request(:get, "https://api.example/users").to_return(status: 200, body: "[]")
    #
    # Requests to unix sockets are none of WebMock's, and go out. Redirects of stubs are not followed: their responses
    # are given as they are. While WebMock is enabled, fetch_all carries out one request after another.
    module WebMockHook
      class << self
        attr_accessor :enabled
      end

      def initialize(**options)
        super
        @webmock_fields = options[:headers]
      end

      def request(method, url, **options, &block)
        return super unless WebMockHook.enabled

        order = Options.order(method, url, options, @base_url)
        # Options.order has read files and other sources to their end, so a real request gets what was read.
        read = { headers: order[2], body: order[3] }.compact
        real = { **options.except(:headers, :body, :json, :form, :basic_auth, :bearer_auth), **read }
        return super(method, url, **real, &block) if order[1].start_with?("unix:", "http+unix:", "https+unix:")

        signature = signature(order)
        WebMock::RequestRegistry.instance.requested_signatures.put(signature)
        answer = WebMock::StubRegistry.instance.response_for_request(signature)
        raise WebMock::NetConnectNotAllowedError, signature unless answer || WebMock.net_connect_allowed?(signature.uri)

        pieces = +""
        keep = block && ->(piece, head) { block.call(pieces << piece && piece, head) }
        response = answer ? stubbed(answer, order[1]) : super(method, url, **real, raise_for_status: false, &keep)
        told = answer || recorded(response, block ? pieces : response.body)
        WebMock::CallbackRegistry.invoke_callbacks({ lib: :oroshi, real_request: answer.nil? }, signature, told)
        response = response.checked if options.fetch(:raise_for_status, @raise_for_status)
        raise response if response.failed?

        if block && answer
          block.call(response.body.dup, response) unless response.body.empty?
          response.body.clear
        end
        response
      end

      def fetch_all(requests, concurrency: @max_connections, **options, &block)
        return super unless WebMockHook.enabled

        Options.check(:concurrency, concurrency)
        raise ArgumentError, "requests: expected something with each, such as an Array of URLs, got nil" if requests.nil?

        singles = requests.respond_to?(:each) && !requests.is_a?(Hash) ? requests : [requests]
        count = 0
        results = []
        singles.each do |one|
          result = single(one, options)
          count += 1
          next results << result unless block

          block.call(*[result, one].first(block.lambda? && [1, -2].include?(block.arity) ? 1 : 2))
        end
        block ? count : results
      end

      private

      def single(one, options)
        own = one.is_a?(Hash) ? options.merge(one) : { **options, url: one }
        url = own.delete(:url) { raise ArgumentError, "#{one.keys.inspect}: a request needs a :url" }
        request(own.delete(:method) || "GET", url, **own)
      rescue Error => e
        e
      end

      def signature(order)
        method, url, fields, body, options = order
        query = options && options[:query]
        url = "#{url}#{url.include?("?") ? "&" : "?"}#{URI.encode_www_form(query)}" if query && !query.empty?
        fields = [*@webmock_fields, *fields].group_by { |name, _| name.to_s }
                                            .transform_values { |pairs| pairs.flat_map { |_, value| Array(value) }.join(", ") }
        WebMock::RequestSignature.new(method.downcase.to_sym, WebMock::Util::URI.normalize_uri(url), body: body, headers: fields)
      end

      # Returns the Response of a stub, or the Error that it asks for.
      def stubbed(answer, url)
        if answer.should_timeout
          return FirstByteTimeout.new("#{url.sub(/\?.*/m, "")}: a timeout of WebMock", phase: :first_byte, timeout: true,
                                                                                        name: "first-byte-timeout")
        end
        answer.raise_error_if_any
        status, reason = answer.status
        lines = (answer.headers || {}).flat_map { |name, value| Array(value).map { |one| "#{name}: #{one}\n" } }.join
        Response.new(status.to_i, reason.to_s.dup, "1.1".dup, lines, answer.body.to_s.b, +"", url.dup, 0, nil, [nil] * 7 + [0.0])
      end

      def recorded(response, body)
        fields = response.headers.to_h
        fields = fields.except("content-encoding", "content-length") if response.coding # the body is unpacked
        WebMock::Response.new(status: [response.status, response.reason], headers: fields, body: body)
      end

      # WebMock turns it on and off with all others: WebMock.enable!, WebMock.disable!(except: [:oroshi]).
      class Adapter < WebMock::HttpLibAdapter
        adapter_for :oroshi

        def self.enable!
          WebMockHook.enabled = true
        end

        def self.disable!
          WebMockHook.enabled = false
        end
      end
      private_constant :Adapter
    end

    prepend WebMockHook
    # `webmock/minitest` and its like have enabled the others when they were loaded.
    WebMockHook.enabled = true
  end
end
