# frozen_string_literal: true

module Oroshi
  class Client
    # A way to the native thread and back, for one wait: requests go there, and results come back. It waits for a
    # descriptor as one waits for any IO, which is what lets threads, fiber schedulers and interrupts do as they
    # always do.
    class Call
      # How long to wait for a descriptor, and how often to look: there is nobody who could tell.
      PATIENCE_S = 30
      PAUSE_S = 0.01

      # Gives a call to the block. Whatever it has begun and not seen the end of is cancelled then. Where all descriptors
      # of the process are taken, waits until one is free. Raises QueueError if that takes too long.
      def self.open(engine)
        call = new(native(engine))
        yield call
      ensure
        call&.finish
      end

      def self.native(engine)
        over = nil
        until (native = engine.running.call)
          now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
          over ||= now + PATIENCE_S
          if now > over
            raise QueueError.new("no descriptor was free within #{PATIENCE_S} s to wait with: raise `ulimit -n`, or " \
                                 "use fewer threads", phase: :queue, name: "descriptors", retry_safe: true)
          end
          sleep PAUSE_S
        end
        native
      end
      private_class_method :native

      def initialize(native)
        @native = native
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
        else Error.new("a defect of the client has ended the request (standard error has the panic's message); the " \
                       "next one is carried out", name: "ended")
        end
      end
    end
  end
end
