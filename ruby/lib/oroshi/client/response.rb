# frozen_string_literal: true

module Oroshi
  class Client
    # How long the phases of a request took, in seconds; nil for a phase that there was none of. After a redirect or a
    # retry the phases are those of the last attempt, and total is that of all.
    Timings = Struct.new(:queue, :dns, :connect, :tls, :write, :first_byte, :body, :total)

    # What a request was answered with. All of it is frozen but the body, which is the caller's.
    class Response
      # 100 to 999. A status of 400 or more is an answer like any other.
      attr_reader :status
      # The reason phrase, perhaps empty.
      attr_reader :reason
      # "1.1" or "1.0".
      attr_reader :version
      # A String, unpacked. Its encoding is the charset of Content-Type where Ruby knows it, else binary.
      attr_reader :body
      # The URL that answered, after redirects.
      attr_reader :url
      # How many redirects were followed.
      attr_reader :redirects
      # What the body was unpacked from, "gzip", "br" or "zstd", or nil.
      attr_reader :coding
      # Timings.
      attr_reader :timings

      def initialize(status, reason, version, headers, body, trailers, url, redirects, coding, timings)
        @status = status
        @reason = reason.freeze
        @version = version.freeze
        @header_lines = headers
        @body = body
        @trailer_lines = trailers
        @url = url.freeze
        @redirects = redirects
        @coding = coding&.freeze
        @timings = Timings.new(*timings).freeze
        charset = self.charset
        body.force_encoding(charset) if charset
      end

      # Headers.
      def headers
        @headers ||= Headers.new(@header_lines)
      end

      # The Headers after a chunked body; most often there are none.
      def trailers
        @trailers ||= Headers.new(@trailer_lines)
      end

      # The value of a header field, or nil.
      def [](name)
        headers[name]
      end

      # Whether the status is 200 to 299.
      def success?
        status.between?(200, 299)
      end

      # False, as opposed to an Error's.
      def failed?
        false
      end

      # The body in UTF-8, which it is taken to be where no charset is named. Raises ContentError if it is not.
      def text
        text = body.encoding == Encoding::BINARY ? body.dup.force_encoding(Encoding::UTF_8) : body.encode(Encoding::UTF_8)
        return text if text.valid_encoding?

        raise unreadable("the body is not text in UTF-8", "not-utf-8")
      rescue EncodingError => e
        raise unreadable("the body is not text in #{body.encoding}: #{e.message}", "not-utf-8")
      end

      # The body, read as JSON. options: for JSON.parse. Raises ContentError if it is none.
      def json(**options)
        require "json"
        JSON.parse(text, **options)
      rescue JSON::ParserError => e
        # The message repeats the text.
        raise unreadable("the body is not JSON: #{e.message.scrub("?")[0, 100]}", "json")
      end

      def inspect
        "#<#{self.class} #{status} #{url.sub(/\?.*/m, "?...")} #{body.bytesize} bytes>"
      end

      private

      CHARSET = /^content-type:[^\n]*?;\s*charset\s*=\s*"?([^\s";]+)/i
      # Names that Ruby gives to encodings which depend on this process.
      OF_THE_PROCESS = %w[locale external filesystem internal].freeze
      private_constant :CHARSET, :OF_THE_PROCESS

      # Reads the lines themselves: most responses are never asked for their headers.
      def charset
        name = @header_lines.b[CHARSET, 1]
        Encoding.find(name) if name && !OF_THE_PROCESS.include?(name.downcase)
      rescue ArgumentError
        nil
      end

      def unreadable(message, name)
        ContentError.new("#{url.sub(/\?.*/m, "")}: #{message}", phase: :content, name: name, timings: timings)
      end
    end
  end
end
