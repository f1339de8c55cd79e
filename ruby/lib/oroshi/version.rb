# frozen_string_literal: true

module Oroshi
  # The same as the version of the Cargo workspace that the native worker is built from.
  VERSION = "0.1.0"
end
