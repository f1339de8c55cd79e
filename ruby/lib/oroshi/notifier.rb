# frozen_string_literal: true

require "socket"

module Oroshi
  # Notifies the service manager that the server is ready or stopping: sd_notify(3), for systemd and `oroshi start
  # --ready notify`. Does nothing without NOTIFY_SOCKET.
  class Notifier
    def initialize(env)
      @path = env["NOTIFY_SOCKET"]
    end

    def ready
      send("READY=1")
    end

    def stopping
      send("STOPPING=1")
    end

    private

    def send(state)
      return if @path.nil? || @path.empty?

      Socket.open(:UNIX, :DGRAM) { |socket| socket.send(state, 0, Socket.pack_sockaddr_un(@path.sub(/\A@/, "\0"))) }
    rescue SystemCallError => e
      Log.event("cannot tell NOTIFY_SOCKET=#{@path} #{state}: #{e.message}")
    end
  end
end
