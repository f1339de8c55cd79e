# frozen_string_literal: true

require_relative "worker/threads"

module Oroshi
  # A worker process, around the native part that serves: hooks, signals, the end. It never returns to the code that
  # forked it.
  #
  #   TERM, QUIT   end after the current request and further ones on kept connections
  #   INT          end after the current request
  #   USR1         reopen logs
  #   URG          from the manager: a request takes too long; log where it is, and end. With several threads: ask for a
  #                successor first, so that the others finish their requests
  class Worker
    # Exit codes. TIMED_OUT tells the manager that the only problem was a request over its limit.
    DONE = 0
    FAILED = 1
    TIMED_OUT = 124

    # How long kept connections may still send a request when the worker stops.
    LINGER_S = 1.0
    # Request bodies above this go to a temporary file.
    SPOOL_BYTES = 1 << 20
    # The native side wants a number.
    ANY_SIZE = (1 << 62) - 1

    # channel: carries this worker's reports to the manager; lifeline: a pipe that ends with the manager; quit_after:
    # requests after which it asks to be replaced, or nil.
    def initialize(slot:, app:, settings:, listeners:, scoreboard:, logs:, channel:, lifeline:, quit_after:)
      @slot = slot
      @app = app
      @settings = settings
      @listeners = listeners
      @scoreboard = scoreboard
      @logs = logs
      @channel = channel
      @lifeline = lifeline
      @quit_after = quit_after
      @stop = nil # :gently or :quickly, when told before there was anything to stop
      @threads = nil
      @stuck = {} # by thread: the serial of its request over WorkerTimeout
    end

    # Call this first, while the manager's traps still catch signals; then pass those to `run`.
    def trap_signals
      %w[HUP TTIN TTOU USR2 WINCH].each { |name| trap(name, "IGNORE") } # the manager's
      trap("CHLD", "DEFAULT")
      %w[TERM QUIT].each { |name| trap(name) { stop(:gently) } }
      trap("INT") { stop(:quickly) }
      trap("USR1") { reopen_logs }
      trap("URG") { give_up }
    end

    # told: signals that arrived before the traps above. Ends the process; or returns, when it has ended as a worker to
    # fork the next ones: the socket to the manager, and Listeners.
    def run(told: [])
      told.each do |name|
        case name
        when "TERM", "QUIT" then stop(:gently)
        when "INT" then stop(:quickly)
        when "USR1" then reopen_logs
        end
      end
      serve
    rescue Exception => e # SystemExit in a hook, too, must not reach the manager's code.
      Log.exception("worker #{@slot}: ended", e) unless e.is_a?(SystemExit)
      leave(e.is_a?(SystemExit) ? e.status : FAILED)
    end

    private

    def serve
      Process.setproctitle("oroshi worker #{@slot}: starting")
      srand # or else all workers draw the same numbers
      call_hook(@settings.after_fork)
      listeners = @listeners.hand_over
      @threads = Threads.new(@settings.threads, @settings.io_threads) do |number, **blocks|
        Native::Worker.new(@app, listener_fds: listeners, scoreboard: @scoreboard, slot: @slot, thread: number,
                                 settings: native_settings.merge(blocks))
      end
      Process.setproctitle("oroshi worker #{@slot}: #{@settings.threads} threads") unless @threads.single?
      stop(@stop) if @stop
      tell_manager("ready")
      Log.event("worker #{@slot}: the manager is gone; ending") if @threads.run == :manager_gone
      call_hook(@settings.before_worker_exit)
      promotion || leave(DONE)
    end

    # Returns what the manager has sent to a worker that is to become a Manager::Mould; nil for others.
    def promotion
      text, _, _, control = @channel.recvmsg_nonblock(16, scm_rights: true, exception: false)
      return nil if text == :wait_readable || text != Manager::Mould::PROMOTION

      socket, *listeners = control.unix_rights
      [UNIXSocket.for_fd(socket.fileno).tap { socket.autoclose = false }, Listeners.of(listeners)]
    rescue SystemCallError
      nil # the manager has gone
    end

    def stop(how)
      @stop = how unless @stop == :quickly
      return unless @threads

      @threads.stop(@stop)
      @ender ||= @threads.when_only_left(-> { still_stuck }) { leave(TIMED_OUT) } if still_stuck.any?
    end

    def reopen_logs
      @logs.reopen
    rescue SystemCallError => e
      Log.event("worker #{@slot}: cannot open a log anew: #{e.message}")
    end

    # The manager has seen a request over WorkerTimeout, and the native handler of this signal has answered its client.
    # If the request has just ended after all, the worker goes on.
    def give_up
      return unless @threads
      return give_up_threads unless @threads.single?

      now = @scoreboard.read(@slot)
      return unless now[:busy_s] && now[:busy_s] >= @settings.worker_timeout

      backtrace = caller
      @threads.leave { log_overdue(now[:request], now[:busy_s], now[:told], backtrace) } # nobody else is to suffer
      leave(TIMED_OUT)
    end

    # The threads of these requests do not end, but others may be in the middle of a request.
    def give_up_threads
      backtrace = caller(2)
      @scoreboard.condemned(@slot).each do |number, serial, busy_s, request, told|
        thread, native = @threads[number]
        next if thread.nil? || busy_s < @settings.worker_timeout || @stuck[number] == serial

        @stuck[number] = serial
        log_overdue(request, busy_s, told, thread == Thread.current ? backtrace : thread.backtrace || [])
        native.flush_log # with a line for this request
        tell_manager("overdue")
      end
    end

    # Returns the threads that are still in their request over WorkerTimeout.
    def still_stuck
      return [] if @stuck.empty?

      @scoreboard.condemned(@slot).filter_map { |number, serial,| number if @stuck[number] == serial }
    end

    def log_overdue(request, busy_s, told, backtrace)
      # Leaves out this trap's own lines and those below the application's call.
      where = backtrace.drop_while { |line| line.start_with?(__FILE__) }.take_while { |line| !line.start_with?(__dir__) }
      Log.event("worker #{@slot}: #{request} took longer than WorkerTimeout, #{Log.duration(busy_s)}; " \
                "#{told ? "its client got 504" : "its answer had begun and is cut off"}; it was here:\n" \
                "#{Log.indent(where)}")
    end

    def call_hook(hook)
      Oroshi.call_hook(hook, @slot)
    end

    # Short enough for a pipe to take it whole, even if the manager is busy. Without a manager, the lifeline ends the
    # worker.
    def tell_manager(word)
      @channel.write_nonblock("#{word}\n")
    rescue SystemCallError, IO::WaitWritable
      nil
    end

    # Skips at_exit blocks: they are the manager's, from before the fork, such as rackup's, which removes its pid file.
    def leave(code)
      [$stdout, $stderr].each(&:flush)
    rescue SystemCallError, IOError
      nil # nobody reads any more
    ensure
      exit!(code)
    end

    def native_settings
      {
        rack_release: Rack.release, multiprocess: true, # one that is being replaced is never alone
        url_scheme: "http", errors: $stderr,
        early_hints: @settings.early_hints, check_client_connection: @settings.check_client_connection,
        title: ("oroshi worker #{@slot}" if @settings.threads + @settings.io_threads == 1),
        keep_alive_s: @settings.keep_alive, timeout_s: @settings.timeout, linger_s: LINGER_S,
        max_body: @settings.max_body.zero? ? ANY_SIZE : @settings.max_body,
        input_spool_bytes: SPOOL_BYTES, buffer_bytes: @settings.buffer_memory, answer_file_bytes: @settings.answer_files,
        body_file_bytes: @settings.body_files, least_rate: @settings.least_rate, chunked: @settings.chunked_transfer,
        log_format: @settings.log_format, log_fd: @logs.access_fd,
        lifeline_fd: @lifeline.fileno,
        quit_after: @quit_after, on_enough: -> { tell_manager("enough") },
        oob_gc: @settings.oobgc ? { max: @settings.max_gc_per_request, min: @settings.min_gc_per_request } : nil
      }
    end
  end
end
