# frozen_string_literal: true

module Oroshi
  class Client
    # Why a request failed. Each phase has a subclass, and below it one for its time limit:
    #
    #   rescue Oroshi::Client::ConnectError    # refused, unreachable, or not in time
    #   rescue Oroshi::Client::ConnectTimeout  # not in time
    #   rescue Oroshi::Client::Timeout         # any time limit
    #   rescue Oroshi::Client::Error           # anything; ArgumentError is apart, as the caller's mistake
    #
    # The message shows the method, and the URL without its query; never header fields.
    class Error < StandardError
      # The phase of the failure: :request, :queue, :dns, :connect, :tls, :write, :first_byte, :between_bytes, :total,
      # :redirect, :content or :status.
      attr_reader :phase
      # A stable name, for counts: "connect-refused", "first-byte-timeout", "read-eof"...
      attr_reader :name
      # Timings: the duration of each phase so far.
      attr_reader :timings

      def initialize(message = nil, phase: nil, name: nil, timeout: false, retry_safe: false, timings: Timings.new.freeze)
        super(message)
        @phase = phase
        @name = name
        @timeout = timeout
        @retry_safe = retry_safe
        @timings = timings
      end

      # Seconds from the call to the failure; 0.0 if nothing was tried.
      def elapsed
        timings.total || 0.0
      end

      # Whether a time limit was exceeded.
      def timeout?
        @timeout
      end

      # Whether a retry cannot carry out the request twice: none of it was sent, or it is idempotent and nothing was
      # answered. (The client has already retried once if a connection broke. An unreadable URL was not sent either.)
      # Whether a retry is wise is the caller's decision.
      def retry_safe?
        @retry_safe
      end

      # True; a Response's is false.
      def failed?
        true
      end

      # Returns itself; a Response with a status of 400 or more returns its StatusError.
      def checked
        self
      end

      # False; a Response's is true for status 200 to 299.
      def success?
        false
      end
    end

    # Included in every error about a time limit.
    module Timeout
    end

    # The request cannot be sent: its URL, method, or a header field is invalid; or there is no thread to send it (names
    # "thread", "eventfd"), or none in this process, because the call began before a fork (name "fork").
    class RequestError < Error; end

    # No connection was free: too many requests waited, or for too long.
    class QueueError < Error; end
    # Waited longer than queue_timeout; with the name "descriptors" for a descriptor.
    class QueueTimeout < QueueError; include Timeout; end

    # The host's name could not be looked up.
    class DnsError < Error; end
    # Not within dns_timeout.
    class DnsTimeout < DnsError; include Timeout; end

    # No connection.
    class ConnectError < Error; end
    # Not within connect_timeout.
    class ConnectTimeout < ConnectError; include Timeout; end

    # The TLS handshake failed, or could not be set up.
    class TlsError < Error; end
    # Not within tls_timeout.
    class TlsTimeout < TlsError; include Timeout; end

    # The connection broke while the request was sent.
    class WriteError < Error; end
    # The server took nothing for write_timeout.
    class WriteTimeout < WriteError; include Timeout; end

    # No usable response head came.
    class FirstByteError < Error; end
    # Not within first_byte_timeout.
    class FirstByteTimeout < FirstByteError; include Timeout; end

    # The body was incomplete, is larger than max_body_bytes, or cannot be decoded.
    class BetweenBytesError < Error; end
    # Nothing came for between_bytes_timeout.
    class BetweenBytesTimeout < BetweenBytesError; include Timeout; end

    # The whole request took longer than timeout.
    class TotalTimeout < Error; include Timeout; end

    # A redirect was not followed: too many of them, or a target that this client does not use.
    class RedirectError < Error; end

    # The body is not text or JSON as asked: Response#text, Response#json.
    class ContentError < Error; end

    # The status is 400 or more, where raise_for_status asks for this error: Response#raise_for_status, and the option.
    class StatusError < Error
      # The Response, with its body.
      attr_reader :response

      def initialize(response)
        @response = response
        reason = Error.send(:presentable, response.reason.scrub("?"))
        super("#{response.url.sub(/\?.*/m, "")}: status #{response.status} #{reason}".rstrip,
              phase: :status, name: "status-#{response.status}", timings: response.timings)
      end

      # The response's status.
      def status
        response.status
      end
    end

    class Error
      CLASSES = {
        request: [RequestError], queue: [QueueError, QueueTimeout], dns: [DnsError, DnsTimeout],
        connect: [ConnectError, ConnectTimeout], tls: [TlsError, TlsTimeout], write: [WriteError, WriteTimeout],
        first_byte: [FirstByteError, FirstByteTimeout], between_bytes: [BetweenBytesError, BetweenBytesTimeout],
        total: [TotalTimeout, TotalTimeout], redirect: [RedirectError], content: [ContentError]
      }.freeze
      private_constant :CLASSES

      # Returns the error of a native failure.
      def self.of(phase, name, message, timeout, retry_safe, timings)
        message = presentable(message)
        CLASSES.fetch(phase)[timeout ? 1 : 0]
               .new(message, phase: phase, name: name.freeze, timeout: timeout, retry_safe: retry_safe,
                             timings: Timings.new(*timings).freeze)
      end

      # Removes queries, and escapes bytes that would break a line of a log. The caller's text is between backticks.
      def self.presentable(message)
        message.gsub(/`[^`]*`/) { |quoted| quoted.sub(/\?.*(?=`)/m, "?...") }
               .sub(/(did you mean [^?]*)\?.* \?/m, "\\1?... ?")
               .gsub(/[[:cntrl:]]/) { |character| character.dump[1..-2] }
      end
      private_class_method :presentable
    end
  end
end
