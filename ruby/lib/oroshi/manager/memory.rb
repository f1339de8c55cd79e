# frozen_string_literal: true

module Oroshi
  class Manager
    # Finds workers whose memory has grown beyond their limit. The figure is PSS: pages that processes share count in
    # parts, so that it does not blame a worker for the application that all of them have loaded.
    class Memory
      # PSS and RSS of a process in bytes.
      Size = Struct.new(:pss, :rss)

      # Returns nil for a process that has ended, or that may not be looked at.
      def self.of(pid)
        text = File.read("/proc/#{pid}/smaps_rollup")
        pss, rss = %w[Pss Rss].map { |name| text[/^#{name}:\s+(\d+) kB/, 1].to_i * 1024 }
        Size.new(pss, rss)
      rescue SystemCallError
        nil
      end

      # Returns nil if the settings have no limit.
      def self.for(settings)
        most = settings.max_memory_per_child
        most.zero? ? nil : new(settings.min_memory_per_child || most, most)
      end

      # How often to look: the kernel walks the process's pages for each figure.
      INTERVAL_S = 2

      # measure: returns the Size of a pid, or nil.
      def initialize(least, most, measure: Memory.method(:of))
        @range = least..most
        @measure = measure
        @limits = {} # pid => bytes
        @next = 0
      end

      def interval_s
        INTERVAL_S
      end

      # Random for each worker, so that workers that started together are not replaced together.
      def started(worker)
        @limits[worker.pid] = Random.new.rand(@range)
      end

      def forget(worker)
        @limits.delete(worker.pid)
      end

      # Yields each ready worker that is beyond its limit, and the reason to replace it.
      def look(workers, now)
        return if now < @next

        @next = now + INTERVAL_S
        workers.each do |worker|
          next unless worker.state == :ready && worker.enough.nil?

          limit = @limits[worker.pid] || started(worker)
          size = @measure.call(worker.pid)
          yield worker, "memory: PSS is #{size.pss >> 20} MiB, its limit #{limit >> 20} MiB" if size && size.pss > limit
        end
      end
    end
  end
end
