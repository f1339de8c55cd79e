# frozen_string_literal: true

# A prefork Rack server whose worker is native. In reading order:
#
#   settings.rb        every option once; checks the user's values
#   config_file.rb     the same options as a Ruby file
#   listeners.rb       sockets, opened or inherited
#   manager.rb         the process that starts, watches, replaces and stops workers; manager/mould.rb: the one that
#                      holds the application and forks them
#   worker.rb          a worker process, around the native part
#   input.rb stream.rb an application's input and output, where they are Ruby's
#   rack_handler.rb    `rackup -s oroshi`
#   command.rb         `oroshi-rack`
#
# Separate from all of that, and loaded when first named: client.rb, an HTTP client with its own native part, and push.rb,
# the backend's side of `oroshi push`.
require_relative "oroshi/version"
require_relative "oroshi/settings"
require_relative "oroshi/listeners"
require_relative "oroshi/log"
require_relative "oroshi/input"
require_relative "oroshi/stream"
require_relative "oroshi/manager"

module Oroshi
  autoload :Client, "oroshi/client"
  autoload :Push, "oroshi/push"

  # Serves until told to stop, in this process (the manager) and in workers that it forks.
  #
  # options: as in docs/rack.md, `MaxWorkers: 4` or `max_workers: 4`; the file of ConfigFile overrides them. The block
  # returns the Rack application. The manager calls it once, when the sockets are open.
  #
  # Returns the exit code: 0 after a requested stop. Raises Settings::Invalid with every mistake in the options,
  # Listeners::Error when a socket cannot be opened, PidFile::Taken, and whatever the block raises.
  def self.serve(env: ENV, **options, &app)
    read = -> { Settings.build(options, env: env) }
    Manager.new(read.call, env: env, read_again: read, &app).run
  end
end
