# frozen_string_literal: true

module Oroshi
  class Manager
    # Finds requests that take too long, and ends their workers. First SIGURG: the client gets a 504, the log a
    # backtrace, and the worker ends itself. A worker that hangs outside of Ruby cannot do that, and is killed a little
    # later. Time is an argument.
    class Watchdog
      # The time for a worker to write its backtrace and end.
      GRACE_S = 2

      Urge = Struct.new(:slot, :serial, :busy_s, :request)
      Kill = Struct.new(:slot, :serial, :busy_s, :request)

      # limit_s: the limit of a request, above 0.
      def initialize(limit_s)
        @limit_s = limit_s
        @urged = {} # [slot, serial of the request] => when to kill
      end

      # Returns how often to look: delays of a quarter of the limit, or a second, are acceptable.
      def interval_s
        (@limit_s / 4.0).clamp(0.02, 1)
      end

      # The worker of this slot has ended. Its successor counts requests from 1.
      def forget(slot)
        @urged.delete_if { |(one, _), _| one == slot }
      end

      # The worker of this slot has said that it will end, and is not killed.
      def spare(slot)
        @urged.each_key { |key| @urged[key] = nil if key.first == slot }
      end

      # overdue: [slot, serial, busy_s, request] of each request over the limit (Native::Scoreboard#overdue).
      def look(overdue, now)
        present = overdue.to_h { |one| [one.first(2), true] }
        @urged.keep_if { |key, _| present.key?(key) }
        overdue.filter_map do |slot, serial, busy_s, request|
          key = [slot, serial]
          if !@urged.key?(key)
            @urged[key] = now + GRACE_S
            Urge.new(slot, serial, busy_s, request)
          elsif @urged[key] && now >= @urged[key]
            @urged[key] = nil # killed once is killed
            Kill.new(slot, serial, busy_s, request)
          end
        end
      end
    end
  end
end
