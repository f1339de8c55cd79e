# frozen_string_literal: true

module Oroshi
  class Client
    # The work of Client#fetch_all: begins requests as there is room, and yields results as they arrive.
    class Burst
      def initialize(call, concurrency, options, &block)
        @call = call
        @concurrency = concurrency
        @options = options
        @block = block
        @under_way = {} # what was asked for, by tag
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
        @begun += 1
      end

      def order(request)
        return Options.order("GET", request, @options) unless request.is_a?(Hash)

        own = @options.merge(request)
        url = own.delete(:url) { raise ArgumentError, "#{request.keys.inspect}: a request needs a :url" }
        Options.order(own.delete(:method) || "GET", url, own)
      end

      # Yields each result once.
      def hand_over(wait: true)
        @call.results(wait: wait) { |tag, result| @block.call(result, @under_way.delete(tag), tag) }
      end
    end
  end
end
