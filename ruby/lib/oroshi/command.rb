# frozen_string_literal: true

require "optparse"
require "uri" # Rack::Lint of Rack 2.2 needs it, and does not load it
require_relative "../oroshi"
require_relative "from_puma"
require_relative "status_client"

module Oroshi
  # The command `oroshi-rack`. It adds no middleware of its own.
  class Command
    # Exit codes.
    DONE = 0
    FAILED = 1
    WRONG_USAGE = 2

    # A mistake that the user must correct; the message names it.
    class Failure < StandardError
      attr_reader :code

      def initialize(message, code)
        @code = code
        super(message)
      end
    end

    # Runs the block, which returns an exit code; reports errors, and returns their exit codes.
    def self.reporting(with:)
      yield
    rescue Settings::Invalid => e
      e.mistakes.each { |mistake| warn "error: #{mistake}" }
      warn "  next: `oroshi-rack --help` lists the options; docs/rack.md explains them"
      WRONG_USAGE
    rescue Failure, Manager::Mould::LoadFailed, StatusClient::Error, FromPuma::Error => e
      warn "error: #{e.message}"
      e.code
    rescue Listeners::Error, Manager::StatusServer::Error, PidFile::Taken, OptionFile::Error, SystemCallError => e
      warn "error: #{with}: #{e.message}"
      FAILED
    end

    def initialize(argv, env: ENV)
      @argv = argv.dup
      @env = env
      @options = {}
      @action = :serve
    end

    # Returns the exit code.
    def run
      self.class.reporting(with: "oroshi-rack") do
        parse
        public_send(@action)
      end
    end

    def serve
      settings = prepare
      Manager.new(settings, env: @env, read_again: -> { read_settings }, reloads: true) { load_app }.run
    end

    # --check: checks the options, their files, and the application; without sockets or workers.
    def check
      settings = prepare
      { "ErrorLog" => settings.error_log, "AccessLog" => settings.access_log, "PidFile" => settings.pid_file }
        .each do |option, path|
          mistake = path && path != "-" && OptionFile.mistake(option, path)
          raise Failure.new(mistake, FAILED) if mistake
        end
      load_app
      puts settings.describe, "#{@rackup_file} is fine"
      DONE
    end

    # --status: prints what the running server says of itself.
    def status
      print status_client.get("/status")
      DONE
    end

    # top: shows it as a table, again and again on a terminal.
    def top
      status_client.top
      DONE
    end

    # --from-puma: prints the settings of a file of Puma's as one of ours.
    def from_puma
      puts FromPuma.new(@puma_file, env: @env).text
      DONE
    end

    def help
      puts parser.help
      DONE
    end

    def version
      puts "oroshi-rack #{VERSION} (Ruby #{RUBY_VERSION}, Rack #{Rack.release})"
      DONE
    end

    private

    def parse
      @action = :top if @argv.first == "top" && @argv.shift
      rest = parser.parse(@argv)
      raise Failure.new("too many arguments: #{rest.drop(1).join(" ")}; one config.ru is served", WRONG_USAGE) \
        if rest.size > 1

      @rackup_file = rest.first || "config.ru"
    rescue OptionParser::ParseError => e
      raise Failure.new("#{e.message}; `oroshi-rack --help` lists what there is", WRONG_USAGE)
    end

    def parser
      OptionParser.new(nil, 26) do |opts|
        opts.banner = "Usage: oroshi-rack [options] [config.ru]\n       oroshi-rack top [options]\n\nServes a Rack application with several worker " \
                      "processes.\n\n"
        opts.on("-c", "--config FILE", "a Ruby file with options; it wins over this line (config/oroshi.rb, if it exists)") do |file|
          @options["ConfigFile"] = file
        end
        opts.on("-O", "--option NAME=VALUE", "one option; the list is below") { |text| note(text) }
        opts.on("-l", "--listen ADDRESS", "8080, 127.0.0.1:8080, [::1]:8080, /run/app.sock, @name; repeatable") do |one|
          (@options["Listen"] ||= []) << one
        end
        opts.on("-p", "--port PORT", "the same as -O Port=PORT") { |port| @options["Port"] = port }
        opts.on("-o", "--host HOST", "the same as -O Host=HOST") { |host| @options["Host"] = host }
        opts.on("-w", "--workers N", "the same as -O MaxWorkers=N") { |number| @options["MaxWorkers"] = number }
        opts.on("-t", "--threads N", "the same as -O Threads=N; also MIN:MAX, of which MAX counts") do |number|
          @options["Threads"] = number
        end
        opts.on("-E", "--env NAME", "sets RACK_ENV; unset it is development") { |name| @env["RACK_ENV"] = name }
        opts.on("--check", "say what is wrong with options and application, or show all values, and end") do
          @action = :check
        end
        opts.on("--dev", "for development: one worker, and the application is loaded again when a file changes") do
          { "Watch" => ".", "MaxWorkers" => "1" }.each { |name, value| @options[name] ||= value }
        end
        opts.on("--status", "print what the running server does, as JSON, and end; needs its StatusSocket") do
          @action = :status
        end
        opts.on("--from-puma FILE", "print the settings of a config/puma.rb as a config/oroshi.rb, and end") do |file|
          @puma_file = file
          @action = :from_puma
        end
        opts.on("--version", "show the version") { @action = :version }
        opts.on("-h", "--help", "show this") { @action = :help }
        opts.separator("\nOptions for -O (in config files: max_workers 4), and their defaults:\n\n")
        Settings::OPTIONS.each { |option| opts.separator(line_for(option)) }
        opts.separator("\nSignals to the manager: TERM, QUIT graceful stop; INT quick stop; HUP reads the configuration again and\n" \
                       "replaces all workers; " \
                       "TTIN, TTOU one worker more, less; USR1 opens logs anew.\n" \
                       "Environment: WEB_CONCURRENCY, RAILS_MAX_THREADS and PORT stand in for MaxWorkers, Threads and Port where nothing\nelse says.\n" \
                       "Exit codes: 0 done, 1 failed, 2 wrong usage.")
      end
    end

    def line_for(option)
      default = option.hook? ? "config file only" : Settings.show(option, option.default)
      "    #{option.flag.ljust(22)}#{option.doc} (#{default})"
    end

    def status_client
      address = read_settings.status_socket
      address ||= raise Failure.new("which server? Give its StatusSocket: -O StatusSocket=/run/app.status, or its " \
                                    "config file with -c", WRONG_USAGE)
      StatusClient.new(address)
    end

    def note(text)
      name, value = text.split("=", 2)
      if Settings.option(name) == Settings.option("listen") && value
        (@options["Listen"] ||= []) << value
      else
        @options[name] = value || true
      end
    end

    def read_settings
      Settings.build(Settings.with_usual_file(@options), env: @env)
    end

    def prepare
      settings = read_settings
      @env["RACK_ENV"] ||= "development"
      return settings if File.file?(@rackup_file)

      raise Failure.new("#{File.expand_path(@rackup_file)} is not there; name the application's config.ru, or change " \
                        "into its folder", WRONG_USAGE)
    end

    # An application's error shows the application's own lines, not the server's.
    def load_app
      app, = Rack::Builder.parse_file(@rackup_file)
      return app if app.respond_to?(:call)

      raise Failure.new("#{@rackup_file}: the application is #{app.inspect[0, 60]}, which has no method `call`; give `run` " \
                        "something that has, such as a class of Sinatra's or `->(env) { [200, {}, [\"Hello\"]] }`", FAILED)
    rescue Failure
      raise
    rescue ScriptError, StandardError => e
      lines = (e.backtrace || []).reject { |line| line.start_with?(__dir__) }
      raise Failure.new("#{@rackup_file} cannot be loaded: #{e.class}: #{e.message}\n#{Log.indent(lines.first(20))}",
                        FAILED)
    end
  end
end
