# frozen_string_literal: true

module Oroshi
  class Client
    # The work of Client#fetch_all: begins requests as there is room, and yields results as they arrive.
    class Burst
      # base_url: where URLs without a scheme begin, or nil.
      def initialize(call, concurrency, options, base_url, &block)
        @call = call
        @concurrency = concurrency
        @options = options
        @base_url = base_url
        @block = block
        @under_way = {} # what was asked for, by tag
        @checked = {} # tags of requests with raise_for_status
        @begun = 0
      end

      # Returns the number of results.
      def run(requests)
        requests.each { |request| begin_one(request) }
        hand_over until @under_way.empty?
        @begun
      end

      private

      def begin_one(request)
        order = order(request)
        hand_over(wait: false)
        hand_over while @under_way.size >= @concurrency
        hand_over until @call.submit(@begun, *order)
        @under_way[@begun] = request
        @checked[@begun] = true if checks?(request)
        @begun += 1
      end

      def order(request)
        return Options.order("GET", request, @options, @base_url) unless request.is_a?(Hash)

        own = @options.merge(request)
        url = own.delete(:url) { raise ArgumentError, "#{request.keys.inspect}: a request needs a :url" }
        Options.order(own.delete(:method) || "GET", url, own, @base_url)
      end

      def checks?(request)
        own = request[:raise_for_status] if request.is_a?(Hash)
        own.nil? ? @options[:raise_for_status] : own
      end

      # Yields each result once.
      def hand_over(wait: true)
        @call.results(wait: wait) do |tag, result|
          result = result.checked if @checked.delete(tag)
          @block.call(result, @under_way.delete(tag), tag)
        end
      end
    end
  end
end
