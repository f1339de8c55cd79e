# frozen_string_literal: true

require "io/nonblock"
require "socket"
require_relative "listeners/address"

module Oroshi
  # The sockets from which workers accept: inherited from a superdaemon, or else opened here.
  #
  # SERVER_STARTER_PORT (`oroshi start`, Server::Starter) or LISTEN_FDS (systemd, `oroshi start`) announces inherited
  # sockets. They override Host, Port, Path and Listen.
  class Listeners
    # A socket is unavailable. The message names the address and the next step.
    class Error < StandardError; end

    # name: for people, such as `127.0.0.1:9292` or `unix:/run/app.sock`; file: the File::Stat of the socket's own file.
    Listener = Struct.new(:io, :name, :path, :file)

    INHERITED_FROM = %w[SERVER_STARTER_PORT LISTEN_FDS].freeze

    # Removes the variables from `env`, because in a worker's children the descriptors are no longer our sockets. Raises
    # Error; nothing stays open then.
    def self.open(settings, env: ENV)
      listeners = []
      inherited = inherit(env, listeners)
      Address.of(settings).each { |address| address.open(settings, listeners) } unless inherited
      new(listeners, inherited)
    rescue Error, SystemCallError
      new(listeners, inherited).close
      raise
    ensure
      %w[SERVER_STARTER_PORT LISTEN_FDS LISTEN_PID LISTEN_FDNAMES].each { |name| env.delete(name) }
    end

    # inherited: the variable that announced the sockets, or nil.
    attr_reader :inherited

    def initialize(listeners, inherited)
      @listeners = listeners
      @inherited = inherited
    end

    # Descriptors, for the native worker.
    def fds
      @listeners.map { |one| one.io.fileno }
    end

    # Sockets, for questions about their queues.
    def ios
      @listeners.map(&:io)
    end

    def names
      @listeners.map(&:name)
    end

    # In a worker: leaves closing to the native part, which closes its copies when it stops.
    def hand_over
      @listeners.each { |one| one.io.autoclose = false }
      fds
    end

    # In a process that only forks workers: closes its copies. Others still accept.
    def forget
      @listeners.each { |one| one.io.close }
      @listeners = []
    end

    # In the manager, before the end: refuses new clients; those that have connected can still be accepted. True if this
    # holds for all sockets. Not for inherited sockets, which others continue to use.
    def refuse_new
      return false if @inherited

      @listeners.each { |one| Native.refuse_new(one.io.fileno) }
      true
    rescue IOError => e
      Log.event("#{e.message}; who connects in this moment may be reset")
      false
    end

    # In the manager, at the end: new clients are refused instead of waiting in vain. Removes the socket's file, if it
    # is still the one made here.
    def close
      @listeners.each do |one|
        one.io.close
        stat = one.path && File.lstat(one.path)
        File.unlink(one.path) if stat && one.file && [stat.dev, stat.ino] == [one.file.dev, one.file.ino]
      rescue SystemCallError
        next # gone already, or its folder is no longer ours to write to
      end
      @listeners = []
    end

    class << self
      # Listeners on open sockets, for a process that only forks workers.
      def of(sockets)
        new(sockets.map { |socket| Listener.new(socket, nil, nil, nil) }, nil)
      end

      private

      # Fills `listeners`; returns the variable's name, or nil without inherited sockets.
      def inherit(env, listeners)
        fds = from_server_starter(env["SERVER_STARTER_PORT"])
        by = "SERVER_STARTER_PORT" unless fds.empty?
        systemd = from_systemd(env["LISTEN_FDS"], env["LISTEN_PID"])
        by ||= "LISTEN_FDS" unless systemd.empty?
        # `oroshi start` announces the same sockets in both.
        (fds | systemd).each do |fd|
          listener = adopt(fd, by)
          listeners << listener if listener
        end
        raise Error, "#{by} names no socket for connections: give the superdaemon a --port or --path" \
          if by && listeners.empty?

        by
      end

      # `name=fd` joined by `;`. The name is a port, host:port or a path, which may itself contain a `=`.
      def from_server_starter(value)
        value.to_s.split(";").map do |item|
          fd = item[/=(\d+)\z/, 1]
          raise Error, "SERVER_STARTER_PORT=#{value}: `#{item}` is not name=descriptor" unless fd

          fd.to_i
        end
      end

      # sd_listen_fds(3): descriptors from 3 on, only for the process LISTEN_PID.
      def from_systemd(count, pid)
        return [] unless count && pid.to_i == Process.pid

        number = Integer(count, 10, exception: false)
        raise Error, "LISTEN_FDS=#{count}: must be a number" unless number && number >= 0

        (3...(3 + number)).to_a
      end

      # Returns nil for a datagram socket, which is for another program (Server::Starter's u53=5 looks like any other).
      def adopt(fd, variable)
        io = Socket.for_fd(fd)
        if io.getsockopt(:SOCKET, :TYPE).int == Socket::SOCK_DGRAM
          io.autoclose = false
          return nil
        end
        raise Error, "#{variable}: descriptor #{fd} does not listen" unless io.getsockopt(:SOCKET, :ACCEPTCONN).bool

        # Workers wait in epoll; with a blocking socket, the second worker to reach a connection would hang in accept.
        io.nonblock = true
        io.close_on_exec = true
        Listener.new(io, Address.name_of(io.local_address), nil, nil)
      rescue Errno::EBADF, Errno::ENOTSOCK => e
        raise Error, "#{variable}: descriptor #{fd} is no socket (#{e.message}); " \
                     "was it closed on the way here? An old Bundler wants `bundle exec --keep-file-descriptors`"
      end
    end
  end
end
