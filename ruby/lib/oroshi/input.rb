# frozen_string_literal: true

require "stringio" # what a short body is given as

module Oroshi
  # `rack.input` of a request without a body. One object serves all requests: it has no state, so no request can affect
  # another, even by closing it.
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
end
