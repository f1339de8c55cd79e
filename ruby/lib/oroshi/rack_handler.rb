# frozen_string_literal: true

require_relative "../oroshi"
require_relative "command"

module Oroshi
  # `rackup -s oroshi`: what Rack::Handler and Rackup::Handler ask of a server.
  module RackHandler
    # Serves `app` until it is told to stop. options: rackup's own (Host, Port and the like) and what stood after -O.
    # Ends the process when the server cannot be started: 2 for wrong options, 1 for the rest.
    def self.run(app, **options)
      code = Command.reporting(with: "rackup -s oroshi") { Oroshi.serve(**options) { app } }
      exit code unless code.zero?
    end

    # For `rackup -s oroshi --help`.
    def self.valid_options
      Settings::OPTIONS.reject(&:hook?).to_h do |option|
        ["#{option.flag}=VALUE", "#{option.doc} (#{Settings.show(option, option.default)})"]
      end
    end
  end
end
