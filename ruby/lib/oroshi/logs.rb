# frozen_string_literal: true

module Oroshi
  # The files that lines go to: standard error (ErrorLog) and the access log. Each process opens them anew on USR1, so
  # that logrotate may move them away.
  class Logs
    # Raises SystemCallError.
    def initialize(settings)
      @error_path = settings.error_log && File.expand_path(settings.error_log)
      @access_path = settings.access_log && settings.access_log != "-" && File.expand_path(settings.access_log)
      @access_wanted = settings.log_format != :off
      $stdout.sync = $stderr.sync = true # what an application prints shows at once, also in a file or a container's log
      reopen
    end

    # The access log's descriptor, or nil when there is none.
    def access_fd
      @access&.fileno
    end

    # The block is called with the new descriptor of the access log. The old one stays open till the next time, for a
    # worker writes to it what it had not written yet. Fit for a signal's trap.
    def reopen
      if @error_path
        $stderr.reopen(@error_path, "a")
        $stderr.sync = true
      end
      return unless @access_wanted

      before = @old
      @old = @access
      @access = @access_path ? File.open(@access_path, "a") : $stdout
      yield @access.fileno if block_given?
      before.close if before && @access_path
    end
  end
end
