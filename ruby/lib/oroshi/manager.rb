# frozen_string_literal: true

require "rack"
require_relative "log"
require_relative "logs"
require_relative "notifier"
require_relative "pid_file"
require_relative "worker"
require_relative "manager/mould"
require_relative "manager/roster"
require_relative "manager/status"
require_relative "manager/status_server"
require_relative "manager/memory"
require_relative "manager/watched_files"
require_relative "manager/watchdog"
require "oroshi/native"

module Oroshi
  # Calls a hook of the settings, with the worker's number if it takes an argument.
  def self.call_hook(hook, slot)
    return if hook.nil?

    arity = hook.respond_to?(:arity) ? hook.arity : hook.method(:call).arity
    arity.zero? ? hook.call : hook.call(slot)
  end

  # Tidies the heap before a process forks workers: they share memory that it no longer changes. So this collects
  # garbage, and compacts the rest.
  def self.warm_up
    return Process.warmup if Process.respond_to?(:warmup) # Ruby 3.3

    3.times { GC.start }
    GC.compact if GC.respond_to?(:compact)
  rescue NotImplementedError
    nil # a platform that cannot compact
  end

  # The main process: it opens the sockets, has the application loaded, and has workers forked that serve it. It never
  # touches a connection itself. Roster and Watchdog decide; this class acts.
  #
  #   TERM, QUIT   graceful stop: finishes requests under way
  #   INT          quick stop; twice: at once
  #   HUP          reads the configuration and, with `reloads`, the application again, and replaces workers one by one,
  #                each when its successor is ready
  #   TTIN, TTOU   one worker more, one less
  #   USR1         reopens logs; with SpawnInterval: stops one worker per interval, then ends
  #   USR2         only a line in the log: elsewhere it restarts the server
  #   CHLD         a worker has ended
  class Manager
    # How long a process with the application may take to end, with its `at_exit` blocks.
    MOULD_END_S = 5
    # How often to look whether a worker has served ReforkAfter requests.
    WARM_INTERVAL_S = 1
    # How long to wait before the application is loaded again in place of a process that has died.
    MOULD_PAUSE_S = 1

    # While the application loads, the former end the process as usual; the latter wait.
    SIGNALS = { stop: %w[TERM QUIT INT], others: %w[HUP TTIN TTOU USR1 USR2 CHLD] }.freeze

    # The block returns the application; read_again: returns the current settings, for HUP; reloads: whether the block
    # loads the application anew each time that it is called, in a process that has not loaded it yet (Mould).
    def initialize(settings, env: ENV, read_again: nil, reloads: false, &app)
      @settings = settings
      @read_again = read_again
      @reloads = reloads
      @env = env
      @app_source = app
      @channels = {} # IO => Worker: what each worker says
      @moulds = [] # pids of processes with the application, present and former
      @candidate = nil # a Mould that is loading
      @status = Status.new(settings)
      @signals = Queue.new # [name, pid of the process that got it]
      @old_traps = {}
    end

    # Serves until a signal ends it. Returns the exit code.
    def run
      prepare
      Log.event("serving #{@listeners.names.join(", ")}#{" (from #{@listeners.inherited})" if @listeners.inherited} " \
                "with #{@settings.max_workers} workers#{" of #{@settings.threads} threads" if @settings.threads > 1}, Ruby #{RUBY_VERSION}, Rack #{Rack.release}" \
                "#{"; status at #{@status_server.names.join(", ")}" if @status_server}")
      Process.setproctitle("oroshi manager: #{@listeners.names.join(", ")}")
      loop do
        wait.each { |name| handle(name) }
        reap
        look_for_overdue
        look_for_large
        look_for_changes
        look_for_warm
        mend
        act(@roster.decide(now))
        break if @roster.done?

        say_ready
      end
      Log.event("done")
      0
    ensure
      # Only the manager gets here: workers end with exit!.
      clean_up
    end

    private

    # --- once ---

    def prepare
      @logs = Logs.new(@settings)
      @pid_file = @settings.pid_file && PidFile.new(@settings.pid_file)
      @listeners = Listeners.open(@settings, env: @env)
      @notifier = Notifier.new(@env)
      @wake, @wake_up = IO.pipe
      @status_server = StatusServer.open(@settings.status_socket) { |path| @status.answer(path, status_facts) }
      trap_signals(SIGNALS[:others])
      slots = [@settings.max_workers * 2, 64].max # room for TTIN, and for workers that are stopping
      # One extra slot, because a replaced worker and its successor overlap. A single worker with one thread needs no
      # wakers.
      is_alone = @settings.max_workers + @settings.threads + @settings.io_threads == 2
      @scoreboard = Native::Scoreboard.new(slots, is_alone ? 0 : @settings.max_workers + 1, @settings.threads,
                                           @settings.io_threads)
      @roster = Roster.new(target: @settings.max_workers, slots: slots, spawn_interval: @settings.spawn_interval,
                           err_respawn_interval: @settings.err_respawn_interval, stop_timeout: @settings.stop_timeout)
      @reloads ? load_in_mould : load_here
      watch_requests
      @memory = Memory.for(@settings)
      trap_signals(SIGNALS[:stop])
    end

    def load_here
      mistakes = { "Watch" => @settings.watch, "ReforkAfter" => @settings.refork_after.first }.compact.map do |name, value|
        "#{name}=#{value}: needs the command oroshi-rack; rackup and rails server load the application themselves"
      end
      raise Settings::Invalid, mistakes unless mistakes.empty?

      app = @app_source.call
      Oroshi.warm_up if @settings.warmup
      # After loading: a process that the application starts while it loads would hold the lifeline, too, and hide the
      # manager's death from the workers.
      @lifeline, @lifeline_held = IO.pipe
      @mould = OwnFork.new(app, parts) do
        told = Array.new(@signals.size) { @signals.pop }.filter_map { |name, pid| name if pid == Process.pid }
        leave_manager
        told
      end
    end

    def load_in_mould
      @lifeline, @lifeline_held = IO.pipe
      Native.adopt_orphans
      @mould = mould(@settings)
      @mould.wait_until_loaded
      @refork_left = @settings.refork_after.dup
    ensure
      @moulds.clear if @mould && @mould.pid.nil? # it has ended while it loaded
    end

    # Starts a process that loads the application.
    def mould(settings)
      Mould.new(settings, parts, leave: method(:leave_manager), load: @app_source).tap do |one|
        @moulds << one.pid
        @watched = settings.watch && WatchedFiles.new(settings.watch)
      end
    end

    def parts
      Parts.new(listeners: @listeners, scoreboard: @scoreboard, logs: @logs, lifeline: @lifeline)
    end

    # In a new process: closes what is the manager's alone.
    def leave_manager
      sockets = [@mould, @candidate].filter_map { |one| one.socket if one.is_a?(Mould) }
      [@lifeline_held, @wake, @wake_up, *@channels.keys, *sockets].each { |io| io.close unless io.closed? }
      @status_server&.forget
      @pid_file&.leave
    end

    def watch_requests
      @watchdog = @settings.worker_timeout.positive? ? Watchdog.new(@settings.worker_timeout) : nil
    end

    def trap_signals(names)
      names.each do |name|
        @old_traps[name] = trap(name) do
          @signals << [name, Process.pid]
          @wake_up.write_nonblock(".", exception: false)
        end
      end
    end

    def clean_up
      @old_traps.each { |name, action| trap(name, action || "DEFAULT") }
      @listeners&.close
      @status_server&.close
      @pid_file&.remove
      end_moulds
      # If a failure left workers running, they notice this and end.
      [@lifeline, @lifeline_held, @wake, @wake_up, *@channels.keys].each { |io| io&.close }
    end

    # Moulds have lost their sockets, and end with their `at_exit` blocks. After a failure they may still be loading.
    def end_moulds
      [@candidate, @mould].each { |one| one&.close }
      over = now + (@roster&.done? ? MOULD_END_S : 0)
      @moulds.each do |pid|
        sleep 0.005 until Process.waitpid(pid, Process::WNOHANG) || now >= over
        next unless now >= over && Process.waitpid(pid, Process::WNOHANG).nil?

        Process.kill("KILL", pid)
        Process.waitpid(pid)
      rescue Errno::ECHILD, Errno::ESRCH
        next
      end
    end

    # --- the loop ---

    # Waits for an event or a due time. Returns the signals that have arrived.
    def wait
      seconds = [@roster.next_decision&.-(now), @watchdog&.interval_s, @memory&.interval_s, @watched&.interval_s,
                 (WARM_INTERVAL_S if @refork_left&.any?),
                 @mould_due&.-(now), @status_server&.next_due_s(now)].compact.min
      moulds = [@mould, @candidate].filter_map { |one| one.socket if one.is_a?(Mould) && !one.socket.closed? }
      readable, writable = IO.select([@wake, *@channels.keys, *moulds, *@status_server&.reading],
                                     @status_server&.writing, nil, seconds && [seconds, 0].max)
      hear_all(readable || [], moulds)
      @status_server&.attend(readable || [], writable || [], now)
      Array.new(@signals.size) { @signals.pop.first }
    end

    def hear_all(readable, moulds)
      readable.each do |io|
        if io.equal?(@wake) then io.read_nonblock(4096, exception: false)
        elsif @channels.key?(io) then hear(io)
        elsif moulds.include?(io) then @candidate&.socket.equal?(io) ? hear_candidate : mould_has_ended
        end
      end
    end

    def handle(name)
      case name
      when "TERM", "QUIT" then stop(:graceful_stop, name)
      when "INT" then stop(:quick_stop, name)
      when "USR1" then @settings.spawn_interval ? stop(:slow_stop, name) : reopen_logs
      when "HUP"
        Log.event("received HUP: #{"loading the application again, then " if @reloads}replacing the workers, one after " \
                  "the other")
        reload
      when "USR2"
        Log.event("received USR2: ignored; for new code, run this server under `oroshi start` and use `oroshi start --restart`")
      when "TTIN", "TTOU"
        Log.event("received #{name}: #{@roster.resize(name == "TTIN" ? 1 : -1)} workers from now on")
      end
    end

    def stop(how, signal)
      Log.event("received #{signal}: stopping (#{how.to_s.tr("_", " ")})")
      @notifier.stopping
      refuse_new(how)
      # No more workers will be forked.
      [@candidate, @mould].each { |one| one&.close }
      @candidate = nil
      act(@roster.stop(how, now, signal))
      # Workers that are stopped one by one serve until then.
      @listeners.close unless how == :slow_stop
    end

    # Reads the configuration again, and has the application loaded again. With the new one loaded, workers are
    # replaced; otherwise everything stays.
    def reload
      return if @roster.mode != :serving

      settings = read_settings_again
      unless @reloads
        apply(settings)
        return @roster.replace_all
      end
      @candidate&.close
      @candidate = mould(settings)
    rescue SystemCallError => e
      Log.event("the application cannot be loaded again: #{e.message}; the workers keep the one that they have")
    end

    # The new application is loaded, or cannot be.
    def hear_candidate
      @candidate.loaded?
      @candidate.worker ? @mould.leave : @mould.close
      @mould, @candidate, @mould_due = @candidate, nil, nil
      @mould.worker ? has_become_mould(@mould.worker) : is_loaded_again
      @roster.replace_all(@mould.worker ? "refork" : "HUP")
    rescue Mould::LoadFailed => e
      @candidate.close
      @promoting = nil
      failed, @candidate = @candidate, nil
      return Log.event("#{failed.worker}: has not become the process that forks the next ones: #{e.message}") if failed.worker

      # Without a process to fork from, it tries again.
      @mould_due = @mould.socket.closed? ? now + MOULD_PAUSE_S : nil
      Log.event("the application cannot be loaded again: #{e.message}; the workers keep the one that they have")
    end

    def is_loaded_again
      Log.event("the application is loaded again")
      @refork_left = @mould.settings.refork_after.dup
      @promoting = nil
      apply(@mould.settings)
    end

    # A worker forks the next workers from here on.
    def has_become_mould(worker)
      Log.event("#{worker}: forks the next workers, which share its memory")
      @promoting = nil
      @moulds << worker.pid
      channel = @channels.key(worker)
      forget(channel) if channel
      @roster.ended(worker, now, good: true)
      @status.ended(worker, @scoreboard.read(worker.slot), timed_out: false, status: nil)
      @memory&.forget(worker)
      @scoreboard.clear(worker.slot)
    end

    # ReforkAfter: a worker that has served so many requests gets a successor, as one that is recycled does (and it may be
    # one); then it becomes the process that forks the next workers, instead of ending.
    def look_for_warm
      return if @promoting || @candidate || !@refork_left&.any? || @roster.mode != :serving

      @promoting = @roster.workers.find do |worker|
        worker.state == :ready && @roster.current?(worker) &&
          @scoreboard.read(worker.slot)[:requests] >= @refork_left.first
      end
      return unless @promoting

      @roster.enough(@promoting, "refork after #{@refork_left.shift} requests")
    end

    # The worker is about to be told to stop. Nothing, if a new application is loading.
    def promote(worker)
      return unless worker.equal?(@promoting) && @candidate.nil? && @roster.mode == :serving

      @candidate = Mould.of_worker(worker, @settings, @listeners, @channels.key(worker))
    rescue SystemCallError => e
      @promoting = nil
      Log.event("#{worker}: cannot fork the next workers: #{e.message}")
    end

    # The process that forks workers has ended by itself: somebody killed it, or memory ran out.
    def mould_has_ended
      @mould.close
      return if @roster.mode != :serving

      Log.event("the process with the application (pid #{@mould.pid}) has ended; loading the application again")
      @mould_due = now + MOULD_PAUSE_S unless @candidate
    end

    def mend
      return unless @mould_due && now >= @mould_due && @roster.mode == :serving

      @mould_due = nil
      @candidate ||= mould(@settings)
    end

    # Returns the settings as they are now, with files and sockets as they were; after a mistake, the present ones.
    def read_settings_again
      return @settings unless @read_again

      settings, kept = @read_again.call.keeping(@settings, Settings::OPENED_ONCE)
      kept.each { |line| Log.event("the configuration has #{line}; only a restart changes that") }
      settings
    rescue Settings::Invalid => e
      e.mistakes.each { |mistake| Log.event("the configuration cannot be read again: #{mistake}") }
      Log.event("the configuration stays as it was")
      @settings
    end

    # New workers get the new settings.
    def apply(settings)
      before, @settings = @settings, settings
      @status.settings = settings
      changes = @settings.changes_from(before)
      return if changes.empty? && before.hooks == @settings.hooks

      Log.event("the configuration has #{changes.join(", ")}") unless changes.empty?
      @roster.target = @settings.max_workers if before.max_workers != @settings.max_workers
      @roster.configure(spawn_interval: @settings.spawn_interval, err_respawn_interval: @settings.err_respawn_interval,
                        stop_timeout: @settings.stop_timeout)
      watch_requests if before.worker_timeout != @settings.worker_timeout
      @memory = Memory.for(@settings)
    end

    # Clients that have connected are still served: workers accept those waiting at the listeners before they close
    # them.
    def refuse_new(how)
      return if how == :slow_stop # the others serve on

      @scoreboard.ending(how == :graceful_stop && @listeners.refuse_new)
    end

    def reopen_logs
      @logs.reopen
      @mould.reopen_logs
      Log.event("received USR1: logs are open anew")
      @roster.workers.each { |worker| signal(worker, "USR1") }
    rescue SystemCallError => e
      Log.event("received USR1: cannot open a log anew: #{e.message}; the old one goes on")
    end

    # Tells systemd or `oroshi start` that it may continue (and end the old generation): when all workers are ready, or
    # with SpawnInterval the first, because the others start as slowly as the old ones stop.
    def say_ready
      return if @said_ready || !(@settings.spawn_interval ? @roster.any_ready? : @roster.complete?)

      @said_ready = true
      @notifier.ready
    end

    def act(actions)
      actions.each do |action|
        case action
        when Roster::Start then start(action.slot, action.replaces)
        when Roster::Tell
          promote(action.worker)
          Log.event("#{action.worker}: stopping: #{action.why}")
          signal(action.worker, action.signal)
        when Roster::Kill
          Log.event("#{action.worker}: killed: #{action.why}")
          signal(action.worker, "KILL")
        end
      end
    end

    # The worker may have ended already; then it is reaped soon.
    def signal(worker, name)
      Process.kill(name, worker.pid)
    rescue Errno::ESRCH
      nil
    end

    # --- workers begin ---

    def start(slot, replaces)
      @scoreboard.clear(slot)
      channel, theirs = UNIXSocket.pair
      pid = @mould.fork_worker(@settings, slot, quit_after, theirs)
      theirs.close
      worker = @roster.started(slot, pid)
      @channels[channel] = worker
      @memory&.started(worker)
      Log.event("#{worker}: started#{", to replace #{replaces}: #{@roster.why_replaced(replaces)}" if replaces}")
    rescue StandardError, ScriptError => e
      [channel, theirs].each { |io| io&.close }
      e.is_a?(Mould::Failed) ? Log.event("worker #{slot}: cannot be started: #{e.message}") \
                             : Log.exception("worker #{slot}: cannot be started", e)
      @roster.not_started(slot, now)
    end

    # Random for each worker, so that workers that started together do not end together.
    def quit_after
      most = @settings.max_request_per_child
      least = @settings.min_request_per_child || most
      most.zero? ? nil : Random.new.rand(least..most)
    end

    # --- workers go on ---

    def hear(channel)
      worker = @channels[channel]
      said = channel.read_nonblock(4096, exception: false)
      return if said == :wait_readable
      return forget(channel) if said.nil?

      said.each_line(chomp: true) do |word|
        case word
        when "ready"
          @roster.ready(worker)
          Log.event("#{worker}: ready after #{Log.duration(now - worker.since)}")
        when "enough"
          @roster.enough(worker, "#{@scoreboard.read(worker.slot)[:requests]} requests served")
        when "overdue" # it has several threads, and ends when the others have finished
          @watchdog&.spare(worker.slot)
          @roster.enough(worker, "a request over WorkerTimeout")
        end
      end
    end

    def look_for_overdue
      return unless @watchdog

      @watchdog.look(@scoreboard.overdue(@settings.worker_timeout), now).each do |found|
        worker = @roster.workers.find { |one| one.slot == found.slot }
        next unless worker

        took = "#{found.request} has taken #{Log.duration(found.busy_s)}, WorkerTimeout is " \
               "#{Log.duration(@settings.worker_timeout)}"
        case found
        when Watchdog::Urge
          Log.event("#{worker}: #{took}; told to end")
          @scoreboard.condemn(found.slot, found.serial)
          signal(worker, "URG")
        when Watchdog::Kill
          Log.event("#{worker}: #{took}; killed, because it has not ended by itself: it hangs in code that is no Ruby")
          @roster.condemn(worker)
          signal(worker, "KILL")
        end
      end
    end

    # Workers whose memory has grown beyond their limit ask for a successor, as it were.
    def look_for_large
      @memory&.look(@roster.workers, now) { |worker, why| @roster.enough(worker, why) }
    end

    # Watch: a changed file has the same effect as HUP.
    def look_for_changes
      changed = @watched&.changed(now) or return

      Log.event("#{changed} has changed: loading the application again")
      reload
    end

    # The figures of the status socket.
    def status_facts
      { roster: @roster, scoreboard: @scoreboard, listeners: @listeners, now: now }
    end

    # --- workers end ---

    def reap
      @reloads ? reap_all : reap_own
    end

    # The manager adopts orphans, so any child may end: workers, moulds, what the application has left behind.
    def reap_all
      while (pid = Process.waitpid(-1, Process::WNOHANG))
        status = $?
        worker = @roster.workers.find { |one| one.pid == pid }
        worker ? ended(worker, status) : @moulds.delete(pid)
      end
    rescue Errno::ECHILD
      nil
    end

    # Reaps its own children by pid: others, such as a hook's, are not the manager's.
    def reap_own
      @roster.workers.dup.each do |worker|
        next unless worker.pid && Process.waitpid(worker.pid, Process::WNOHANG)

        ended(worker, $?)
      rescue Errno::ECHILD
        ended(worker, nil)
      end
    end

    def ended(worker, status)
      channel = @channels.key(worker)
      if channel
        hear(channel) # its last words
        forget(channel)
      end
      @watchdog&.forget(worker.slot)
      @promoting = nil if worker.equal?(@promoting)
      timed_out = status&.exitstatus == Worker::TIMED_OUT
      expected = !worker.alive?
      pause = @roster.ended(worker, now, good: timed_out || status&.success? || false)
      @status.ended(worker, @scoreboard.read(worker.slot), timed_out: timed_out, status: status)
      @memory&.forget(worker)
      Log.event("#{worker}: ended#{": #{how(status)}" unless expected && status&.success?}" \
                "#{during(worker) unless timed_out}" \
                "#{"; the next one starts in #{Log.duration(pause)}" if pause.positive?}")
      @scoreboard.clear(worker.slot) # or others would leave connections to it
    end

    def how(status)
      return "nobody knows how" if status.nil?
      return "killed by signal #{status.termsig} (#{Signal.signame(status.termsig)})" if status.signaled?

      status.exitstatus == Worker::TIMED_OUT ? "a request took too long" : "exit code #{status.exitstatus}"
    end

    # Returns the worker's request, if it was in the middle of one.
    def during(worker)
      left = @scoreboard.read(worker.slot)
      return "" unless left[:busy_s] && left[:request]

      ", #{Log.duration(left[:busy_s])} into #{left[:request]}"
    end

    def forget(channel)
      @channels.delete(channel)
      channel.close
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end
end
