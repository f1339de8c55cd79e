# frozen_string_literal: true

require "rack"
require "securerandom"

module Oroshi
  class Push
    # A Rack application that answers the callbacks of `oroshi push`.
    #
    #   # config.ru
    #   run(Oroshi::Push::Callbacks.new(secret: ENV["PUSH_SECRET"]) do |on|
    #     on.connect do |client|
    #       user = User.find_by_token(client.params["token"]) or next client.refuse(401, "who are you?")
    #       client.accept(user: user.name, groups: ["news"], rights: { "chat:*" => %w[subscribe publish] })
    #     end
    #     on.receive { |session, message| Message.create!(session: session, text: message) }
    #     on.close { |session| Visit.end(session) }
    #   end)
    #
    # The hub's configuration names its paths, here at the root: `connect = "http://127.0.0.1:3000/connect"`, and
    # likewise `establish`, `receive` and `close`. Behind a `map "/push"` they are `/push/connect` and so on.
    #
    # secret: the hub must send `Authorization: Bearer SECRET`, which the `headers` of its `[callbacks]` set. Without it
    # anybody who reaches the application may call it: let only the hub reach it, for example at a unix socket.
    class Callbacks
      # The hub may ask twice if an answer was lost: retries of one message have the same #id.
      Message = Struct.new(:text, :id, :binary) do
        def to_s
          text
        end
        alias_method :to_str, :to_s

        def binary?
          binary
        end

        # Parses the message as JSON.
        def json(**options)
          JSON.parse(text, **options)
        end
      end

      # A client that wants to connect.
      class Connecting
        # The Rack::Request of the hub, with the client's query, header fields and cookies.
        attr_reader :request

        def initialize(request, header)
          @request = request
          @header = header
        end

        # The client's query.
        def params
          request.GET
        end

        def cookies
          request.cookies
        end

        # The subprotocols that the client offers.
        def subprotocols
          request.get_header("HTTP_SEC_WEBSOCKET_PROTOCOL").to_s.split(",").map(&:strip)
        end

        # Opens the session. Returns the answer to the hub.
        #
        # session: its key; a random one by default. user: what others see in presence and beside messages. groups: it is
        # in these from the start. rights: a Hash of channels, or prefixes and `*`, with an Array of "subscribe",
        # "publish", "history", "presence". subprotocol: one that the client offers. message: its first message; bytes if
        # its encoding is binary.
        def accept(session: SecureRandom.hex(16), user: nil, groups: [], rights: {}, subprotocol: nil, message: nil)
          fields = { @header => session, "x-oroshi-user" => user, "x-oroshi-groups" => list(groups),
                     "x-oroshi-rights" => list(rights.map { |channel, these| [channel, *these].join(" ") }),
                     "sec-websocket-protocol" => subprotocol }.compact.transform_values(&:to_s)
          wrong = fields.find { |_, value| value.match?(/[\x00-\x08\x0a-\x1f\x7f]/) }
          raise ArgumentError, "#{wrong.first}: expected no control characters, got #{wrong.last.inspect}" if wrong

          binary = message && message.encoding == Encoding::BINARY
          type = binary ? "application/octet-stream" : "text/plain; charset=utf-8"
          [200, { **fields, "content-type" => type }, [message.to_s]]
        end

        # Refuses the client, which gets this status and this text. Returns the answer to the hub.
        def refuse(status = 403, text = "")
          [status, { "content-type" => "text/plain; charset=utf-8" }, [text]]
        end

        private

        def list(parts)
          parts = parts.map(&:to_s)
          wrong = parts.find { |part| part.include?(",") }
          raise ArgumentError, "expected names without a comma, which separates them, got #{wrong.inspect}" if wrong

          parts.empty? ? nil : parts.join(", ")
        end
      end

      # session_header: as the hub's configuration has it (`session-header`).
      def initialize(secret: nil, session_header: "X-Kuiperbelt-Session")
        raise ArgumentError, "secret: expected a text, got an empty one" if secret && secret.empty?

        @secret = secret
        @header = session_header.downcase
        @blocks = {}
        yield self
        @blocks.freeze
      end

      # The block receives a Connecting, and returns `accept` or `refuse` of it.
      def connect(&block)
        @blocks["/connect"] = block
      end

      # The block receives the key of a session that is open. If it returns false, the session ends.
      def establish(&block)
        @blocks["/establish"] = block
      end

      # The block receives the key of a session and a Message of its client.
      def receive(&block)
        @blocks["/receive"] = block
      end

      # The block receives the key of a session that has ended.
      def close(&block)
        @blocks["/close"] = block
      end

      def call(env)
        return said(401, "the callbacks' secret is missing or wrong") unless permitted?(env["HTTP_AUTHORIZATION"].to_s)

        path = env["PATH_INFO"]
        block = @blocks[path] or return said(404, "no block answers #{path[0, 100].inspect}: expected one of #{@blocks.keys.join(", ")}")
        return block.call(Connecting.new(Rack::Request.new(env), @header)) if path == "/connect"
        return said(405, "expected POST") unless env["REQUEST_METHOD"] == "POST"

        session = env["HTTP_#{@header.upcase.tr("-", "_")}"] or return said(400, "the field #{@header} is missing")
        happened(path, block, session, env)
      end

      private

      def happened(path, block, session, env)
        return said(block.call(session) == false ? 403 : 200, "") if path == "/establish"

        path == "/receive" ? block.call(session, message(env)) : block.call(session)
        said(200, "")
      end

      def message(env)
        binary = env["CONTENT_TYPE"].to_s.start_with?("application/octet-stream")
        text = env["rack.input"]&.read.to_s
        text.force_encoding(Encoding::UTF_8) unless binary
        Message.new(text, env["HTTP_X_OROSHI_MESSAGE"], binary)
      end

      def permitted?(given)
        @secret.nil? || Rack::Utils.secure_compare("Bearer #{@secret}", given)
      end

      def said(status, text)
        [status, { "content-type" => "text/plain; charset=utf-8" }, [text]]
      end
    end
  end
end
