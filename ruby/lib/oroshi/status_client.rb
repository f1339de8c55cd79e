# frozen_string_literal: true

require "json"
require "socket"
require_relative "listeners"

module Oroshi
  # Asks a running server at its status socket: `oroshi-rack --status`, `oroshi-rack top`.
  class StatusClient
    # There is no answer. code: the exit code.
    class Error < StandardError
      def code = 1
    end

    INTERVAL_S = 1

    def initialize(address)
      @address = address
    end

    # Returns the body of an answer. Raises Error.
    def get(path)
      answer = connect { |socket| ask(socket, path) }
      head, body = answer.split("\r\n\r\n", 2)
      raise Error, "#{@address}: no server of this kind answers there: #{head.to_s[0, 60].inspect}" \
        unless head.to_s.start_with?("HTTP/1.1 200 ") && body

      body
    rescue SystemCallError, SocketError => e
      raise Error, "StatusSocket #{@address}: #{e.message}; is the server running, with this StatusSocket, as this user?"
    end

    # Shows a table each second until interrupted; with an output that is no terminal, once.
    def top(output: $stdout)
      before = document
      loop do
        sleep INTERVAL_S
        now = document
        output.print("\e[H\e[2J") if output.tty?
        output.puts(Table.lines(before, now))
        break unless output.tty?

        before = now
      end
    rescue Interrupt
      nil
    end

    private

    def document
      JSON.parse(get("/status"))
    rescue JSON::ParserError
      raise Error, "#{@address}: the answer is no JSON"
    end

    def connect(&block)
      case @address
      when %r{\A(?:unix:(?://)?)?(@.+|\.{0,2}/.+)\z}
        path = Regexp.last_match(1)
        Socket.unix(path.start_with?("@") ? "\0#{path[1..]}" : path, &block)
      when /\A(?:(.*):)?(\d+)\z/
        Socket.tcp(Regexp.last_match(1)&.delete("[]") || "127.0.0.1", Regexp.last_match(2), &block)
      else Socket.unix(@address.sub(%r{\Aunix:(//)?}, ""), &block)
      end
    end

    def ask(socket, path)
      socket.write("GET #{path} HTTP/1.1\r\nHost: status\r\nConnection: close\r\n\r\n")
      socket.read
    end

    # The table of `top`, from two documents.
    module Table
      module_function

      # Returns lines.
      def lines(before, now)
        [summary(before, now), "", *rows(before, now)]
      end

      def summary(before, now)
        seconds = now["uptime_seconds"] - before["uptime_seconds"]
        rate = seconds.positive? ? (now["requests"] - before["requests"]) / seconds : 0
        backlog = now["listeners"].map { |one| "#{one["address"]} #{one["backlog"] || "?"}/#{one["backlog_limit"] || "?"}" }
        restarts = now["restarts"].map { |reason, count| "#{count} #{reason}" }
        ["oroshi #{now["version"]}, pid #{now["pid"]}, #{now["mode"]}, up #{duration(now["uptime_seconds"])}",
         "#{now["requests"]} requests, #{rate.round} per second; queue #{mean(before["queue"], now["queue"])}; " \
         "wait #{mean(before["wait"], now["wait"])}",
         "backlog: #{backlog.join(", ")}; restarts: #{restarts.empty? ? "none" : restarts.join(", ")}"].join("\n")
      end

      HEADINGS = %w[worker pid state threads busy req/s requests conns PSS gc request].freeze
      WIDTHS = [6, 8, 9, 7, 5, 7, 10, 6, 8, 6].freeze

      def rows(before, now)
        earlier = before["workers"].to_h { |one| [one["pid"], one] }
        [row(HEADINGS)] + now["workers"].map { |one| row(cells(earlier[one["pid"]], one)) }
      end

      def cells(before, now)
        served, busy, requests, gc = difference(before, now)
        request = now["request"]
        [now["worker"], now["pid"], now["state"], "#{now["busy_threads"]}/#{now["threads"]}", percent(busy, served),
         served.positive? ? (requests / served).round : 0, now["requests"], now["connections"],
         now["memory"]["pss_bytes"] ? "#{now["memory"]["pss_bytes"] >> 20} MiB" : "?", percent(gc, served),
         request && "#{request["line"]} (#{duration(request["seconds"])})"]
      end

      # Figures of the time between two documents; of the worker's whole life if the first does not have it.
      def difference(before, now)
        figures = ->(one) { [one["served_seconds"], one["busy_seconds"], one["requests"], one["gc"]["seconds"]] }
        earlier = before ? figures.call(before) : [0, 0, 0, 0]
        figures.call(now).zip(earlier).map { |later, first| later - first }
      end

      def percent(part, whole)
        whole.positive? ? "#{(part * 100.0 / whole).round}%" : "-"
      end

      def mean(before, now)
        count = now["count"] - before["count"]
        count.positive? ? "#{((now["sum_seconds"] - before["sum_seconds"]) * 1000 / count).round(1)} ms" : "-"
      end

      def row(cells)
        cells.zip(WIDTHS).map { |cell, width| width ? cell.to_s.ljust(width) : cell.to_s }.join(" ").rstrip
      end

      def duration(seconds)
        return "#{(seconds * 1000).round} ms" if seconds < 1

        unit, name = [[86_400, "d"], [3600, "h"], [60, "m"]].find { |one, _| seconds >= 2 * one }
        unit ? "#{(seconds / unit).floor}#{name}" : "#{seconds.round}s"
      end
    end
  end
end
