# frozen_string_literal: true

require "socket"
require_relative "../log"
require_relative "../worker"

module Oroshi
  class Manager
    # What workers need from the manager, beside their settings.
    Parts = Struct.new(:listeners, :scoreboard, :logs, :lifeline, keyword_init: true)

    # The application is loaded in the manager, which forks workers itself: for `rackup`, `rails server` and
    # Oroshi.serve, which load it before this server starts.
    class OwnFork
      # in_child: runs in each new worker, closes what is the manager's, and returns the signals that the worker got
      # before it had traps.
      def initialize(app, parts, &in_child)
        @app = app
        @parts = parts
        @in_child = in_child
      end

      # Returns the pid of a new worker. Raises what the hook or the fork raises.
      def fork_worker(settings, slot, quit_after, channel)
        Oroshi.call_hook(settings.before_fork, slot)
        fork do
          Mould.become_worker(@app, settings, @parts, slot, quit_after, channel, &@in_child)
        end
      end

      # The manager reopens its own logs.
      def reopen_logs; end
      def close; end
    end

    # A process that has loaded the application, and forks workers for the manager. A new one has new code, while the
    # old one's workers serve; if it cannot load the application, nothing has changed.
    #
    # The manager adopts the workers (Native.adopt_orphans): it hears of their ends, as if it had forked them.
    class Mould
      # The application cannot be loaded. code: an exit code.
      class LoadFailed < StandardError
        attr_reader :code

        def initialize(message, code)
          @code = code
          super(message)
        end
      end

      # The process has ended, or could not fork a worker.
      class Failed < StandardError; end

      MOST_BYTES = 60_000

      # Replaces a forked process by a worker, and perhaps later by the process that forks the next workers; never
      # returns. The block: see OwnFork.
      def self.become_worker(app, settings, parts, slot, quit_after, channel)
        begin
          worker = Worker.new(slot: slot, app: app, settings: settings, channel: channel, quit_after: quit_after,
                              **parts.to_h)
          worker.trap_signals
          socket, listeners = worker.run(told: yield)
        rescue Exception => e # Nothing may bring a child into its parent's loop.
          Log.exception("worker #{slot}: ended", e)
        end
        exit!(Worker::FAILED) unless socket
        parts = Parts.new(**parts.to_h, listeners: listeners)
        Loaded.new(socket, settings, parts, Process.ppid).run_with(app)
      end

      # worker: the Roster::Worker that has become this process, or nil.
      attr_reader :pid, :settings, :socket, :worker

      # Turns a worker into the process from which the next workers are forked. It first ends as a worker: tell it to
      # stop after this. channel: to the worker. Raises SystemCallError.
      def self.of_worker(worker, settings, listeners, channel)
        socket, theirs = UNIXSocket.pair(:SEQPACKET)
        channel.sendmsg(PROMOTION, 0, nil, Socket::AncillaryData.unix_rights(theirs, *listeners.ios))
        allocate.tap { |mould| mould.send(:take_worker, worker, settings, socket) }
      ensure
        theirs&.close
      end

      # What of_worker sends to the worker.
      PROMOTION = "mould"

      # Starts the process. leave: runs in it first, and closes what is the manager's alone. load: returns the
      # application.
      def initialize(settings, parts, leave:, load:)
        @settings = settings
        @socket, theirs = UNIXSocket.pair(:SEQPACKET)
        manager = Process.pid
        @pid = fork do
          @socket.close
          leave.call
          Loaded.new(theirs, settings, parts, manager).run(load)
        end
        theirs.close
      end

      # Waits for the application. Raises LoadFailed; ends this process if the application has ended its own.
      def wait_until_loaded
        said = receive
        return if said == "ready"
        raise failure(said) if said

        _, status = Process.wait2(@pid)
        @pid = nil
        exit(status.exitstatus) if status.exited?
        raise LoadFailed.new("the application cannot be loaded: its process was killed by signal #{status.termsig}", 1)
      end

      # Returns true once the application is loaded, nil before; for a readable socket. Raises LoadFailed.
      def loaded?
        said = receive
        return true if said == "ready"

        raise said ? failure(said) : LoadFailed.new("its process has ended", 1)
      end

      # Returns the pid of a new worker. Raises Failed.
      def fork_worker(_settings, slot, quit_after, channel)
        @socket.sendmsg("start #{slot} #{quit_after || 0}", 0, nil, Socket::AncillaryData.unix_rights(channel))
        said = receive or raise Failed, "the process with the application has ended"
        word, rest = said.split(/[ \n]/, 2)
        raise Failed, rest unless word == "pid"

        rest.to_i
      rescue SystemCallError => e
        raise Failed, "the process with the application cannot be asked: #{e.message}"
      end

      def reopen_logs
        @socket.send("reopen", 0)
      rescue SystemCallError
        nil # it has ended, which the manager will hear
      end

      # Ends the process without `at_exit` blocks: another one with the same application goes on.
      def leave
        @socket.send("leave", 0)
      rescue SystemCallError
        nil # it has ended
      ensure
        close
      end

      # Lets the process end in its own time, with its `at_exit` blocks.
      def close
        @socket.close unless @socket.closed?
      end

      private

      def take_worker(worker, settings, socket)
        @worker = worker
        @pid = worker.pid
        @settings = settings
        @socket = socket
      end

      # Returns nil when the process has ended.
      def receive
        said, = @socket.recvmsg(MOST_BYTES + 100)
        said.nil? || said.empty? ? nil : said
      rescue Errno::ECONNRESET
        nil
      end

      def failure(said)
        code, message = said.delete_prefix("failed ").split("\n", 2)
        LoadFailed.new(message.to_s.dup.force_encoding(Encoding::UTF_8), code.to_i)
      end
    end

    # The process of a Mould.
    class Mould::Loaded
      def initialize(socket, settings, parts, manager)
        @socket = socket
        @settings = settings
        @parts = parts
        @manager = manager
      end

      # Loads the application, and forks workers. Never returns.
      def run(load)
        begin_here
        Process.setproctitle("oroshi application: loading")
        serve(load_with(load))
      end

      # The same in a worker, which has the application. Never returns.
      def run_with(app)
        begin_here
        serve(app)
      end

      private

      def begin_here
        trap_signals
        Native.end_with_parent(Signal.list["KILL"])
        exit!(1) if Process.ppid != @manager # it has ended already
      end

      def serve(app)
        Oroshi.warm_up if @settings.warmup
        Process.setproctitle("oroshi application: loaded")
        say("ready")
        nil while obey(app)
        @parts.listeners.forget
        exit(0)
      end

      # The manager's signals reach the whole group from a terminal, and are its affair. Blocks, so that programs that
      # the application starts do not ignore these signals.
      def trap_signals
        %w[HUP INT QUIT TTIN TTOU USR1 USR2 WINCH].each { |name| trap(name) { nil } }
        %w[TERM CHLD].each { |name| trap(name, "DEFAULT") }
      end

      def load_with(load)
        load.call
      rescue SystemExit => e
        exit!(e.status)
      rescue ScriptError, StandardError => e
        code = e.respond_to?(:code) && e.code.is_a?(Integer) ? e.code : 1
        text = e.respond_to?(:code) ? e.message : "#{e.class}: #{e.message}\n#{Log.indent((e.backtrace || []).first(20))}"
        say("failed #{code}\n#{text}")
        exit!(code)
      end

      def say(text)
        @socket.send(text.b.byteslice(0, Mould::MOST_BYTES), 0)
      end

      # Carries out one request of the manager. False at its end.
      def obey(app)
        text, _, _, control = @socket.recvmsg(100, scm_rights: true)
        word, slot, quit_after = text.to_s.split
        case word
        when "start" then start(app, slot.to_i, quit_after.to_i, control.unix_rights.first)
        when "reopen" then @parts.logs.reopen
        when "leave" then exit!(0)
        else return false
        end
        true
      rescue SystemCallError => e
        # Only the logs; errors of a start are reported.
        Log.event("the application's process: cannot open a log anew: #{e.message}")
        true
      end

      # Forks twice: the worker's parent ends at once, so that the manager adopts the worker.
      def start(app, slot, quit_after, channel)
        Oroshi.call_hook(@settings.before_fork, slot)
        born, tell = IO.pipe
        go, hold = IO.pipe
        between = fork do
          fork do
            [@socket, born, hold].each(&:close)
            Mould.become_worker(app, @settings, @parts, slot, quit_after.zero? ? nil : quit_after, channel) do
              tell.write(Process.pid.to_s) # it has traps from here on
              tell.close
              go.read # until the parent has ended
              go.close
              []
            end
          end
          exit!(0)
        ensure
          exit!(1)
        end
        tell.close
        Process.wait(between)
        pid = born.read
        raise Mould::Failed, "the worker could not be forked" if pid.empty?

        hold.close
        say("pid #{pid}")
      rescue StandardError, ScriptError => e
        say("error\n#{e.class}: #{e.message}\n#{Log.indent(e.backtrace || [])}")
      ensure
        [born, tell, go, hold, channel].each { |io| io&.close unless io&.closed? }
      end
    end
  end
end
