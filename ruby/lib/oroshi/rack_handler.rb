# frozen_string_literal: true

require_relative "../oroshi"
require_relative "command"

module Oroshi
  # `rackup -s oroshi`: the interface that Rack::Handler and Rackup::Handler ask of a server.
  module RackHandler
    # Serves `app` until told to stop. options: rackup's own (Host, Port and the like) and those after -O. Ends the
    # process when the server cannot start: 2 for wrong options, 1 otherwise.
    def self.run(app, **options)
      options = Settings.with_usual_file(for_rails(options)).transform_keys(&:to_sym)
      code = Command.reporting(with: "rackup -s oroshi") { Oroshi.serve(**options) { app } }
      exit code unless code.zero?
    end

    # The name that `rails server` shows, without the modules.
    def self.to_s
      "Rack::Handler::Oroshi"
    end

    # One worker in development, as with Puma: its log stays readable, and a debugger has the terminal to itself.
    def self.for_rails(options)
      in_development = options.key?(:user_supplied_options) && options[:environment].to_s == "development"
      given = ENV["WEB_CONCURRENCY"].to_s != "" || options.keys.any? { |name| Settings.option(name)&.name == :max_workers }
      in_development && !given ? options.merge(MaxWorkers: 1) : options
    end
    private_class_method :for_rails

    # For `rackup -s oroshi --help`.
    def self.valid_options
      Settings::OPTIONS.reject(&:hook?).to_h do |option|
        ["#{option.flag}=VALUE", "#{option.doc} (#{Settings.show(option, option.default)})"]
      end
    end
  end
end
