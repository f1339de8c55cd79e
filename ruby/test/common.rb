# frozen_string_literal: true

ENV["MT_NO_PLUGINS"] = "1" # Rails's, where it is installed, changes what minitest prints
require "minitest/autorun"
require "socket"

# What all tests share: how long they wait, how they report what was left out, listeners and connections.
module Common
  extend self

  # Nothing takes this long; whatever does is stuck.
  PATIENCE_S = Integer(ENV.fetch("OROSHI_TEST_PATIENCE_S", 30))

  # Tells whoever runs the tests that something was left out, and why.
  def skipped(name, why)
    line = "skipped: #{name}: #{why}\n"
    File.write(ENV["OROSHI_SKIPPED"], line, mode: "a") if ENV["OROSHI_SKIPPED"]
    line
  end

  def leave_out(name, why)
    skip(skipped(name, why).chomp)
  end

  # A listener at a free port.
  def tcp_listener = TCPServer.new("127.0.0.1", 0)

  # A listener at an abstract address that nobody else has.
  def abstract_listener = UNIXServer.new("\0oroshi-#{Process.pid}-#{rand(1 << 32)}")

  # A connection to a listener.
  def connection_to(listener)
    listener.is_a?(UNIXServer) ? UNIXSocket.new(listener.path) : TCPSocket.new("127.0.0.1", listener.addr[1])
  end
end
