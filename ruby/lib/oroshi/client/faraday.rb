# frozen_string_literal: true

require "faraday"
require_relative "../client"

module Oroshi
  class Client
    # Faraday's adapter `:oroshi`.
    #
    #   require "oroshi/client/faraday"
    #   api = Faraday.new("https://api.example/") { |builder| builder.adapter :oroshi, max_connections: 100 }
    #
    # The adapter's options are those of Oroshi::Client. Faraday's own go before them: `proxy`; of `request` `timeout`
    # (the whole request), `open_timeout` (connecting, and the TLS handshake), `read_timeout` (the response's head, and
    # pauses in its body) and `write_timeout`; of `ssl` `verify` and `ca_file`. It follows no redirects, as Faraday has a
    # middleware for them. `on_data` receives the body as it comes.
    class FaradayAdapter < ::Faraday::Adapter
      TIMEOUTS = { timeout: %i[timeout], open_timeout: %i[connect_timeout tls_timeout], write_timeout: %i[write_timeout],
                   read_timeout: %i[first_byte_timeout between_bytes_timeout] }.freeze
      # Options of `ssl` that say what this client says with certificate and private_key, or not at all.
      UNUSED = %i[ca_path cert_store client_cert client_key certificate private_key verify_mode version min_version max_version].freeze
      FRAMING = %w[content-length connection keep-alive te transfer-encoding].freeze
      # Clients that are kept: of a connection whose proxy changes, those of the latest proxies.
      CLIENTS = 8
      private_constant :TIMEOUTS, :UNUSED, :FRAMING, :CLIENTS

      def initialize(app = nil, options = {}, &block)
        super
        @clients = {}
        @lock = Mutex.new
      end

      def call(env)
        super
        response = receive(env)
        save_response(env, response.status, response.body, fields(response), response.reason)
        @app.call(env)
      rescue Client::TlsError => e
        raise ::Faraday::SSLError, e
      rescue Client::ConnectError, Client::DnsError, Client::QueueError => e
        raise ::Faraday::ConnectionFailed, e
      rescue Client::Timeout => e
        raise ::Faraday::TimeoutError, e
      rescue Client::WriteError, Client::FirstByteError, Client::BetweenBytesError => e
        raise ::Faraday::ConnectionFailed, e
      rescue Client::Error => e
        raise ::Faraday::ClientError, e
      end

      # Ends the clients' threads once their requests are done.
      def close
        @lock.synchronize { @clients.values.tap { @clients.clear } }.each(&:close)
        super
      end

      private

      # Returns the client with Faraday's options. A connection has one or two of them in its life.
      def client_for(env)
        own = client_options(env)
        @lock.synchronize do
          @clients[own] ||= Client.new(**own).tap { @clients.shift.last.close if @clients.size >= CLIENTS }
        end
      end

      def client_options(env)
        options = @connection_options.to_h.transform_keys(&:to_sym)
        options = { **options, **tls_options(env[:ssl]) } if env.url.scheme == "https"
        proxy = env.request && env.request[:proxy]
        return { proxy: false, **options } unless proxy

        url = proxy[:uri].dup
        url.user, url.password = [proxy[:user], proxy[:password]].map { |part| part && URI.encode_www_form_component(part).gsub("+", "%20") }
        { **options, proxy: url.to_s }
      end

      def tls_options(ssl)
        ssl = ssl.to_h.compact
        unused = UNUSED & ssl.keys
        unless unused.empty?
          raise ArgumentError, "ssl: #{unused.join(", ")}: the adapter :oroshi does not use this; give it certificate: and " \
                               "private_key: with the paths of PEM files"
        end
        { **(ssl.key?(:verify) ? { verify: ssl[:verify] } : {}), **(ssl[:ca_file] ? { ca_files: ssl[:ca_file] } : {}) }
      end

      def request_options(env)
        given = env.request.to_h
        times = TIMEOUTS.flat_map { |name, ours| given[name] ? ours.map { |our| [our, given[name]] } : [] }.to_h
        # The client itself writes how a message is sent. What a status means is for Faraday's middleware.
        headers = env.request_headers.reject { |name, _| FRAMING.include?(name.downcase) }
        { max_redirects: 0, raise_for_status: false, headers: headers, body: env.body, **times }.compact
      end

      def receive(env)
        client, options = client_for(env), request_options(env)
        on_data = env.request && env.request[:on_data]
        return client.request(env.method, env.url.to_s, **options) unless on_data

        received = 0
        response = client.request(env.method, env.url.to_s, **options) do |piece, head|
          env.status = head.status
          env.response_headers = ::Faraday::Utils::Headers.new(fields(head))
          give(on_data, piece, received += piece.bytesize, env)
        end
        give(on_data, +"", 0, env) if received.zero?
        response
      end

      # Faraday 2.5 and newer has a third argument.
      def give(on_data, *arguments)
        on_data.call(*arguments.first(on_data.lambda? && on_data.arity == 2 ? 2 : 3))
      end

      # The body is unpacked.
      def fields(response)
        fields = response.headers.to_h
        response.coding ? fields.except("content-encoding", "content-length") : fields
      end

      ::Faraday::Adapter.register_middleware(oroshi: self)
    end
  end
end
