# frozen_string_literal: true

ENV["MT_NO_PLUGINS"] = "1" # Rails's, where it is installed, changes what minitest prints
require "minitest/autorun"
require "socket"
require "timeout"

# Shared by all tests: waiting, reports of skipped tests, listeners and connections.
module Common
  extend self

  # The limit for every wait: a test that takes longer hangs.
  PATIENCE_S = Integer(ENV.fetch("OROSHI_TEST_PATIENCE_S", 30))

  # Runs a block that waits; fails the test when the wait takes too long.
  def within(what = "the block", &block)
    Timeout.timeout(PATIENCE_S, nil, "waited in vain for #{what}", &block)
  end

  # Asks the block until it is true, and returns its value.
  def wait_until(what)
    over = Process.clock_gettime(Process::CLOCK_MONOTONIC) + PATIENCE_S
    until (found = yield)
      raise "waited in vain for #{what}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > over

      sleep 0.002
    end
    found
  end

  # Reports a skipped test, and why.
  def skipped(name, why)
    line = "skipped: #{name}: #{why}\n"
    File.write(ENV["OROSHI_SKIPPED"], line, mode: "a") if ENV["OROSHI_SKIPPED"]
    line
  end

  def leave_out(name, why)
    skip(skipped(name, why).chomp)
  end

  # Listens at a free port.
  def tcp_listener = TCPServer.new("127.0.0.1", 0)

  # Listens at an abstract address of its own.
  def abstract_listener = UNIXServer.new("\0oroshi-#{Process.pid}-#{rand(1 << 32)}")

  # Connects to a listener.
  def connection_to(listener)
    listener.is_a?(UNIXServer) ? UNIXSocket.new(listener.path) : TCPSocket.new("127.0.0.1", listener.addr[1])
  end
end
