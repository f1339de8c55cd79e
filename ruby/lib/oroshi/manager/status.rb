# frozen_string_literal: true

require "json"
require_relative "backlog"
require_relative "memory"

module Oroshi
  class Manager
    # The figures of the server, as JSON and as Prometheus text. It counts what ended workers have done, so that totals never
    # go back.
    class Status
      attr_writer :settings

      def initialize(settings)
        @settings = settings
        @began_at = Time.now
        @requests = 0
        @queue = histogram
        @wait = histogram
        @restarts = Hash.new(0)
      end

      # A worker has ended; left: its slot on the scoreboard.
      def ended(worker, left, timed_out:, status:)
        @requests += left[:requests]
        add(@queue, left[:queue])
        add(@wait, left[:wait])
        @restarts[reason(worker, timed_out, status)] += 1
      end

      # Returns [status, content type, body] for a path. facts: roster, scoreboard, listeners, now.
      def answer(path, facts)
        case path
        when "/status", "/" then [200, "application/json", "#{JSON.generate(document(**facts))}\n"]
        when "/metrics" then [200, "text/plain; version=0.0.4", Prometheus.text(document(**facts))]
        else [404, "text/plain", "there are /status and /metrics\n"]
        end
      end

      # Returns the document of /status.
      def document(roster:, scoreboard:, listeners:, now:)
        slots = roster.workers.map { |worker| [worker, scoreboard.read(worker.slot)] }
        totals = totals(slots.map(&:last))
        {
          version: VERSION, pid: Process.pid, started_at: @began_at.utc.iso8601,
          uptime_seconds: (Time.now - @began_at).round(3), mode: roster.mode, target_workers: roster.target, **totals, restarts: @restarts.sort.to_h,
          listeners: listeners.names.zip(listeners.ios).map { |name, io| listener(name, io) },
          workers: slots.map { |worker, slot| worker(worker, slot, now) }
        }
      end

      private

      # Why a worker ended.
      def reason(worker, timed_out, status)
        return "timeout" if timed_out
        return status&.success? ? "ended" : "died" if worker.alive?

        case worker.why
        when /requests served/ then "requests"
        when /WorkerTimeout/ then "timeout"
        when /\Amemory/ then "memory"
        when /\Arefork/ then "refork"
        when "HUP" then "reload"
        when nil then "timeout" # killed: it did not even answer to its signal
        else "told"
        end
      end

      def totals(slots)
        queue, wait = [[@queue, :queue], [@wait, :wait]].map do |ended, name|
          slots.each_with_object(copy(ended)) { |slot, sum| add(sum, slot[name]) }
        end
        { requests: @requests + slots.sum { |slot| slot[:requests] }, queue: times(queue), wait: times(wait) }
      end

      def listener(name, io)
        length, limit = Backlog.of(io)
        { address: name, backlog: length, backlog_limit: limit }
      end

      def worker(worker, slot, now)
        size = worker.pid && Memory.of(worker.pid)
        busy_s = slot[:served_s] - slot[:idle_s]
        {
          worker: worker.slot, pid: worker.pid, state: state(worker, slot), age_seconds: (now - worker.since).round(3),
          threads: slot[:threads], busy_threads: slot[:busy_threads],
          requests: slot[:requests], connections: slot[:connections], handed_over: slot[:handed_over],
          served_seconds: slot[:served_s].round(3), busy_seconds: busy_s.round(3), request: request(slot),
          queue: times(slot[:queue]), wait: times(slot[:wait]),
          memory: { pss_bytes: size&.pss, rss_bytes: size&.rss }, gc: gc(slot[:gc])
        }
      end

      def state(worker, slot)
        return worker.state if worker.state != :ready

        slot[:state] == :empty ? :ready : slot[:state]
      end

      # Without the query, which may contain secrets.
      def request(slot)
        slot[:request] && { line: slot[:request].sub(/\?\S*/, ""), seconds: slot[:busy_s] }
      end

      def gc(gc)
        { runs: gc[:runs], seconds: gc[:ms] / 1000.0, live_objects: gc[:live_objects], allocations: gc[:allocations] }
      end

      def times(histogram)
        { count: histogram[:count], sum_seconds: histogram[:sum_s].round(6), buckets: histogram[:buckets] }
      end

      def histogram
        { count: 0, sum_s: 0.0, buckets: nil }
      end

      def copy(histogram)
        histogram.merge(buckets: histogram[:buckets]&.map(&:dup))
      end

      def add(sum, more)
        sum[:count] += more[:count]
        sum[:sum_s] += more[:sum_s]
        if sum[:buckets].nil?
          sum[:buckets] = more[:buckets].map(&:dup)
        else
          sum[:buckets].zip(more[:buckets]) { |one, other| one[1] += other[1] }
        end
      end

      # The document as Prometheus text.
      module Prometheus
        # name, type, help, and a block that yields labels and values.
        METRICS = [
          ["requests_total", "counter", "Requests that workers have served.", ->(all) { { {} => all[:requests] } }],
          ["target_workers", "gauge", "How many workers there should be.", ->(all) { { {} => all[:target_workers] } }],
          ["workers", "gauge", "Workers by state.",
           ->(all) { all[:workers].group_by { |one| one[:state] }.to_h { |state, some| [{ state: state }, some.size] } }],
          ["restarts_total", "counter", "Workers that have ended, by reason.",
           ->(all) { all[:restarts].to_h { |reason, count| [{ reason: reason }, count] } }],
          ["backlog_connections", "gauge", "Connections that wait to be accepted.",
           ->(all) { all[:listeners].to_h { |one| [{ listener: one[:address] }, one[:backlog]] } }],
          ["backlog_limit_connections", "gauge", "How many connections may wait to be accepted.",
           ->(all) { all[:listeners].to_h { |one| [{ listener: one[:address] }, one[:backlog_limit]] } }]
        ].freeze
        OF_WORKERS = [
          ["worker_requests_total", "counter", "Requests of the worker.", ->(one) { one[:requests] }],
          ["worker_threads", "gauge", "Threads of the worker.", ->(one) { one[:threads] }],
          ["worker_busy_threads", "gauge", "Threads with a request.", ->(one) { one[:busy_threads] }],
          ["worker_connections", "gauge", "Connections that the worker keeps.", ->(one) { one[:connections] }],
          ["worker_served_seconds_total", "counter", "Time since the worker began to serve.", ->(one) { one[:served_seconds] }],
          ["worker_busy_seconds_total", "counter", "Time of that in which it had work, the mean of its threads.", ->(one) { one[:busy_seconds] }],
          ["worker_pss_bytes", "gauge", "Memory of the worker, shared pages in parts.", ->(one) { one[:memory][:pss_bytes] }],
          ["worker_rss_bytes", "gauge", "Memory of the worker, shared pages in full.", ->(one) { one[:memory][:rss_bytes] }],
          ["worker_gc_runs_total", "counter", "Runs of the garbage collector.", ->(one) { one[:gc][:runs] }],
          ["worker_gc_seconds_total", "counter", "Time in the garbage collector.", ->(one) { one[:gc][:seconds] }]
        ].freeze

        module_function

        def text(all)
          of_workers = OF_WORKERS.map do |name, type, help, value|
            [name, type, help, ->(it) { it[:workers].to_h { |one| [{ worker: one[:worker] }, value.call(one)] } }]
          end
          lines = (METRICS + of_workers).flat_map { |name, type, help, values| metric(name, type, help, values.call(all)) }
          lines += histogram("queue_seconds", "Time since a proxy received the request (X-Request-Start).", all[:queue])
          lines += histogram("wait_seconds", "Time that requests waited for this worker, where it is known.", all[:wait])
          "#{lines.join("\n")}\n"
        end

        def metric(name, type, help, values)
          ["# HELP oroshi_rack_#{name} #{help}", "# TYPE oroshi_rack_#{name} #{type}"] +
            values.compact.map { |labels, value| "oroshi_rack_#{name}#{labels(labels)} #{value}" }
        end

        def labels(labels)
          return "" if labels.empty?

          "{#{labels.map { |name, value| %(#{name}="#{escaped(value.to_s)}") }.join(",")}}"
        end

        def escaped(text)
          text.gsub(/["\\\n]/) { |it| it == "\n" ? "\\n" : "\\#{it}" }
        end

        def histogram(name, help, times)
          sum = 0
          buckets = (times[:buckets] || []).map { |most, count| [{ le: most }, sum += count] }
          buckets << [{ le: "+Inf" }, times[:count]]
          metric("#{name}_bucket", "histogram", help, {})
            .map { |line| line.sub("_bucket ", " ") } +
            buckets.map { |labels, count| "oroshi_rack_#{name}_bucket#{labels(labels)} #{count}" } +
            ["oroshi_rack_#{name}_sum #{times[:sum_seconds]}", "oroshi_rack_#{name}_count #{times[:count]}"]
        end
      end
    end
  end
end
