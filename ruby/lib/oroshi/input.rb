# frozen_string_literal: true

require "stringio"

module Oroshi
  # `rack.input` of a request without a body. One object serves all requests: it has no state, so nothing that one request
  # does to it, closing included, can be seen by another.
  class NullInput
    def read(length = nil, buffer = nil)
      buffer = buffer ? buffer.replace("") : String.new(encoding: Encoding::BINARY)
      length.nil? || length.zero? ? buffer : nil
    end

    def gets(*) = nil
    def getc = nil
    def getbyte = nil
    def readpartial(_length, _buffer = nil) = raise(EOFError, "end of file reached")
    def each(*) = block_given? ? self : enum_for(:each)
    alias each_line each
    def readlines(*) = []
    def rewind = 0
    def pos = 0
    alias tell pos
    def seek(*) = 0
    def size = 0
    alias length size
    def eof? = true
    alias eof eof?
    def close = nil
    def closed? = false
    def binmode = self
    def set_encoding(*) = self
    def external_encoding = Encoding::BINARY
  end

  NULL_INPUT = NullInput.new.freeze

  # `rack.input` of a request whose client asked to be told before it sends the body (`Expect: 100-continue`). The first use
  # tells it, and receives the whole body; an application that answers without looking saves the client the upload.
  #
  # Reading raises EOFError when the body does not come, or is not what was announced.
  class LazyInput
    # `number`: which request this belongs to. Native.receive_body refuses any but the present one.
    def initialize(number)
      @number = number
      @body = nil
      @closed = false
    end

    def read(...) = body.read(...)
    def gets(...) = body.gets(...)
    def getc = body.getc
    def getbyte = body.getbyte
    def readpartial(...) = body.readpartial(...)
    def readlines(...) = body.readlines(...)
    def rewind = body.rewind
    def pos = body.pos
    alias tell pos
    def seek(...) = body.seek(...)
    def size = body.size
    alias length size
    def eof? = body.eof?
    alias eof eof?
    def binmode = self
    def set_encoding(*) = self
    def external_encoding = Encoding::BINARY
    def closed? = @closed

    def each(...)
      return enum_for(:each) unless block_given?

      body.each(...)
      self
    end
    alias each_line each

    def close
      @closed = true
      @body&.close unless @body.equal?(NULL_INPUT)
      nil
    end

    private

    def body
      raise IOError, "rack.input: it was closed" if @closed

      @body ||= Native.receive_body(@number)
    end
  end
end
