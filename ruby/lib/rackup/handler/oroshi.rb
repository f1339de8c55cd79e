# frozen_string_literal: true

# Rack 3 has its handlers in a separate gem, rackup.
require "rack"
require "rackup/handler"
require_relative "../../oroshi/rack_handler"

module Rackup
  module Handler
    register :oroshi, ::Oroshi::RackHandler
  end
end
