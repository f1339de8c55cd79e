# frozen_string_literal: true

module Oroshi
  class Client
    # A way to the native thread and back, for one wait: requests go there, and results come back. It waits for a
    # descriptor as one waits for any IO, which is what lets threads, fiber schedulers and interrupts do as they
    # always do.
    class Call
      # Gives a call to the block. Whatever it has begun and not seen the end of is cancelled then.
      def self.open(engine)
        call = new(engine)
        yield call
      ensure
        call&.finish
      end

      def initialize(engine)
        @native = engine.call
        @io = IO.for_fd(@native.fileno, "rb", autoclose: false) # it is the native call's, which closes it
      end

      # Sends what Options.order has made. False if there is no room: to be tried again after #results.
      def submit(tag, method, url, headers, body, options)
        @native.submit(tag, method, url, headers, body, options)
      end

      # Asks for the client's counts, as a result.
      def count
        @native.count
      end

      # Waits until there is something to see: results, or room. Gives what has come since the last time to the block,
      # tag first.
      def results(wait: true)
        @io.wait_readable if wait
        @native.take.each { |tag, *outcome| yield tag, result(*outcome) }
      end

      def wait_for_one
        loop do
          results { |_tag, result| return result }
        end
      end

      def finish
        @native.finish
      end

      private

      def result(kind, *fields)
        case kind
        when :response then Response.new(*fields)
        when :failure then Error.of(*fields)
        when :counts then fields.first
        else Error.new("the client's thread has ended, by a defect of it", name: "ended")
        end
      end
    end
  end
end
