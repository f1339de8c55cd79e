# frozen_string_literal: true

module Oroshi
  class Client
    # Why a request failed. There is a subclass for each phase, with one for its time limit below it:
    #
    #   rescue Oroshi::Client::ConnectError    # refused, unreachable, or not in time
    #   rescue Oroshi::Client::ConnectTimeout  # not in time
    #   rescue Oroshi::Client::Timeout         # any limit in time
    #   rescue Oroshi::Client::Error           # anything; ArgumentError is apart, as the caller's mistake
    #
    # The message shows the method, and the URL without its query; never header fields.
    class Error < StandardError
      # What the request was at: :request, :queue, :dns, :connect, :tls, :write, :first_byte, :between_bytes, :total,
      # :redirect or :content.
      attr_reader :phase
      # A stable name, for counts: "connect-refused", "first-byte-timeout", "read-eof"...
      attr_reader :name
      # Timings: how long each phase took until then.
      attr_reader :timings

      def initialize(message = nil, phase: nil, name: nil, timeout: false, retry_safe: false, timings: Timings.new.freeze)
        super(message)
        @phase = phase
        @name = name
        @timeout = timeout
        @retry_safe = retry_safe
        @timings = timings
      end

      # Seconds from the call until it failed; 0.0 if nothing was tried.
      def elapsed
        timings.total || 0.0
      end

      # Whether a limit in time was over.
      def timeout?
        @timeout
      end

      # Whether the same request can be sent again without being carried out twice: none of it was sent, or it is
      # idempotent and nothing was answered. (The client has sent it again once already if a connection broke. A URL that
      # cannot be read was not sent either.)
      # Whether that is wise is the caller's to know.
      def retry_safe?
        @retry_safe
      end

      # True, as opposed to a Response's.
      def failed?
        true
      end

      # False, as a Response's is unless its status is 200 to 299.
      def success?
        false
      end
    end

    # In every error that is about a limit in time.
    module Timeout
    end

    # The request cannot be sent: its URL, method, or a header field; or there is no thread to send it (names "thread",
    # "eventfd"), or none in this process, as the call was begun before a fork (name "fork").
    class RequestError < Error; end

    # No connection was free: too many requests wait, or for too long.
    class QueueError < Error; end
    # Waited longer than queue_timeout; with the name "descriptors" for one of these.
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

    # The body did not come whole, is larger than max_body_bytes, or cannot be unpacked.
    class BetweenBytesError < Error; end
    # Nothing came for between_bytes_timeout.
    class BetweenBytesTimeout < BetweenBytesError; include Timeout; end

    # The request as a whole took longer than timeout.
    class TotalTimeout < Error; include Timeout; end

    # A redirect was not followed: too many of them, or a place that this client does not go to.
    class RedirectError < Error; end

    # The body is not what was asked for: Response#text, Response#json.
    class ContentError < Error; end

    class Error
      CLASSES = {
        request: [RequestError], queue: [QueueError, QueueTimeout], dns: [DnsError, DnsTimeout],
        connect: [ConnectError, ConnectTimeout], tls: [TlsError, TlsTimeout], write: [WriteError, WriteTimeout],
        first_byte: [FirstByteError, FirstByteTimeout], between_bytes: [BetweenBytesError, BetweenBytesTimeout],
        total: [TotalTimeout, TotalTimeout], redirect: [RedirectError], content: [ContentError]
      }.freeze
      private_constant :CLASSES

      # The error of a failure, as the native side tells it.
      def self.of(phase, name, message, timeout, retry_safe, timings)
        message = presentable(message)
        CLASSES.fetch(phase)[timeout ? 1 : 0]
               .new(message, phase: phase, name: name.freeze, timeout: timeout, retry_safe: retry_safe,
                             timings: Timings.new(*timings).freeze)
      end

      # Without queries, and with what would break a line of a log escaped. What a caller gave stands between backticks.
      def self.presentable(message)
        message.gsub(/`[^`]*`/) { |quoted| quoted.sub(/\?.*(?=`)/m, "?...") }
               .sub(/(did you mean [^?]*)\?.* \?/m, "\\1?... ?")
               .gsub(/[[:cntrl:]]/) { |character| character.dump[1..-2] }
      end
      private_class_method :presentable
    end
  end
end
