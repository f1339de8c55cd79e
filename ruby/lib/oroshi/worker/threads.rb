# frozen_string_literal: true

module Oroshi
  class Worker
    # The serving threads of a worker, each with a Native::Worker. Number 0 is the process's main thread.
    #
    # A request that calls `oroshi.io_bound` leaves its place to one thread more, which starts or ends its rest. Its own
    # thread then rests when the request is over.
    class Threads
      # count: usual threads; io_count: how many more may run. The block returns a thread's Native::Worker: it receives the
      # thread's number, and the blocks of its settings.
      def initialize(count, io_count, &make)
        @count = count
        @most = count + io_count
        @make = make
        @natives = []
        @threads = {} # number => Thread, of those that serve
        @resting = []
        @lock = Mutex.new
        @how = nil
        add until @natives.size == count
      end

      # Whether the main thread is the only one.
      def single?
        @most == 1
      end

      # Serves until told to stop. Returns what Native::Worker#run returns on the main thread; raises what has ended a
      # thread.
      def run
        return @natives.first.run if single?

        others = (1...@count).map { |number| start(number) }
        result = serve(0)
        others.each(&:join)
        @lock.synchronize { @threads.values }.each(&:join) # those that started later
        raise @failure if @failure

        result
      end

      # how: :gently or :quickly. For traps, too.
      def stop(how)
        @how = how unless @how == :quickly
        @natives.each { |native| tell(native) }
      end

      # Hands over all connections, and writes the lines of the access log, for a process that is about to end. For
      # traps, too.
      def leave
        @natives.first.hand_over
        yield
        @natives.first.flush_log
      end

      # Returns the Thread of this number, and its Native::Worker; for traps, too.
      def [](number)
        [@threads[number], @natives[number]]
      end

      # Calls the block, on a thread of its own, as soon as no other than these threads serves. For traps, too.
      def when_only_left(stuck)
        Thread.new do
          sleep 0.02 until (@threads.keys - stuck.call).empty?
          yield
        end
      end

      private

      def add
        number = @natives.size
        io_bound = @most == @count ? nil : -> { make_room }
        on_rest = -> { @lock.synchronize { @resting << number } }
        @natives << @make.call(number, on_io_bound: io_bound, on_rest: on_rest)
        # It may have been told meanwhile.
        tell(@natives.last)
      end

      def start(number)
        Thread.new do
          Thread.current.name = "oroshi #{number}"
          serve(number)
        end
      end

      # An exception that leaves one thread, such as `exit`, ends all.
      def serve(number)
        @threads[number] = Thread.current
        @natives[number].run
      rescue Exception => e
        @failure ||= e
        stop(:quickly)
        nil
      ensure
        @threads.delete(number)
      end

      # Whether one thread more serves now.
      def make_room
        @lock.synchronize do
          next false if @how

          if (number = @resting.pop)
            @natives[number].resume
          elsif @natives.size < @most
            add
            @threads[@natives.size - 1] = start(@natives.size - 1)
          else
            next false
          end
          true
        end
      rescue ThreadError => e
        Log.event("a thread for requests that wait cannot start: #{e.message}")
        false
      end

      def tell(native)
        case @how
        when :gently then native.stop
        when :quickly then native.stop_now
        end
      end
    end
  end
end
