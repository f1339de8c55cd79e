# frozen_string_literal: true

require "etc"
require "socket"
require "did_you_mean/spell_checker"
require_relative "settings/types"

module Oroshi
  # Every option, once: names, allowed values, default, and effect.
  #
  # Users give options in three ways: `-O Name=Value` (Strings, or true without a value), a config file, and Ruby. All
  # pass through `Settings.build`, which finds all mistakes at once.
  class Settings
    # name: in config files and in Ruby; flag: after -O (Rhebok's spelling); doc: one line for --help and docs/rack.md.
    Option = Struct.new(:name, :flag, :type, :default, :doc) do
      # Returns the key for a name: `max_workers`, `MaxWorkers` and `maxworkers` are the same option.
      def self.key_of(name)
        name.to_s.delete("_").downcase
      end

      def hook?
        type.expected == Types.hook.expected
      end
    end

    option = ->(*fields) { Option.new(*fields).freeze }
    OPTIONS = [
      # Where to listen. Host and Port apply if neither Path nor Listen is given: rackup always gives a Port.
      option[:host, "Host", Types.text("an address or a name", "127.0.0.1"), "0.0.0.0",
             "the address to listen at; `localhost` means IPv4 and IPv6"],
      option[:port, "Port", Types.integer(0..65_535, example: 8080), 9292, "the port to listen at; 0: any that is free"],
      option[:path, "Path", Types.text("a path, or @name", "/run/app.sock", optional: true), nil,
             "the unix socket to listen at, instead of Host and Port; `@name`: abstract, without a file"],
      option[:listen, "Listen", Types.addresses, [].freeze,
             "more addresses to listen at, instead of Host and Port: `8080`, `[::1]:8080`, `/run/app.sock`, `@name`"],
      option[:backlog, "BackLog", Types.integer(1..), Socket::SOMAXCONN,
             "how many connections may wait to be accepted; the kernel takes no more than `net.core.somaxconn`"],
      option[:reuseport, "ReusePort", Types.boolean, false,
             "other servers may listen at the same TCP port (SO_REUSEPORT)"],
      option[:path_mode, "PathMode", Types.mode, 0o777, "who may connect: the mode of the unix socket's file"],

      # Workers.
      option[:max_workers, "MaxWorkers", Types.workers, 5,
             "how many workers, each a process; `auto`: one per processor"],
      option[:threads, "Threads", Types.threads, 1,
             "how many requests each worker serves at a time, on as many threads; more than 1 needs a thread-safe application"],
      option[:io_threads, "IoThreads", Types.integer(0..Types::MOST_THREADS, example: 16), 0,
             "how many threads more each worker may have while requests wait that have called `oroshi.io_bound`"],
      option[:min_request_per_child, "MinRequestPerChild", Types.integer(1.., optional: true), nil,
             "with MaxRequestPerChild: each worker draws its limit from this range"],
      option[:max_request_per_child, "MaxRequestPerChild", Types.integer(0..), 1000,
             "after how many requests a worker is replaced; 0: never"],
      option[:min_memory_per_child, "MinMemoryPerChild", Types.optional_bytes, nil,
             "with MaxMemoryPerChild: each worker draws its limit from this range"],
      option[:max_memory_per_child, "MaxMemoryPerChild", Types.bytes, 0,
             "a worker with more memory (PSS, which counts shared pages in parts) is replaced; 0: never"],
      option[:refork_after, "ReforkAfter", Types.integers, [].freeze,
             "after how many requests a worker becomes the process that forks the next ones, so that they share its memory; `50,1000`: then once more"],
      option[:spawn_interval, "SpawnInterval", Types.seconds(optional: true), nil,
             "start at most one worker in this time; USR1 then is a slow stop, one worker in this time"],
      option[:err_respawn_interval, "ErrRespawnInterval", Types.seconds, 1.0,
             "how long to wait after a worker has died; doubles, up to 30 s, while they die before they are ready"],
      option[:stop_timeout, "StopTimeout", Types.seconds, 30.0,
             "how long a worker that is told to stop may take, then it is killed; 0: as long as it likes"],
      option[:warmup, "Warmup", Types.boolean, true,
             "tidy the heap before the first worker starts, so that workers share more memory"],

      # Requests.
      option[:timeout, "Timeout", Types.seconds, 300.0,
             "how long a client may keep a connection waiting: in the middle of a request, or of its answer"],
      option[:keep_alive, "KeepAlive", Types.seconds, 75.0,
             "how long a connection may wait for its next request; 0: one request per connection"],
      option[:worker_timeout, "WorkerTimeout", Types.seconds, 0.0,
             "how long the application may take; then the client gets 504, the log a backtrace; 0: as long as it likes"],
      option[:max_body, "MaxBody", Types.bytes, 1 << 30, "the largest request body, in bytes; 0: any size"],
      option[:buffer_memory, "BufferMemory", Types.bytes, 64 << 20,
             "how many bytes of half-received bodies and unread answers each worker keeps in memory; more goes to temporary files"],
      option[:answer_files, "AnswerFiles", Types.bytes, 1 << 30,
             "how many bytes of unread answers each worker keeps in temporary files; then answers by `each` wait, others are cut off"],
      option[:body_files, "BodyFiles", Types.bytes, 2 << 30,
             "how many bytes of half-received bodies each worker keeps in temporary files; then the slowest clients get 503"],
      option[:least_rate, "LeastRate", Types.bytes, 1024,
             "how many bytes per second a client must send of a body, or take of an answer, once `Timeout` has passed; 0: any progress will do"],
      option[:chunked_transfer, "ChunkedTransfer", Types.boolean, true,
             "answers of unknown length go out in chunks; false: they end with the connection"],

      option[:early_hints, "EarlyHints", Types.boolean, false,
             "applications may send `103 Early Hints` with `rack.early_hints`"],
      option[:check_client_connection, "CheckClientConnection", Types.boolean, false,
             "drop requests whose client has disconnected, before the application is called"],

      # Garbage collection outside of requests.
      option[:oobgc, "OobGC", Types.boolean, false, "collect garbage between requests"],
      option[:max_gc_per_request, "MaxGCPerRequest", Types.integer(1..), 5, "with OobGC: after how many requests"],
      option[:min_gc_per_request, "MinGCPerRequest", Types.integer(1.., optional: true), nil,
             "with OobGC: the number is drawn from this range, each time anew"],

      # Logs and files.
      option[:log_format, "LogFormat", Types.one_of("off", "common", "combined", "json"), :off,
             "the access log's lines; `combined` where only AccessLog is given"],
      option[:access_log, "AccessLog", Types.text("a file, or - for standard output", "log/access.log", optional: true),
             nil, "the access log's file; `-`, or unset: standard output"],
      option[:error_log, "ErrorLog", Types.text("a file", "log/error.log", optional: true), nil,
             "the file for standard error: the manager's log, `rack.errors`"],
      option[:pid_file, "PidFile", Types.text("a file", "tmp/oroshi.pid", optional: true), nil,
             "the manager's process number, as long as it runs"],
      option[:status_socket, "StatusSocket", Types.address, nil,
             "the address that tells what the server does: `oroshi-rack --status`, `oroshi-rack top`, Prometheus"],
      option[:watch, "Watch", Types.text("files and folders, with commas between them", "app,lib,config.ru", optional: true), nil,
             "for development: load the application again when one of these files changes; `--dev` is `Watch=.`"],
      option[:config_file, "ConfigFile", Types.text("a file", "config/oroshi.rb", optional: true), nil,
             "a Ruby file with options; it wins over the command line"],

      # Hooks. Each receives the worker's number if it takes an argument.
      option[:before_fork, "BeforeFork", Types.hook, nil, "run before each worker starts, in the process that forks it"],
      option[:after_fork, "AfterFork", Types.hook, nil, "run in each worker before its first request"],
      option[:before_worker_exit, "BeforeWorkerExit", Types.hook, nil,
             "run in each worker after its last request; `at_exit` blocks are not run there"]
    ].freeze

    BY_KEY = OPTIONS.to_h { |one| [Option.key_of(one.name), one] }.freeze

    # Other servers' names, for messages that lead their users to ours.
    NAMES_ELSEWHERE = {
      "worker_processes" => "max_workers", "workers" => "max_workers", "bind" => "listen", "pid" => "pid_file",
      "pidfile" => "pid_file", "stderr_path" => "error_log", "stdout_path" => "access_log", "umask" => "path_mode",
      "persistent_timeout" => "keep_alive", "worker_shutdown_timeout" => "stop_timeout",
      "first_data_timeout" => "timeout", "on_worker_boot" => "after_fork", "before_worker_boot" => "after_fork",
      "on_worker_fork" => "before_fork", "on_worker_shutdown" => "before_worker_exit",
      "before_worker_shutdown" => "before_worker_exit", "http_content_length_limit" => "max_body",
      "client_max_body_size" => "max_body", "activate_control_app" => "status_socket"
    }.freeze

    # Options that rackup and `rails server` give to every server.
    OF_LAUNCHERS = %i[
      app builder caching config daemonize debug DoNotReverseLookup environment heapfile include
      log_stdout pid profile_file profile_mode quiet require restart_cmd server user_supplied_options warn
    ].freeze

    # The options have mistakes: `mistakes` lists them all, as lines for the user.
    class Invalid < StandardError
      attr_reader :mistakes

      def initialize(mistakes)
        @mistakes = mistakes
        super(mistakes.join("\n"))
      end
    end

    # The config file that commands read if it exists and none is named.
    USUAL_FILE = "config/oroshi.rb"

    # An option that a user wrote. spelled: its spelling, for messages.
    Given = Struct.new(:name, :value, :spelled, :origin)

    class << self
      # options: names (either spelling) to values; env: WEB_CONCURRENCY, RAILS_MAX_THREADS and PORT are defaults. Raises Invalid.
      def build(options = {}, env: ENV)
        mistakes = []
        values = {}
        origins = {}
        take = lambda do |given|
          option, value = check(given, mistakes)
          values[option.name], origins[option.name] = value, given.origin if option
        end

        from_options(options).each(&take)
        from_file(values[:config_file], mistakes).each(&take)
        from_environment(env, values).each(&take)
        derive(values)
        mistakes.concat(contradictions(values))
        raise Invalid, mistakes unless mistakes.empty?

        new(values, origins)
      end

      # Returns the options with the file that is read without being named, if there is one and no other is named.
      def with_usual_file(options)
        named = options.keys.any? { |name| option(name)&.name == :config_file }
        named || !File.file?(USUAL_FILE) ? options : options.merge("ConfigFile" => USUAL_FILE)
      end

      # Returns the option of this name in either spelling, or nil.
      def option(name)
        BY_KEY[Option.key_of(name)]
      end

      # " (meant: max_workers?)" or "". flags: whether the user writes -O names.
      def suggestion(name, flags:)
        elsewhere = option(NAMES_ELSEWHERE[name.to_s] || "")
        nearest = elsewhere || option(DidYouMean::SpellChecker.new(dictionary: BY_KEY.keys)
                                                              .correct(Option.key_of(name)).first || "")
        nearest ? "; did you mean #{flags ? nearest.flag : nearest.name}?" : "; docs/rack.md has the list"
      end

      private

      def from_options(options)
        options.filter_map do |name, value|
          next if OF_LAUNCHERS.include?(name.to_sym)
          next if name.to_sym == :AccessLog && value.is_a?(Array) # rackup's, for WEBrick
          next if name.to_sym == :early_hints && value.nil? # Rails's, without --early-hints

          spelled = value.is_a?(String) ? "#{name}=#{value}" : "#{name} #{value.inspect}"
          Given.new(name.to_s, value, value == true ? "#{name} without a value" : spelled, "command line")
        end
      end

      def from_file(path, mistakes)
        path ? ConfigFile.read(path, mistakes) : []
      end

      def from_environment(env, values)
        { "WEB_CONCURRENCY" => :max_workers, "RAILS_MAX_THREADS" => :threads, "PORT" => :port }.filter_map do |variable, name|
          value = env[variable]
          next if value.nil? || value.empty? || values.key?(name)

          Given.new(name.to_s, value, "#{variable}=#{value}", "environment")
        end
      end

      # Returns [option, value], or nil after a mistake.
      def check(given, mistakes)
        found = option(given.name)
        flags = given.origin == "command line"
        unless found
          mistakes << "#{given.spelled}: no such option#{suggestion(given.name, flags: flags)}"
          return nil
        end

        value = found.type.read.call(given.value)
        return [found, value] unless value.equal?(Types::UNFIT)

        mistakes << "#{given.spelled}: must be #{found.type.expected}, for example #{example(found, given)}"
        nil
      end

      # Returns a correct example for the place of the mistake.
      def example(option, given)
        fit = option.type.example
        case given.origin
        when "environment" then "#{given.spelled[/\A\w+/]}=#{fit}"
        when "command line" then option.hook? ? "#{option.flag} #{fit}" : "-O #{option.flag}=#{fit}"
        else "#{option.name} #{fit}"
        end
      end

      # Sets values that depend on others.
      def derive(values)
        values[:log_format] = :combined if values[:access_log] && !values.key?(:log_format)
      end

      def contradictions(values)
        [%i[min_request_per_child max_request_per_child], %i[min_gc_per_request max_gc_per_request],
         %i[min_memory_per_child max_memory_per_child]]
          .filter_map do |low, high|
            least = values[low] or next
            most = values.fetch(high) { option(high).default }
            next if least <= most

            "#{option(low).flag} #{least} is above #{option(high).flag} #{most}: give a range"
          end
      end
    end

    OPTIONS.each { |option| define_method(option.name) { @values.fetch(option.name) { option.default } } }

    def initialize(values, origins)
      @values = values.freeze
      @origins = origins.freeze
      freeze
    end

    # Settings that take effect only when the server starts.
    OPENED_ONCE = %i[host port path listen backlog reuseport path_mode threads io_threads warmup log_format access_log error_log pid_file
                     status_socket watch config_file].freeze

    # Returns these settings with the values of `before` under `names`, and a line for each that differs.
    def keeping(before, names)
      kept = names.to_h { |name| [name, before.public_send(name)] }
      [Settings.new(@values.merge(kept), @origins), changes_from(before, names)]
    end

    # Returns changes: lines `MaxWorkers 4 (it was 2)`. Hooks are never the same, and not included.
    def changes_from(before, names = OPTIONS.reject(&:hook?).map(&:name))
      names.filter_map do |name|
        option = self.class.option(name)
        was, is = [before, self].map { |settings| self.class.show(option, settings.public_send(name)) }
        "#{option.flag} #{is} (it was #{was})" if was != is
      end
    end

    def hooks
      OPTIONS.select(&:hook?).map { |option| public_send(option.name) }
    end

    # Returns the values in effect, as lines `Name value (origin)`; for `oroshi-rack --check`.
    def describe
      OPTIONS.map do |option|
        value = public_send(option.name)
        shown = option.hook? && value ? "given" : self.class.show(option, value)
        "#{option.flag.ljust(18)} #{shown} (#{@origins.fetch(option.name, "default")})"
      end
    end

    # Returns a value as a user would write it.
    def self.show(option, value)
      case value
      when nil then "not set"
      when Float then "#{value == value.to_i ? value.to_i : value} s"
      when Array then value.empty? ? "not set" : value.join(",")
      else option.name == :path_mode ? format("0%o", value) : value.to_s
      end
    end
  end
end

require_relative "config_file"
