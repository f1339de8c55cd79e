# frozen_string_literal: true

module Oroshi
  class Client
    # A client's native thread. The first request starts it, and restarts it after a fork, after `close`, or if a defect
    # ended it.
    #
    # All of a client's mutable state is in here, so that the client itself may be frozen.
    class Engine
      def initialize(settings)
        @settings = settings
        @lock = Mutex.new
      end

      # Returns the Native::Engine of this process; nil if no descriptor is left for its thread. It may be closed before
      # it is used: `close` waits for nobody, so that a trap may call it.
      def running
        native = @native
        return native if native&.here?

        @lock.synchronize do
          native = @native
          native = @native = @settings.start unless native&.here?
          native
        end
      end

      def close_idle
        @native&.close_idle
      end

      def close
        native = @native
        @native = nil
        native&.close
      end
    end
  end
end
