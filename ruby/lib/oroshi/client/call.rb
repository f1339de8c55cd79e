# frozen_string_literal: true

module Oroshi
  class Client
    # One wait for results: sends requests to the native thread, and receives their results. It waits for a descriptor
    # like any IO, so threads, fiber schedulers and interrupts work as usual.
    class Call
      # How often to try for a descriptor: no event tells that one is free.
      PAUSE_S = 0.01

      # Yields a call; afterwards cancels its unfinished requests.
      #
      # If all descriptors of the process are in use, it waits for one as long as a request may wait for a connection,
      # by the client's options and the request's; then it raises QueueTimeout.
      def self.open(engine, of_client, of_request = {})
        call = new(engine, of_client, of_request)
        yield call
      ensure
        call&.finish
      end

      def initialize(engine, of_client, of_request)
        @engine = engine
        @of_client = of_client
        @of_request = of_request
        @native = patiently { Native::Call.new }
        @io = IO.for_fd(@native.fileno, "rb", autoclose: false) # it is the native call's, which closes it
      end

      # Sends a request made by Options.order. False if there is no room: try again after #results.
      def submit(tag, method, url, headers, body, options)
        lead
        @native.submit(tag, method, url, headers, body, options)
      end

      # Asks for the client's counts, as a result.
      def count
        lead
        @native.count
      end

      # Waits for results or room. Yields the results since the last call, tag first.
      def results(wait: true)
        @io.wait_readable if wait
        @native.take.each { |tag, *outcome| yield tag, result(*outcome) }
      end

      # Yields the parts of the one response that comes in pieces: :head and a Response without a body, :piece and a
      # String, and last :end and the result.
      def each_part
        while true # `loop` would take a StopIteration of the block for the end
          @io.wait_readable
          @native.take.each do |_tag, kind, *fields|
            case kind
            when :head then yield :head, Response.new(*fields)
            when :piece then yield :piece, fields.first
            else return yield(:end, result(kind, *fields))
            end
          end
        end
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

      # Attaches the call to the client's thread, or to the next one if a defect ended it; the old thread's requests are
      # then reported as lost. (If another thread closes the client in between, this starts it again.)
      def lead
        @native.attach(patiently { @engine.running }) until @native.attached?
      end

      # Returns the block's first value that is not nil, which means that no descriptor is free.
      def patiently
        began = now
        until (given = yield)
          waited = now - began
          limit = Options.patience(@of_client, @of_request)
          raise out_of_descriptors(waited) if limit && waited >= limit

          sleep PAUSE_S
        end
        given
      end

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end

      def out_of_descriptors(waited)
        QueueTimeout.new("no descriptor was free within #{waited.round(3)} s to wait with: raise `ulimit -n`, or use " \
                         "fewer threads", phase: :queue, name: "descriptors", timeout: true, retry_safe: true,
                         timings: Timings.new(waited, nil, nil, nil, nil, nil, nil, waited).freeze)
      end

      def result(kind, *fields)
        case kind
        when :response then Response.new(*fields)
        when :failure then Error.of(*fields)
        when :counts then fields.first
        else lost(*fields)
        end
      end

      def lost(request, retry_safe, seconds)
        Error.new("#{request}a defect of the client has ended the request (standard error has the panic's message); the " \
                  "next one is carried out", name: "ended", retry_safe: retry_safe,
                  timings: Timings.new(nil, nil, nil, nil, nil, nil, nil, seconds).freeze)
      end
    end
  end
end
