# frozen_string_literal: true

require_relative "option_file"

module Oroshi
  # The files that lines go to: standard error (ErrorLog) and the access log. Each process opens them anew on USR1, so
  # that logrotate may move them away.
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

    # The access log's descriptor, or nil when there is none. It stays the same for the life of the process.
    def access_fd
      @access&.fileno
    end

    # Opens the files anew, each under its old descriptor (dup2): the native worker, and children of the application, go
    # on writing to that number. Raises SystemCallError; what could not be opened then is as it was. Fit for a signal's
    # trap.
    def reopen
      reopen_errors if @error_path
      @access.reopen(@access_path, "a") if @access && @access_path
    end

    private

    # IO#reopen closes the standard streams before it opens (freopen(3)): after a failure, descriptor 2 would be free for
    # the next client's socket. So a file that cannot be opened is found out before.
    def reopen_errors
      File.open(@error_path, "a").close
      $stderr.reopen(@error_path, "a")
      $stderr.sync = true
    end
  end
end
