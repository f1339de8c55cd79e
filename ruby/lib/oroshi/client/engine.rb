# frozen_string_literal: true

module Oroshi
  class Client
    # The native thread of a client: the first request starts it. So does the next one where it is not there any more:
    # after a fork, after `close`, and if it should have ended by a defect.
    #
    # All of a client that changes is in here, so that the client itself may be frozen.
    class Engine
      def initialize(settings)
        @settings = settings
        @lock = Mutex.new
      end

      # The Native::Engine of this process; nil if no descriptor is left for its thread. It may be closed by the time it
      # is used: `close` waits for nobody, so that a signal's trap may call it.
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
