# frozen_string_literal: true

require "json"
require_relative "client"

module Oroshi
  # A backend of `oroshi push`: publishes to its clients, and looks after their sessions.
  #
  #   hub = Oroshi::Push.new("http://127.0.0.1:9181", token: ENV["PUSH_TOKEN"])
  #   receipt = hub.publish("hello", group: "news", wait: :written, deadline: 2)
  #   receipt.written   # => 1042
  #   receipt.whole?    # => true: every node of the hub has answered
  #
  # Any number of threads and fibers may use one object; it holds an Oroshi::Client. Push::Callbacks answers the hub's
  # questions. docs/push.md explains both.
  class Push
    autoload :Callbacks, "oroshi/push/callbacks"

    # What became of a message: counts of sessions. docs/push.md, "Receipts", says what each promises.
    Receipt = Struct.new(:id, :matched, :written, :queued, :dropped, :closed, :unknown, :refused, :nodes, keyword_init: true) do
      # Whether every known node of the hub has answered, and this one is connected to them.
      def whole?
        nodes["known"] == nodes["answered"] && nodes.fetch("connected", true)
      end

      # Whether the message was written to every session that matched, on every node.
      def written_to_all?
        whole? && written == matched && unknown.empty?
      end
    end

    # The hub has refused a request. Failures of the way there are an Oroshi::Client::Error.
    class Error < StandardError
      # The hub's name for it: "unauthorized", "overloaded", "too-large"...
      attr_reader :name
      # The status: 400 or more.
      attr_reader :status
      # Seconds after which to try again, if the hub says so; or nil.
      attr_reader :retry_after

      def initialize(message, name:, status:, retry_after: nil)
        super(message)
        @name = name
        @status = status
        @retry_after = retry_after
      end
    end

    WAITS = %w[queued attempted written].freeze
    private_constant :WAITS

    # url: where the hub's `admin` (or `everything`) listener is; it may be a unix socket, "unix:/run/push.sock".
    # token: the hub's token, if it has one. options: for Oroshi::Client.
    def initialize(url, token: nil, **options)
      headers = { **options.delete(:headers).to_h, **(token ? { "Authorization" => "Bearer #{token}" } : {}) }
      @client = Client.new(timeout: 310, **options, base_url: url, headers: headers)
    end

    # Publishes a message. Returns a Receipt.
    #
    # message: a String is sent as text, or as bytes if its encoding is binary; anything else as JSON.
    # group, groups, session, sessions, user, users, all: whom it reaches; at least one of them. except: keys of sessions
    # that do not get it. key: for groups that keep the latest message of each key. ttl: how long it may wait for a
    # session, in seconds. wait: :queued, :attempted or :written, what the receipt waits for. deadline: the longest wait,
    # in seconds. idempotency_key: the hub publishes once what is sent again with this key within five minutes.
    #
    # Raises Push::Error, and Client::Error. After a Client::Error with `retry_safe?` the message was not published;
    # otherwise nobody knows.
    def publish(message, group: nil, groups: nil, session: nil, sessions: nil, user: nil, users: nil, all: false, except: nil,
                key: nil, ttl: nil, wait: nil, deadline: nil, idempotency_key: nil)
      groups = names("groups", groups, group)
      sessions = names("sessions", sessions, session)
      users = names("users", users, user)
      if groups.empty? && sessions.empty? && users.empty? && !all
        raise ArgumentError, "publish: expected whom to reach: group:, groups:, session:, sessions:, user:, users: or all: true"
      end

      envelope = { **content(message), groups: groups, sessions: sessions, users: users, all: all ? true : nil,
                   except: names("except", except), key: key&.to_s, ttl: seconds("ttl", ttl, 86_400), wait: waiting(wait),
                   deadline: seconds("deadline", deadline, 300) }
      envelope.reject! { |name, value| name != :json && (value.nil? || value == []) }
      headers = idempotency_key ? { "Idempotency-Key" => idempotency_key.to_s } : {}
      answer = ask("POST", "/publish", json: envelope, headers: headers)
      Receipt.new(**Receipt.members.to_h { |name| [name, answer[name.to_s]] })
    end

    # Describes a session as a Hash: transport, groups, queue, age. Nil if there is none with this key.
    def session(key)
      found { ask("GET", "/sessions/#{escaped(key)}") }
    end

    # Ends a session after its waiting messages are written. code and reason: of its close frame. Returns whether there
    # was one.
    def disconnect(key, code: nil, reason: nil)
      !found { ask("DELETE", "/sessions/#{escaped(key)}", query: { code: code, reason: reason }.compact) || true }.nil?
    end

    # Ends all sessions of a user. Returns how many.
    def disconnect_user(user, code: nil, reason: nil)
      ask("DELETE", "/users/#{escaped(user)}", query: { code: code, reason: reason }.compact)["sessions"]
    end

    # Adds a session to a group; a client with channels gets it as a subscription. Returns whether there is such a
    # session.
    def join(key, group)
      !found { ask("PUT", "/sessions/#{escaped(key)}/groups/#{escaped(group)}") || true }.nil?
    end

    # Removes a session from a group. Returns whether there is such a session.
    def leave(key, group)
      !found { ask("DELETE", "/sessions/#{escaped(key)}/groups/#{escaped(group)}") || true }.nil?
    end

    # Counts a group's sessions, as a Hash.
    def group(name)
      ask("GET", "/groups/#{escaped(name)}")
    end

    # The hub's numbers, as a Hash.
    def status
      ask("GET", "/status")
    end

    # Releases the connections.
    def close
      @client.close
    end

    def inspect
      "#<#{self.class}>"
    end

    private

    def ask(method, path, **options)
      response = @client.request(method, path, **options)
      return response.body.empty? ? nil : response.json if response.success?

      raise refusal(response)
    end

    def refusal(response)
      said = begin
        response.json
      rescue Client::ContentError
        {}
      end
      said = {} unless said.is_a?(Hash)
      Error.new(said["message"] || "#{response.url.sub(/\?.*/m, "")}: status #{response.status}", name: said["error"],
                status: response.status, retry_after: response["retry-after"]&.then { |seconds| Float(seconds, exception: false) })
    end

    # Nil if the hub says that there is no such session.
    def found
      yield
    rescue Error => e
      raise unless e.name == "unknown-session"
    end

    def content(message)
      return { json: message } unless message.is_a?(String)
      return { base64: [message].pack("m0") } if message.encoding == Encoding::BINARY

      { text: message.encode(Encoding::UTF_8) }
    end

    def names(name, several, one = nil)
      all = [*several, *one]
      return all.map(&:to_s) if all.all? { |each| each.is_a?(String) || each.is_a?(Symbol) }

      raise ArgumentError, "#{name}: expected Strings, got #{all.map(&:class).uniq.join(", ")}"
    end

    def waiting(wait)
      return if wait.nil?
      return wait.to_s if WAITS.include?(wait.to_s)

      raise ArgumentError, "wait: expected :queued, :attempted or :written, got #{wait.inspect}"
    end

    def seconds(name, time, most)
      return if time.nil?
      return "#{(time * 1000).round}ms" if time.is_a?(Numeric) && time.real? && time.between?(0, most)

      raise ArgumentError, "#{name}: expected seconds, from 0 to #{most}, got #{time.inspect}"
    end

    # For a path, where a space is %20.
    def escaped(name)
      name.to_s.b.gsub(/[^A-Za-z0-9\-._~]/n) { |byte| format("%%%02X", byte.ord) }
    end
  end
end
