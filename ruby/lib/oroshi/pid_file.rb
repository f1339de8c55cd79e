# frozen_string_literal: true

require_relative "option_file"

module Oroshi
  # A file with the manager's pid. The manager locks it (flock) while it lives, which tells it from a killed manager's
  # file.
  class PidFile
    # Another process holds the file.
    class Taken < StandardError; end

    # Raises Taken, or OptionFile::Error.
    def initialize(path)
      @name = path
      @path = File.expand_path(path)
      @file = lock
      @file.truncate(0)
      @file.write("#{Process.pid}\n")
      @file.flush
    end

    # In a worker: the lock is the manager's alone.
    def leave
      @file.close
    end

    # In the manager, at the end.
    def remove
      File.unlink(@path) if File.identical?(@path, @file)
      @file.close
    rescue SystemCallError
      nil # removed by somebody else
    end

    private

    # Returns the file, open and locked. Its holder may remove it between our open and our lock. Such a lock excludes
    # nobody, because the next server makes a new file; then this tries again.
    def lock
      loop do
        file = OptionFile.opening("PidFile", @name) { File.open(@path, File::RDWR | File::CREAT, 0o644) }
        refuse(file) unless file.flock(File::LOCK_EX | File::LOCK_NB)
        return file if File.identical?(@path, file)

        file.close
      end
    end

    def refuse(file)
      holder = file.read.strip
      file.close
      raise Taken, "#{@name}: the server with pid #{holder} runs already; stop it, or give another PidFile"
    end
  end
end
