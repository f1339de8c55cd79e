# frozen_string_literal: true

module Oroshi
  class Client
    # The work of Client#fetch_all: requests are begun as there is room, and results handed over as they come.
    class Burst
      def initialize(call, concurrency, options, &block)
        @call = call
        @concurrency = concurrency
        @options = options
        @block = block
        @under_way = {} # what was asked for, by tag
        @begun = 0
      end

      # Returns how many results there were.
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

      # Its results go to the block: each once, however it came about.
      def hand_over(wait: true)
        @call.results(wait: wait) { |tag, result| @block.call(result, @under_way.delete(tag), tag) }
      end
    end
  end
end
