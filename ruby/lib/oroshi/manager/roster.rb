# frozen_string_literal: true

module Oroshi
  class Manager
    # The workers, and decisions about them. It starts and signals nobody: it receives events and returns actions. Time
    # is an argument, in monotonic seconds.
    #
    # A worker is `starting` until it reports ready, then `ready`, and `stopping` once it was told to stop. At most one
    # worker is being replaced at any time: its successor becomes ready, then it is told to stop, and only after its end
    # the next one may be replaced.
    class Roster
      # slot: its index on the scoreboard; epoch: number of HUPs before it started; enough: why it has asked to be
      # replaced; kill_at: when its time to stop is over; why: why it was told to stop.
      Worker = Struct.new(:slot, :pid, :state, :epoch, :since, :enough, :kill_at, :why, keyword_init: true) do
        def alive?
          state != :stopping
        end

        def to_s
          "worker #{slot} (pid #{pid})"
        end
      end

      # Actions. `replaces` is a Worker or nil.
      Start = Struct.new(:slot, :replaces)
      Tell = Struct.new(:worker, :signal, :why)
      Kill = Struct.new(:worker, :why)

      # Maximum back-off, unless ErrRespawnInterval itself is longer.
      LONGEST_BACKOFF_S = 30
      # After INT; a worker then only finishes its current request.
      QUICK_STOP_S = 5

      attr_reader :target, :workers, :mode

      # target: number of workers; slots: maximum including stopping ones; intervals in seconds.
      def initialize(target:, slots:, spawn_interval: nil, err_respawn_interval: 1, stop_timeout: 30)
        @target = target
        @slots = slots
        @spawn_interval = spawn_interval
        @err_respawn_interval = err_respawn_interval
        @stop_timeout = stop_timeout
        @workers = []
        @epoch = 0
        @mode = :serving # then :slow_stop, :graceful_stop, :quick_stop
        @replacing = nil
        @shrinks_because = "TTOU"
        @replaces_because = "HUP"
        @failures = 0 # workers that died before they were ready, since one became ready
        @no_start_before = -Float::INFINITY
        @next_slow_stop = -Float::INFINITY
      end

      # Returns the due actions. Workers told to stop count as `stopping` from here on, and slots to start in are
      # reserved: answer a Start with `started` or `not_started`.
      def decide(now)
        stop = case @mode
               when :serving then replace(now) + shrink(now)
               when :slow_stop then stop_one(now)
               else []
               end
        stop + start(now) + kill_late(now)
      end

      # Returns when to call `decide` again without an event, or nil. If all slots are taken, only the end of a worker
      # makes room.
      def next_decision
        times = @workers.filter_map(&:kill_at)
        times << @no_start_before if missing.positive? && free_slot
        times << @next_slow_stop if @mode == :slow_stop && @workers.any?(&:alive?)
        times.min
      end

      # --- events ---

      def started(slot, pid)
        @workers.find { |one| one.slot == slot }.tap { |one| one.pid = pid }
      end

      # The fork, or a hook before it, failed.
      def not_started(slot, now)
        @workers.delete_if { |one| one.slot == slot }
        back_off(now)
      end

      def ready(worker)
        worker.state = :ready if worker.state == :starting
        @failures = 0
      end

      # The worker has served its number of requests; it continues until its successor is ready.
      def enough(worker, why)
        worker.enough ||= why
      end

      # A worker has ended. good: as intended (exit code 0, or ended for a reason). Returns the seconds until another
      # may start in its place (0: at once).
      def ended(worker, now, good:)
        @workers.delete(worker)
        @replacing = nil if @replacing.equal?(worker)
        return 0 unless @mode == :serving && worker.alive? && !(good && worker.state == :ready)

        # A ready worker's death says little about the next; if one never became ready, the next will fail too.
        worker.state == :starting ? back_off(now) : hold(now, @err_respawn_interval)
      end

      # --- requests ---

      # HUP: replaces every present worker.
      def replace_all(why = "HUP")
        @epoch += 1
        @replaces_because = why
      end

      # Whether the worker was started after the last replace_all.
      def current?(worker)
        worker.epoch == @epoch
      end

      # Returns the reason why this worker is replaced.
      def why_replaced(worker)
        worker.enough || @replaces_because
      end

      # TTIN, TTOU. Returns the new target, between one worker and the scoreboard's maximum.
      def resize(by)
        @shrinks_because = "TTOU"
        @target = (@target + by).clamp(1, @slots / 2)
      end

      # HUP with another MaxWorkers. The scoreboard's size is the maximum.
      def target=(number)
        @target = number.clamp(1, @slots / 2)
        @shrinks_because = "HUP"
      end

      # HUP: intervals that may have changed.
      def configure(spawn_interval:, err_respawn_interval:, stop_timeout:)
        @spawn_interval = spawn_interval
        @err_respawn_interval = err_respawn_interval
        @stop_timeout = stop_timeout
      end

      # Begins to stop. how: :slow_stop (one per spawn_interval), :graceful_stop or :quick_stop; it can only become
      # quicker. Returns actions.
      def stop(how, now, why)
        order = %i[serving slow_stop graceful_stop quick_stop]
        return kill_all(why) if @mode == :quick_stop && how == :quick_stop
        return [] if order.index(how) <= order.index(@mode)

        @mode = how
        @replacing = nil
        case how
        when :slow_stop then []
        when :graceful_stop then @workers.select(&:alive?).map { |one| tell(one, "TERM", why, now) }
        when :quick_stop then @workers.map { |one| tell(one, "INT", why, now, within: QUICK_STOP_S) }
        end
      end

      def done?
        @mode != :serving && @workers.empty?
      end

      # Whether all wanted workers are ready.
      def complete?
        ready_ones.size >= @target
      end

      def any_ready?
        !ready_ones.empty?
      end

      # The worker is killed for a reason other than time; its end is no failure.
      def condemn(worker)
        worker.state = :stopping
        worker.kill_at = nil
      end

      private

      def ready_ones
        @workers.select { |one| one.state == :ready }
      end

      def replace(now)
        @replacing ||= ready_ones.find { |one| one.enough || one.epoch < @epoch }
        return [] unless @replacing&.alive? && ready_ones.size > @target

        [tell(@replacing, "TERM", why_replaced(@replacing), now)]
      end

      # After TTOU. A successor during a replacement is not surplus.
      def shrink(now)
        return [] if @replacing&.alive?

        excess = @workers.select(&:alive?).sort_by { |one| -one.slot }.first([-missing, 0].max)
        excess.map { |one| tell(one, "TERM", @shrinks_because, now) }
      end

      def stop_one(now)
        one = now >= @next_slow_stop ? @workers.select(&:alive?).min_by(&:slot) : nil
        return [] unless one

        @next_slow_stop = now + (@spawn_interval || 0)
        [tell(one, "TERM", "USR1", now)]
      end

      # Returns how many workers to start; negative: how many to stop.
      def missing
        return 0 unless @mode == :serving

        @target + (@replacing&.alive? ? 1 : 0) - @workers.count(&:alive?)
      end

      def start(now)
        actions = []
        while missing.positive? && now >= @no_start_before && (slot = free_slot)
          @workers << Worker.new(slot: slot, state: :starting, epoch: @epoch, since: now)
          actions << Start.new(slot, @replacing)
          hold(now, @spawn_interval) if @spawn_interval
        end
        actions
      end

      def free_slot
        ((0...@slots).to_a - @workers.map(&:slot)).first
      end

      def tell(worker, signal, why, now, within: @stop_timeout)
        worker.state = :stopping
        worker.why = why
        worker.kill_at = now + within if within.positive?
        Tell.new(worker, signal, why)
      end

      def kill_late(now)
        late = @workers.select { |one| one.kill_at && now >= one.kill_at }
        late.map do |one|
          one.kill_at = nil
          Kill.new(one, "it has not ended in time")
        end
      end

      def kill_all(why)
        @workers.map do |one|
          one.kill_at = nil
          Kill.new(one, "#{why} again")
        end
      end

      def back_off(now)
        seconds = @err_respawn_interval * (2**[@failures, 16].min)
        @failures += 1
        hold(now, [seconds, [LONGEST_BACKOFF_S, @err_respawn_interval].max].min)
      end

      def hold(now, seconds)
        @no_start_before = [@no_start_before, now + seconds].max
        seconds
      end
    end
  end
end
