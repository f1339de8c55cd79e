# frozen_string_literal: true

module Oroshi
  class Client
    # Durations of a request's phases, in seconds; nil for a phase that did not happen. After a redirect or a retry the
    # phases are the last attempt's; total covers all attempts.
    Timings = Struct.new(:queue, :dns, :connect, :tls, :write, :first_byte, :body, :total)

    # The response to a request. All of it is frozen except the body, which is the caller's.
    class Response
      # 100 to 999. A status of 400 or more is an answer like any other.
      attr_reader :status
      # The reason phrase, perhaps empty.
      attr_reader :reason
      # "2.0", "1.1" or "1.0".
      attr_reader :version
      # A String, decoded. Its encoding is the charset of Content-Type if Ruby knows it, else binary.
      attr_reader :body
      # The URL that answered, after redirects.
      attr_reader :url
      # Number of redirects followed.
      attr_reader :redirects
      # The body's content coding, "gzip", "br" or "zstd", or nil.
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

      # The Headers after a chunked body; usually empty.
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

      # Returns the response. Raises StatusError if the status is 400 or more.
      def raise_for_status
        raise checked if status >= 400

        self
      end

      # Returns the StatusError of a status of 400 or more, else the response.
      def checked
        status >= 400 ? StatusError.new(self) : self
      end

      # False; an Error's is true.
      def failed?
        false
      end

      # Returns the body in UTF-8, the default charset. Raises ContentError if it is not valid.
      def text
        text = body.encoding == Encoding::BINARY ? body.dup.force_encoding(Encoding::UTF_8) : body.encode(Encoding::UTF_8)
        return text if text.valid_encoding?

        raise unreadable("the body is not text in UTF-8", "not-utf-8")
      rescue EncodingError => e
        raise unreadable("the body is not text in #{body.encoding}: #{e.message}", "not-utf-8")
      end

      # Parses the body as JSON. options: for JSON.parse. Raises ContentError if it is not JSON.
      def json(**options)
        require "json"
        JSON.parse(text, **options)
      rescue JSON::ParserError => e
        # Ruby's message repeats the text.
        raise unreadable("the body is not JSON: #{e.message.scrub("?")[0, 100]}", "json")
      end

      def inspect
        "#<#{self.class} #{status} #{url.sub(/\?.*/m, "?...")} #{body.bytesize} bytes>"
      end

      private

      CHARSET = /^content-type:[^\n]*?;\s*charset\s*=\s*"?([^\s";]+)/i
      # Encoding names that depend on this process.
      OF_THE_PROCESS = %w[locale external filesystem internal].freeze
      private_constant :CHARSET, :OF_THE_PROCESS

      # Reads the raw lines: most responses are never asked for their headers.
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
