# frozen_string_literal: true

module Oroshi
  class Client
    # A way to the native thread and back, for one wait: requests go there, and results come back. It waits for a
    # descriptor as one waits for any IO, which is what lets threads, fiber schedulers and interrupts do as they
    # always do.
    class Call
      # How often to look for a descriptor: there is nobody who could tell.
      PAUSE_S = 0.01

      # Gives a call to the block. Whatever it has begun and not seen the end of is cancelled then.
      #
      # Where all descriptors of the process are taken, the call waits for one as long as a request may wait for a
      # connection, by the client's options and those of the request; then it raises QueueTimeout.
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

      # Sends what Options.order has made. False if there is no room: to be tried again after #results.
      def submit(tag, method, url, headers, body, options)
        lead
        @native.submit(tag, method, url, headers, body, options)
      end

      # Asks for the client's counts, as a result.
      def count
        lead
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

      # To the client's thread: at first; and to the next one, should that have ended by a defect. What it was at is then
      # told as lost. (Where another thread closes the client in between, this one begins it anew.)
      def lead
        @native.attach(patiently { @engine.running }) until @native.attached?
      end

      # What the block gives, as soon as it gives something: nil says that it lacks a descriptor.
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
