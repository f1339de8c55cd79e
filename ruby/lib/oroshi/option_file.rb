# frozen_string_literal: true

module Oroshi
  # A file of an option: ErrorLog, AccessLog, PidFile.
  module OptionFile
    # It cannot be opened. The message names the option, the file, and the next step.
    class Error < StandardError; end

    module_function

    # Runs the block, which opens the file. Raises Error.
    def opening(option, path)
      yield
    rescue SystemCallError => e
      raise Error, refusal(option, path, e)
    end

    # Returns why the file could not be opened for writing, as a line; nil if it probably can. Changes nothing.
    def mistake(option, path)
      folder = File.dirname(File.expand_path(path))
      problem = if File.directory?(path) then Errno::EISDIR
                elsif File.exist?(path) then File.writable?(path) ? nil : Errno::EACCES
                elsif !File.exist?(folder) then Errno::ENOENT
                elsif !File.directory?(folder) then Errno::ENOTDIR
                elsif !File.writable?(folder) then Errno::EACCES
                end
      problem && refusal(option, path, problem.new)
    end

    def refusal(option, path, error)
      folder = File.dirname(path)
      step = case error
             when Errno::ENOENT then "its folder must exist: mkdir -p #{folder}"
             when Errno::EACCES, Errno::EROFS then "let this user write there, or choose another file"
             else "choose another file"
             end
      # The system's words, without the method and the path that Ruby adds to them.
      "#{option} #{path}: #{SystemCallError.new(nil, error.errno).message}; #{step}"
    end
    private_class_method :refusal
  end
end
