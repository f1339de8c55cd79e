# frozen_string_literal: true

require_relative "settings"

module Oroshi
  # Reads a file of Puma's (config/puma.rb), and writes the same settings as a file of ours. The file is Ruby: it runs,
  # with Puma's names as methods. Blocks are shown by their place, because their source is in the file.
  class FromPuma
    # The file cannot be read. code: the exit code.
    class Error < StandardError
      def code = 2
    end

    # Names that mean the same with one value here.
    SAME = { "port" => "port", "bind" => "listen", "pidfile" => "pid_file", "persistent_timeout" => "keep_alive",
             "first_data_timeout" => "timeout", "worker_shutdown_timeout" => "stop_timeout",
             "max_io_threads" => "io_threads", "http_content_length_limit" => "max_body" }.freeze
    # Blocks that run at the same moment here.
    BLOCKS = { "before_fork" => "before_fork", "on_worker_boot" => "after_fork", "before_worker_boot" => "after_fork",
               "on_worker_shutdown" => "before_worker_exit", "before_worker_shutdown" => "before_worker_exit" }.freeze
    # What oroshi-rack does anyway, or what means nothing here.
    ALWAYS = { "preload_app!" => "the application is loaded before workers are forked, always",
               "lowlevel_error_handler" => "errors are logged with their backtrace; the client gets 500",
               "tag" => "the process title names the address", "quiet" => "there is no log of requests by default",
               "rackup" => "name the file on the command line: oroshi-rack FILE",
               "directory" => "systemd's WorkingDirectory, or cd", "wait_for_less_busy_worker" => "idle workers accept first, always",
               "nakayoshi_fork" => "Warmup is on by default", "drain_on_shutdown" => "TERM drains, always" }.freeze
    # What oroshi-rack does not have, and what to use.
    NOT_HERE = { "plugin" => "no plugins; `:tmp_restart`: `oroshi start --restart`",
                 "ssl_bind" => "no TLS: nginx or another proxy in front", "on_restart" => "no such moment: `oroshi start` starts a new process",
                 "after_worker_boot" => "no such moment", "after_worker_fork" => "no such moment",
                 "on_worker_fork" => "use before_fork", "raise_exception_on_sigterm" => "TERM never raises",
                 "silence_single_worker_warning" => "no such warning" }.freeze

    # env: in the file's ENV look-ups the process's own environment counts; WEB_CONCURRENCY is read as Puma reads it.
    def initialize(path, env: ENV)
      @path = path
      @env = env
      @lines = []
      @notes = []
      @threads = nil
      @workers = nil
    end

    # Returns the file's text. Raises Error.
    def text
      Reader.new(self).instance_eval(File.read(@path, encoding: "UTF-8"), @path, 1)
      ["# From #{@path}, by `oroshi-rack --from-puma`.", *workers, *@lines, *@notes.map { |note| "# #{note}" }].join("\n")
    rescue SystemCallError => e
      raise Error, "#{@path}: #{e.message}"
    rescue ScriptError, StandardError => e
      line = e.backtrace_locations&.find { |location| location.path == @path }&.lineno
      raise Error, "#{[@path, line].compact.join(":")}: #{e.class}: #{e.message}"
    end

    # Takes one setting of the file.
    def take(name, values, block, line)
      if SAME.key?(name) then set(SAME[name], values.first)
      elsif BLOCKS.key?(name) then take_block(name, block, values, line)
      elsif ALWAYS.key?(name) then note("#{name}: #{ALWAYS[name]}", line)
      elsif NOT_HERE.key?(name) then note("#{shown(name, values)}: not here; #{NOT_HERE[name]}", line)
      else take_other(name, values, line)
      end
    end

    private

    def take_other(name, values, line)
      case name
      when "workers" then @workers = values.first.to_s == "auto" ? "auto" : values.first.to_i
      when "threads" then @threads = values.map(&:to_i).max
      when "environment" then note("environment #{values.first.inspect}: oroshi-rack -E #{values.first}", line)
      when "fork_worker" then set("refork_after", [(values.first || 1000).to_i])
      when "early_hints" then set("early_hints", values.first != false)
      when "worker_timeout" then note("worker_timeout #{values.first}: Puma kills a worker that is silent for so long. Here it " \
                                      "limits each request: choose a time, such as worker_timeout \"30s\"", line)
      when "stdout_redirect" then redirect(values, line)
      when "activate_control_app" then control(values.first)
      when "log_requests" then set("log_format", values.first == false ? "off" : "common")
      when "app" then note("app { ... }: not here; write it into config.ru", line)
      else note("#{shown(name, values)}: unknown here; docs/rack.md lists what there is", line)
      end
    end

    # Puma has 5 threads in each process unless the file says otherwise.
    def workers
      return [] unless @workers || @threads

      processes = @workers == "auto" ? "\"auto\"" : [@workers || @env["WEB_CONCURRENCY"].to_i, 1].max
      ["max_workers #{processes}", @threads ? "threads #{@threads}" : "threads 5 # Puma's default"]
    end

    def set(name, value)
      mistakes = []
      option = Settings.option(name)
      value = value.to_s if value.is_a?(Symbol)
      fits = !option.type.read.call(value).equal?(Settings::Types::UNFIT)
      mistakes << "#{name} #{value.inspect}: must be #{option.type.expected}" unless fits
      mistakes.empty? ? @lines << "#{name} #{value.inspect}" : @notes.concat(mistakes)
    end

    def take_block(name, block, values, line)
      return note("#{name}: without a block", line) unless block || values.first.respond_to?(:call)

      @lines << "#{BLOCKS[name]} { } # put the block of #{name} here: #{@path}:#{line}"
    end

    def redirect(values, _line)
      out, errors, = values
      set("access_log", out) if out
      set("error_log", errors) if errors
    end

    def control(address)
      text = address.to_s.delete_prefix("unix://").sub(%r{\Atcp://}, "")
      set("status_socket", ["", "auto"].include?(text) ? "tmp/oroshi.status".then { |path| "./#{path}" } : text)
    end

    def note(text, line)
      @notes << "#{text} (line #{line})"
    end

    # Only numbers and names: other values may be secrets.
    def shown(name, values)
      plain = values.map { |value| [Numeric, Symbol, TrueClass, FalseClass].any? { |it| it === value } ? value.inspect : "..." }
      [name, plain.join(", ")].reject(&:empty?).join(" ")
    end

    # The `self` of the file.
    class Reader
      def initialize(owner)
        @owner = owner
      end

      # Kernel's and Rake's namesakes must not be called instead.
      %i[bind port threads workers plugin environment rackup tag quiet app directory].each do |name|
        define_method(name) do |*values, &block|
          @owner.take(name.to_s, values, block, caller_locations(1, 1).first.lineno)
        end
      end

      def get(_name, default = nil) = default

      private

      def method_missing(name, *values, **named, &block)
        values += [named] unless named.empty?
        @owner.take(name.to_s, values, block, caller_locations(1, 1).first.lineno)
        nil
      end

      def respond_to_missing?(*) = true
    end
  end
end
