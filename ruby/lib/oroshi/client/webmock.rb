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
        order = Options.order(method, url, options, @base_url)
        return super if !WebMockHook.enabled || order[1].start_with?("unix:", "http+unix:", "https+unix:")

        signature = signature(order)
        WebMock::RequestRegistry.instance.requested_signatures.put(signature)
        answer = WebMock::StubRegistry.instance.response_for_request(signature)
        raise WebMock::NetConnectNotAllowedError, signature unless answer || WebMock.net_connect_allowed?(signature.uri)

        response = answer ? stubbed(answer, order[1]) : super
        WebMock::CallbackRegistry.invoke_callbacks({ lib: :oroshi, real_request: answer.nil? }, signature, answer || recorded(response))
        response = response.checked if answer && options.fetch(:raise_for_status, @raise_for_status)
        raise response if response.failed?

        if block && answer
          block.call(response.body.dup, response) unless response.body.empty?
          response.body.clear
        end
        response
      end

      def fetch_all(requests, concurrency: @max_connections, **options, &block)
        return super unless WebMockHook.enabled

        singles = requests.respond_to?(:each) && !requests.is_a?(Hash) ? requests : [requests]
        results = singles.each_entry.map do |one|
          result = single(one, options)
          block&.call(*[result, one].first(block.lambda? && [1, -2].include?(block.arity) ? 1 : 2))
          result
        end
        block ? results.size : results
      end

      private

      def single(one, options)
        own = one.is_a?(Hash) ? options.merge(one) : { **options, url: one }
        request(own.delete(:method) || "GET", own.delete(:url), **own)
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

      def recorded(response)
        WebMock::Response.new(status: [response.status, response.reason], headers: response.headers.to_h, body: response.body)
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
