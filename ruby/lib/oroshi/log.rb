# frozen_string_literal: true

require "time"

module Oroshi
  # The server's events, for people: a line per event on standard error, with the reason.
  #
  #     2026-11-22T00:20:54.204Z oroshi[23224]: worker 2 (pid 23230): ready after 12 ms
  module Log
    module_function

    # Writes an event. Several lines only if there is more to show, such as a backtrace. One write, so that lines of
    # several processes do not mix; safe in a trap.
    def event(text)
      $stderr.write("#{Time.now.utc.iso8601(3)} oroshi[#{Process.pid}]: #{text}\n")
      $stderr.flush
    rescue SystemCallError, IOError
      nil # Standard error is gone. Serving is more important than saying so.
    end

    # An exception as a paragraph.
    def exception(text, error)
      event("#{text}: #{error.class}: #{error.message}\n#{indent(error.backtrace || [])}")
    end

    def indent(lines)
      lines.map { |line| "    #{line}" }.join("\n")
    end

    # Returns seconds in a suitable unit.
    def duration(seconds)
      seconds < 1 ? "#{(seconds * 1000).round} ms" : "#{format("%.1f", seconds)} s"
    end
  end
end
