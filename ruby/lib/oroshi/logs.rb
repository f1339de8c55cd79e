# frozen_string_literal: true

require_relative "option_file"

module Oroshi
  # The log files: standard error (ErrorLog) and the access log. Each process reopens them on USR1, so that logrotate
  # may move them.
  class Logs
    # Raises OptionFile::Error.
    def initialize(settings)
      @error_path = settings.error_log && File.expand_path(settings.error_log)
      @access_path = settings.access_log && settings.access_log != "-" && File.expand_path(settings.access_log)
      $stdout.sync = $stderr.sync = true # what an application prints shows at once, also in a file or a container's log
      OptionFile.opening("ErrorLog", settings.error_log) { reopen_errors } if @error_path
      return if settings.log_format == :off

      @access = $stdout
      OptionFile.opening("AccessLog", settings.access_log) { @access = File.open(@access_path, "a") } if @access_path
    end

    # Returns the access log's descriptor, or nil without one. It never changes within a process.
    def access_fd
      @access&.fileno
    end

    # Reopens the files, each under its old descriptor (dup2): the native worker and the application's children keep
    # writing to that number. Raises SystemCallError; a file that cannot be opened stays as it was. Safe in a trap.
    def reopen
      reopen_errors if @error_path
      @access.reopen(@access_path, "a") if @access && @access_path
    end

    private

    # IO#reopen closes the standard streams before it opens (freopen(3)): after a failure, descriptor 2 would be free
    # for the next client's socket. So this tries to open the file first.
    def reopen_errors
      File.open(@error_path, "a").close
      $stderr.reopen(@error_path, "a")
      $stderr.sync = true
    end
  end
end
