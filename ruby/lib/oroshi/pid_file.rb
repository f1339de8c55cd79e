# frozen_string_literal: true

require_relative "option_file"

module Oroshi
  # A file with the manager's process number. It is locked (flock) as long as the manager lives, so that a file which a
  # killed one has left is told from one that counts.
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

    # The file, open and locked. Whoever held it may remove it after it was opened here and before it is locked; such a
    # lock keeps nobody out, because the next one to start makes a new file. Then it is tried again.
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
