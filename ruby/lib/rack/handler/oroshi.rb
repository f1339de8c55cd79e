# frozen_string_literal: true

require "rack"
require "rack/handler"
require_relative "../../oroshi/rack_handler"

module Rack
  module Handler
    Oroshi = ::Oroshi::RackHandler unless const_defined?(:Oroshi, false)
    register "oroshi", "Rack::Handler::Oroshi"
  end
end
