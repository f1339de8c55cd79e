# frozen_string_literal: true

require "socket"
require_relative "../listeners"

module Oroshi
  class Manager
    # Answers GET at the status socket, between the manager's other work: one request per connection. A slow client
    # never makes the manager wait.
    class StatusServer
      # The socket cannot be opened.
      class Error < StandardError; end

      Client = Struct.new(:socket, :input, :output, :due)

      MOST_CLIENTS = 16
      MOST_HEAD_BYTES = 8192
      PATIENCE_S = 5

      # What opening an address needs to know. The socket's file is its user's alone.
      Options = Struct.new(:backlog, :reuseport, :path_mode)

      # Returns nil without an address. The block returns [status, content type, body] for a path. Raises Error.
      def self.open(text, &block)
        return nil unless text

        listeners = []
        Listeners::Address.parse(text).open(Options.new(MOST_CLIENTS, false, 0o600), listeners)
        new(listeners, &block)
      rescue Listeners::Error => e
        raise Error, "StatusSocket: #{e.message}"
      end

      def initialize(listeners, &answer)
        @listeners = listeners
        @answer = answer
        @clients = {} # IO => Client
      end

      # Names of the addresses.
      def names = @listeners.map(&:name)

      # Sockets to wait for.
      def reading
        waiting = @clients.values.select { |client| client.output.nil? }.map(&:socket)
        @clients.size < MOST_CLIENTS ? @listeners.map(&:io) + waiting : waiting
      end

      def writing
        @clients.values.select(&:output).map(&:socket)
      end

      # Returns when the next client's time is over, in seconds from now; nil without clients.
      def next_due_s(now)
        @clients.values.map { |client| client.due - now }.min
      end

      def attend(readable, writable, now)
        @listeners.each { |one| accept(one.io, now) if readable.include?(one.io) }
        readable.each { |io| @clients.key?(io) && read(@clients[io]) }
        writable.each { |io| @clients.key?(io) && write(@clients[io]) }
        @clients.values.each { |client| drop(client) if now >= client.due }
      end

      # In another process: closes the copies.
      def forget
        [*@listeners.map(&:io), *@clients.keys].each(&:close)
      end

      def close
        forget
        @listeners.each { |one| File.unlink(one.path) if one.path && File.socket?(one.path) }
      rescue SystemCallError
        nil # somebody has removed it
      end

      private

      def accept(listener, now)
        socket, = listener.accept_nonblock(exception: false)
        return if socket.nil? || socket == :wait_readable

        @clients[socket] = Client.new(socket, +"".b, nil, now + PATIENCE_S)
      rescue SystemCallError
        nil # the client has gone already
      end

      def read(client)
        piece = client.socket.read_nonblock(MOST_HEAD_BYTES, exception: false)
        return if piece == :wait_readable
        return drop(client) if piece.nil?

        client.input << piece
        if client.input.include?("\r\n\r\n") then respond(client, client.input)
        elsif client.input.bytesize > MOST_HEAD_BYTES then reply(client, 431, "text/plain", "the head is too long\n")
        end
      rescue SystemCallError
        drop(client)
      end

      def respond(client, head)
        method, target = head[/\A[^\r\n]*/].split
        return reply(client, 405, "text/plain", "only GET\n") unless %w[GET HEAD].include?(method)

        reply(client, *@answer.call(target.to_s[/\A[^?]*/]), head_only: method == "HEAD")
      rescue StandardError => e # nothing here may end the manager
        Log.exception("the status socket: #{target}", e)
        reply(client, 500, "text/plain", "the log has the reason\n")
      end

      REASONS = { 200 => "OK", 404 => "Not Found", 405 => "Method Not Allowed", 431 => "Request Header Fields Too Large",
                  500 => "Internal Server Error" }.freeze

      def reply(client, status, type, body, head_only: false)
        client.output = "HTTP/1.1 #{status} #{REASONS.fetch(status)}\r\nContent-Type: #{type}\r\n" \
                        "Content-Length: #{body.bytesize}\r\nConnection: close\r\n\r\n#{body unless head_only}".b
        write(client)
      end

      def write(client)
        sent = client.socket.write_nonblock(client.output, exception: false)
        return if sent == :wait_writable

        client.output = client.output.byteslice(sent..)
        drop(client) if client.output.empty?
      rescue SystemCallError
        drop(client)
      end

      def drop(client)
        @clients.delete(client.socket)
        client.socket.close
      end
    end
  end
end
