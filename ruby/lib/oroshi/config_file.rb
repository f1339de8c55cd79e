# frozen_string_literal: true

module Oroshi
  # A Ruby file with options in snake case:
  #
  #     max_workers 4
  #     reuseport true
  #     listen "/run/app.sock"
  #     listen "127.0.0.1:8080"
  #     before_fork { ActiveRecord::Base.connection_pool.disconnect! }
  #
  # It may contain any Ruby. Each option is a method with one value, or with a block.
  class ConfigFile
    # Reads a file. Returns an Array of Settings::Given; adds mistakes to `mistakes`.
    def self.read(path, mistakes)
      file = new(path, mistakes)
      # Source code is UTF-8, even if a service runs without a locale.
      file.instance_eval(File.read(path, encoding: "UTF-8"), path, 1)
      file.given__
    rescue SystemCallError => e
      mistakes << "ConfigFile #{path}: cannot be read: #{e.message}"
      []
    rescue ScriptError, StandardError => e
      mistakes << "#{place(e, path)}: #{what(e, file)}"
      file.given__
    end

    # Words an exception of the file. An unknown option that stands alone is a NameError, whose own message would not
    # help.
    def self.what(error, file)
      if error.is_a?(NameError) && error.receiver.equal?(file)
        return "there is no `#{error.name}`#{Settings.suggestion(error.name, flags: false)}"
      end

      "#{error.class}: #{error.message}"
    rescue ArgumentError # a NameError without a receiver
      "#{error.class}: #{error.message}"
    end
    private_class_method :what

    # Returns where in the file an exception came from.
    def self.place(error, path)
      [path, error.backtrace_locations&.find { |location| location.path == path }&.lineno].compact.join(":")
    end
    private_class_method :place

    def initialize(path, mistakes)
      @path = path
      @mistakes = mistakes
      @given = {}
    end

    # Returns the file's options in order. The name avoids options and the file's own definitions.
    def given__
      @given.values
    end

    # `listen` may occur several times and adds up. (For other options the last one counts.)
    def listen(*addresses)
      line = caller_locations(1, 1).first.lineno
      so_far = @given["listen"]
      note__("listen", (so_far ? so_far.value : []) + addresses.flatten, addresses, line)
    end

    # `threads 5`, or `threads 1, 5` as Puma's files have it: all threads start at once, so the latter number counts.
    def threads(*values)
      line = caller_locations(1, 1).first.lineno
      return note__("threads", values.join(":"), values, line) if values.size.between?(1, 2)

      @mistakes << "#{@path}:#{line}: threads: wants one value or two, got #{values.size}"
    end

    def config_file(*)
      @mistakes << "#{@path}:#{caller_locations(1, 1).first.lineno}: config_file: one config file cannot name another; " \
                   "use `instance_eval File.read(...)`, or require"
    end

    private

    def method_missing(name, *values, &block)
      known = !Settings.option(name).nil?
      return super if values.empty? && block.nil? && !known

      line = caller_locations(1, 1).first.lineno
      # An unknown option matters more than its number of values.
      if values.size + (block ? 1 : 0) == 1 || !known
        note__(name, block || values.first, block ? "{ ... }" : values, line)
      else
        @mistakes << "#{@path}:#{line}: #{name}: wants one value or a block, got #{values.size + (block ? 1 : 0)}"
      end
      nil
    end

    def respond_to_missing?(name, include_private = false)
      !Settings.option(name).nil? || super
    end

    def note__(name, value, shown, line)
      shown = shown.map(&:inspect).join(", ") if shown.is_a?(Array)
      key = Settings.option(name)&.name&.to_s || name.to_s
      @given[key] = Settings::Given.new(name.to_s, value, "#{@path}:#{line}: #{name} #{shown}", "#{@path}:#{line}")
    end
  end
end
