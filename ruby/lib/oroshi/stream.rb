# frozen_string_literal: true

require "socket"

module Oroshi
  # The client's connection after the answer's head, for a body that responds to `call` (Rack 3). It frames written
  # bytes as the head says. The application owns it and closes it, now or later.
  class Stream
    # `io`: the socket. `chunked`: whether to send the body in chunks. `discard`: whether there is none (HEAD).
    def initialize(io, chunked, discard = false)
      @io = io
      @chunked = chunked
      @discard = discard
      @open = true
    end

    def read(...) = @io.read(...)
    def readpartial(...) = @io.readpartial(...)
    def read_nonblock(...) = @io.read_nonblock(...)

    # Sends all of the data. Returns the number of bytes.
    def write(*pieces)
      raise IOError, "stream: it was closed for writing" unless @open

      pieces.sum do |piece|
        piece = piece.to_s
        send_piece(piece) unless piece.empty? || @discard
        piece.bytesize
      end
    end

    def write_nonblock(data, **) = write(data)

    def <<(data)
      write(data)
      self
    end

    def flush
      @io.flush
      self
    end

    # Ends the body, and with it the connection.
    def close
      close_write
      @io.close unless @io.closed?
      nil
    end

    def close_read
      @io.close_read unless @io.closed?
      nil
    end

    # Ends the body.
    def close_write
      return unless @open

      @open = false
      return if @io.closed?

      @io.write("0\r\n\r\n") if @chunked && !@discard
      @io.close_write
      nil
    rescue Errno::EPIPE, Errno::ECONNRESET, Errno::ENOTCONN
      nil
    end

    def closed? = !@open && @io.closed?

    # Cuts the connection off, so that the client sees an incomplete body.
    def abort
      @open = false
      return if @io.closed?

      @io.setsockopt(Socket::SOL_SOCKET, Socket::SO_LINGER, [1, 0].pack("ii"))
      @io.close
      nil
    end

    def to_io = @io

    private

    def send_piece(piece)
      if @chunked
        @io.write("#{piece.bytesize.to_s(16)}\r\n", piece, "\r\n")
      else
        @io.write(piece)
      end
    end
  end

  # Returns the parts of a body as Strings, for the native side.
  def self.plain_body(parts)
    parts.map(&:to_s)
  end

  # Converts an application's headers to a Hash of Strings and Arrays of Strings, from anything whose `each` yields
  # pairs, for the native side.
  def self.plain_headers(headers)
    plain = {}
    headers.each do |name, value|
      next if value.nil?

      name = name.to_s
      plain[name] = if name.start_with?("rack.") then value
                    elsif value.is_a?(Array) then value.map(&:to_s)
                    else value.to_s
                    end
    end
    plain
  end
end
