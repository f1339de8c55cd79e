# frozen_string_literal: true

module Oroshi
  # A file with the manager's process number. It is locked (flock) as long as the manager lives, so that a file which a
  # killed one has left is told from one that counts.
  class PidFile
    # Another process holds the file.
    class Taken < StandardError; end

    # Raises Taken, or a SystemCallError when the file cannot be written.
    def initialize(path)
      @path = File.expand_path(path)
      @file = File.open(@path, File::RDWR | File::CREAT, 0o644)
      unless @file.flock(File::LOCK_EX | File::LOCK_NB)
        holder = @file.read.strip
        @file.close
        raise Taken, "#{path}: the server with pid #{holder} runs already; stop it, or give another PidFile"
      end
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
  end
end
