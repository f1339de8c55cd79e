# frozen_string_literal: true

module Oroshi
  class Client
    # Every option once: name, allowed values, default, and whether a request may have its own. Checks the user's
    # values, reports mistakes, and converts values for the native side.
    module Options
      # kind: how it is checked (KINDS). where: :client, :request or :both. default: in words.
      Option = Struct.new(:name, :kind, :where, :default, :doc) do
        def of_client?
          where != :request
        end

        def of_request?
          where != :client
        end
      end

      # The native side's maximum count.
      MOST = 2**62

      # Kinds of values: a test, and the words for it.
      KINDS = {
        count: [->(value) { value.is_a?(Integer) && value.between?(1, MOST) }, "a whole number from 1 to 2**62"],
        count_or_none: [->(value) { value.is_a?(Integer) && value.between?(0, MOST) }, "a whole number from 0 to 2**62"],
        seconds: [->(value) { value.nil? || (value.is_a?(Numeric) && value.real? && value >= 0) },
                  "seconds, a number from 0, or nil for no limit"],
        flag: [->(value) { [true, false].include?(value) }, "true or false"],
        path: [->(value) { value.nil? || path?(value) }, "the path of a file"],
        paths: [->(value) { several(value).all? { |path| path?(path) } }, "the path of a file, or an Array of them"],
        host: [->(value) { value.nil? || text?(value) }, "a host's name"],
        text: [->(value) { value.nil? || value.is_a?(String) }, "a String"],
        names: [->(value) { value.nil? || text?(value) }, "a String with commas between its parts"],
        url: [->(value) { value.nil? || url?(value) }, "a URL with a scheme and without a query: a String or a URI"],
        wait: [->(value) { value.is_a?(Numeric) && value.real? && value >= 0 }, "seconds, a number from 0"],
        proxy: [->(value) { value.nil? || value == false || ((value.is_a?(String) ? value != "" : uri?(value)) && text?(value.to_s)) },
                "the URL of a proxy (a String or a URI), false for none, or nil for what the environment says"],
        pairs: [->(value) { value.nil? || pairs?(value) },
                "a Hash, or an Array of pairs, of names and plain values (a String, a number, a Time, or what else has a text of its own) or Arrays of these"],
        form: [->(value) { value.nil? || pairs?(value) { |one| Multipart.file?(one) } },
               "a Hash, or an Array of pairs, of names and plain values (a String, a number, a Time, or what else has a text of its own), files " \
               "(something with `read`), or Arrays of these"],
        query: [->(value) { value.nil? || (pairs?(value) && fields(value).flatten.all? { |part| text?(part) }) },
                "a Hash, or an Array of pairs, of names and plain values (a String, a number, a Time, or what else has a text of its own) or Arrays of " \
                "these, all of them text"],
        login: [->(value) { value.nil? || login?(value) },
                "an Array of user name and password, both Strings, the name without a colon"],
        body: [->(value) { value.nil? || value.is_a?(String) || value.respond_to?(:read) },
               "a String, or something with `read`"],
        any: [->(_value) { true }, "anything"]
      }.freeze

      ALL = [
        [:max_connections, :count, :client, "10000",
         "connections that may be open, idle ones included; lowered to what the limit of descriptors leaves room for"],
        [:max_connections_per_host, :count, :client, "10000",
         "the same for one origin: scheme, host and port, or unix socket"],
        [:max_waiting, :count_or_none, :client, "100000",
         "requests that may wait for a connection; one more fails"],
        [:max_idle_per_host, :count_or_none, :client, "10000",
         "idle connections of one origin"],
        [:idle_timeout, :seconds, :client, "30",
         "how long an idle connection is kept; less if the server says so"],
        [:max_age, :seconds, :client, "600",
         "how old a connection may get and still be used again"],
        [:keep_alive, :flag, :client, "true",
         "whether connections are used more than once"],
        [:http2, :flag, :client, "true",
         "whether a server may choose HTTP/2, over TLS"],
        [:http2_prior_knowledge, :flag, :client, "false",
         "whether every connection speaks HTTP/2, also without TLS"],
        [:dns_ttl, :seconds, :client, "30",
         "how long the addresses of a name are kept"],
        [:dns_negative_ttl, :seconds, :client, "5",
         "how long it is remembered that a name could not be looked up"],
        [:attempt_delay, :seconds, :client, "0.25",
         "how long one of several addresses gets before the next is tried beside it"],
        [:max_body_bytes, :count, :client, "67108864",
         "bytes of one body, unpacked; a larger one fails"],
        [:max_head_bytes, :count, :client, "65536",
         "bytes of a response's head"],
        [:max_headers, :count, :client, "100",
         "header fields of a response"],
        [:verify, :flag, :client, "true",
         "whether a server must show a valid certificate; with false anyone can answer in its place"],
        [:system_roots, :flag, :client, "true",
         "whether the machine's certificate authorities are trusted, for servers and proxies"],
        [:ca_files, :paths, :client, "none",
         "PEM files with further authorities"],
        [:certificate, :path, :client, "none",
         "a PEM file with the client's own certificate chain"],
        [:private_key, :path, :client, "none",
         "a PEM file with its private key"],
        [:server_name, :host, :client, "the URL's host",
         "the name that the server's certificate must carry"],
        [:timeout, :seconds, :both, "none",
         "everything, redirects and a retry included"],
        [:queue_timeout, :seconds, :both, "30",
         "waiting for a connection"],
        [:dns_timeout, :seconds, :both, "10",
         "looking the host's name up"],
        [:connect_timeout, :seconds, :both, "10",
         "connecting, to whichever address"],
        [:tls_timeout, :seconds, :both, "10",
         "the TLS handshake"],
        [:write_timeout, :seconds, :both, "30",
         "the longest time in which the server takes nothing"],
        [:first_byte_timeout, :seconds, :both, "60",
         "from the last byte sent to the end of the response's head"],
        [:between_bytes_timeout, :seconds, :both, "30",
         "the longest pause within the body"],
        [:base_url, :url, :client, "none",
         "where URLs without a scheme begin: `https://api.example/v1/` and `users?page=2`"],
        [:cookies, :flag, :client, "false",
         "whether the client keeps cookies: responses set them, and requests carry them, redirects too"],
        [:proxy, :proxy, :client, "the environment's",
         "a proxy's URL (`http://`, `https://`, `socks5://`, `socks5h://`), or `false` for none"],
        [:proxy_verify, :flag, :client, "true",
         "whether an `https://` proxy must show a valid certificate; with false anyone can answer in its place"],
        [:proxy_ca_files, :paths, :client, "none",
         "PEM files with further authorities for `https://` proxies; `ca_files` is for servers"],
        [:no_proxy, :names, :client, "none",
         "servers to connect to without the proxy, with commas between them, as in the variable `no_proxy`"],
        [:retry_wait, :wait, :client, "0.1",
         "the wait before the first retry; each further wait is twice as long, less a random part"],
        [:retry_max_wait, :seconds, :client, "30",
         "the longest wait before a retry; a longer `Retry-After` is not waited for"],
        [:retries, :count_or_none, :both, "0",
         "how often a request is sent again after a failure or a status 429, 502, 503 or 504, where that is safe"],
        [:raise_for_status, :flag, :both, "false",
         "whether a status of 400 or more raises StatusError; in fetch_all it is the result"],
        [:max_redirects, :count_or_none, :both, "10",
         "redirects that are followed; with 0 their responses are given as they are"],
        [:decode, :flag, :both, "true",
         "whether compressed bodies (gzip, br, zstd) are asked for and unpacked"],
        [:headers, :pairs, :both, "none",
         "header fields; an Array as a value gives several; the request's go before the client's"],
        [:query, :query, :request, "none",
         "added to the URL's query, percent-encoded"],
        [:body, :body, :request, "none",
         "the body: a String, or something that is read to its end first"],
        [:json, :any, :request, "none",
         "a value that is sent as JSON"],
        [:form, :form, :request, "none",
         "pairs that are sent as a form; with a file among them as `multipart/form-data`"],
        [:basic_auth, :login, :request, "none",
         "user name and password, `[\"me\", \"secret\"]`"],
        [:bearer_auth, :text, :request, "none",
         "a token"],
        [:idempotent, :flag, :request, "by the method",
         "whether carrying the request out twice does no harm"]
      ].map { |row| Option.new(*row) }.freeze

      # Other clients' names for our options. Similar spelling alone would suggest the wrong ones.
      ELSEWHERE = {
        read_timeout: "first_byte_timeout limits the wait for the response's head, between_bytes_timeout a pause within the body",
        open_timeout: "connect_timeout limits connecting, tls_timeout the handshake",
        ssl_timeout: "tls_timeout limits the handshake",
        user_agent: 'give it as a header: headers: { "User-Agent" => "..." }',
        params: "query adds to the URL's query, form sends a form",
        multipart: "form sends multipart/form-data where a value is a file",
        follow_redirects: "max_redirects says how many are followed, 0 for none",
        verify_ssl: "verify says whether a server must show a valid certificate",
        verify_mode: "verify says whether a server must show a valid certificate",
        pool_size: "max_connections limits all connections, max_connections_per_host those of one origin"
      }.freeze
      private_constant :ELSEWHERE

      OF_CLIENT = ALL.select(&:of_client?).to_h { |option| [option.name, option] }.freeze
      OF_REQUEST = ALL.select(&:of_request?).to_h { |option| [option.name, option] }.freeze
      # Options of a request that the native side reads; the others become headers and a body here.
      NATIVE = (OF_REQUEST.keys - %i[headers body json form basic_auth bearer_auth raise_for_status]).freeze
      # Options of a client that only Ruby reads.
      RUBY = %i[base_url raise_for_status].freeze
      private_constant :NATIVE, :RUBY

      SCHEME = /\A[a-z][a-z0-9+.-]*:/i
      private_constant :SCHEME

      class << self
        # A client's options for Native::Settings.
        def of_client(options)
          options.each { |name, value| check(name, value, OF_CLIENT.fetch(name) { unknown(name, OF_CLIENT) }.kind) }
          if options[:certificate].nil? != options[:private_key].nil?
            raise ArgumentError, "certificate and private_key go together: name both files, or neither"
          end
          options.slice(:ca_files, :proxy_ca_files, :certificate, :private_key).each do |name, value|
            several(value).each { |path| check_file(name, path) }
          end

          options = options.except(*RUBY).reject { |name, value| value.nil? && OF_CLIENT[name].kind != :seconds }
          options.to_h { |name, value| [name, plain(OF_CLIENT[name].kind, value)] }
        end

        # Returns a request for Native::Call#submit: [method, url, headers, body, options]. base: where a URL without a
        # scheme begins, or nil.
        def order(method, url, options, base = nil)
          method = method.to_s.upcase(:ascii)
          url = url(url, base)
          return [method, url, nil, nil, nil] if options.empty?

          options.each { |name, value| check(name, value, OF_REQUEST.fetch(name) { unknown(name, OF_REQUEST) }.kind) }
          headers = fields(options[:headers])
          authorize(headers, options)
          body = body(headers, options)
          [method, url, headers, body, native(options)]
        end

        # Returns a URL as a String, relative to base if it has no scheme.
        def url(url, base)
          url = url.to_s
          base && !url.b.match?(SCHEME) ? joined(base, url) : url
        end

        def check(name, value, kind = :count)
          test, words = KINDS.fetch(kind)
          wrong(name, words, value) unless test.call(value)
        end

        # Returns how long a call may wait for a descriptor, in seconds: as long as its request may wait for a
        # connection. nil is for ever.
        def patience(of_client, of_request)
          limits = { queue_timeout: 30 }.merge(of_client, of_request).slice(:queue_timeout, :timeout)
          limits.each { |name, value| check(name, value, :seconds) }
          limits.values.compact.min
        end

        private

        # A reference that cannot be joined, or that leads to another server, is left as it is: then it is no URL, which
        # the request's failure says.
        def joined(base, reference)
          reference.b.match?(%r{\A[/\\]{2}}) ? reference : Native.join(base, reference)
        rescue ArgumentError
          reference
        end

        def wrong(name, words, value)
          raise ArgumentError, "#{name}: expected #{words}, got #{shown(name, value)}"
        end

        # Catches a file's content given instead of its path; the system's message would repeat it.
        def check_file(name, path)
          File.open(path) { |file| file.read(1) }
        rescue SystemCallError => e
          reason = SystemCallError.new(nil, e.errno).message
          raise ArgumentError, "#{name}: expected the path of a file that can be read, got #{shown(name, path)}: #{reason}",
                cause: nil
        end

        # Returns a checked value as the native side reads it.
        def plain(kind, value)
          case kind
          when :seconds, :wait then value&.to_f
          when :path then File.path(value)
          when :paths then several(value).map { |path| File.path(path) }
          when :host then value.encode(Encoding::UTF_8)
          when :names then value.encode(Encoding::UTF_8)
          when :proxy then value ? value.to_s.encode(Encoding::UTF_8) : "none"
          when :pairs then fields(value)
          when :query then fields(value).map { |pair| pair.map { |part| part.encode(Encoding::UTF_8) } }
          else value
          end
        end

        def unknown(name, known)
          raise ArgumentError, "#{name.inspect}: options are named by Symbols" unless name.is_a?(Symbol)

          near = DidYouMean::SpellChecker.new(dictionary: known.keys).correct(name).first if defined?(DidYouMean)
          elsewhere = known.equal?(OF_CLIENT) ? OF_REQUEST : OF_CLIENT
          hint = if ELSEWHERE.key?(name) then ELSEWHERE[name]
                 elsif elsewhere.key?(name) then "it is one of a #{known.equal?(OF_CLIENT) ? "request" : "client"}"
                 elsif near then "did you mean #{near}?"
                 else "docs/client.md has the list"
                 end
          raise ArgumentError, "#{name}: no such option; #{hint}"
        end

        SECRET = %i[base_url basic_auth bearer_auth headers query form json body private_key proxy].freeze
        private_constant :SECRET

        # Shows values for messages. Values that may be secrets show only their class; so does PEM content given instead
        # of a path.
        def shown(name, value)
          secret = SECRET.include?(name) || several(value).any? { |one| one.to_s.b.include?("-----BEGIN") }
          secret ? "one of #{value.class}" : value.inspect
        end

        # Returns pairs of Strings; an Array as a value gives several, nil none.
        def fields(pairs)
          return [] unless pairs

          pairs.flat_map { |name, value| several(value).compact.map { |one| [name.to_s, one.to_s] } }
        end

        def authorize(headers, options)
          user, password = options[:basic_auth]
          token = options[:bearer_auth]
          ways = options.slice(:basic_auth, :bearer_auth).compact.keys.map(&:to_s)
          return if ways.empty?

          ways << "the header Authorization" if field?(headers, "authorization")
          raise ArgumentError, "#{ways.join(" and ")}: a request has one of them" if ways.size > 1

          credentials = token ? "Bearer ".b + token.b : "Basic #{["#{user.b}:#{password.b}"].pack("m0")}"
          headers << ["Authorization", credentials]
        end

        # Compares bytes, because a name may have any encoding.
        def field?(headers, name)
          headers.any? { |given, _| given.b.casecmp?(name) }
        end

        def body(headers, options)
          given = options.slice(:body, :json, :form).compact
          raise ArgumentError, "#{given.keys.join(" and ")}: a request has one body" if given.size > 1

          kind, value = given.first
          case kind
          when :json
            require "json"
            typed(headers, "application/json") { as_json(value) }
          when :form then form(headers, value)
          else value.respond_to?(:read) ? read(value) : value
          end
        end

        def form(headers, value)
          parts = value.flat_map { |name, one| several(one).compact.map { |each| [name.to_s, each] } }
          if parts.any? { |_, one| Multipart.file?(one) }
            # Only this code knows the boundary, so the user's own Content-Type could not be right.
            raise ArgumentError, "form: a file is sent as multipart/form-data, which sets Content-Type itself" if field?(headers, "content-type")

            boundary, body = Multipart.of(parts)
            headers << ["Content-Type", "multipart/form-data; boundary=#{boundary}"]
            return body
          end
          require "uri"
          typed(headers, "application/x-www-form-urlencoded") { URI.encode_www_form(fields(value)) }
        end

        def as_json(value)
          JSON.generate(value)
        rescue JSON::JSONError, EncodingError => e
          raise ArgumentError, "json: expected what JSON can say, got #{shown(:json, value)}: #{e.message.scrub("?")[0, 100]}"
        end

        def read(body)
          text = body.read
          return text if text.nil? || text.is_a?(String)

          wrong(:body, "`read` to give a String", text)
        end

        def typed(headers, type)
          headers << ["Content-Type", type] unless field?(headers, "content-type")
          yield
        end

        def native(options)
          own = options.slice(*NATIVE).reject { |name, value| value.nil? && OF_REQUEST[name].kind != :seconds }
          own = own.to_h { |name, value| [name, plain(OF_REQUEST[name].kind, value)] }
          own unless own.empty?
        end

        # The tests of KINDS that are longer than a line.

        def several(value)
          value.is_a?(Array) ? value : [value].compact
        end

        def path?(value)
          !File.path(value).empty?
        rescue TypeError, ArgumentError, EncodingError # what is none, a zero byte in it, no text in ASCII's family
          false
        end

        def url?(value)
          return false unless value.is_a?(String) || uri?(value)

          text?(value.to_s) && value.to_s.encode(Encoding::UTF_8).match?(/#{SCHEME}[^?#]*\z/i)
        end

        def uri?(value)
          defined?(::URI::Generic) && value.is_a?(::URI::Generic)
        end

        def text?(value)
          value.is_a?(String) && value.encode(Encoding::UTF_8).valid_encoding?
        rescue EncodingError
          false
        end

        # The block, if given, says which other values are allowed.
        def pairs?(value)
          return false unless value.is_a?(Hash) || (value.is_a?(Array) && value.all? { |pair| pair?(pair) })

          value.all? do |name, one|
            single?(name) && several(one).all? { |each| each.nil? || single?(each) || (block_given? && yield(each)) }
          end
        end

        def pair?(value)
          value.is_a?(Array) && value.size == 2
        end

        # Whether a value has a text of its own. Other objects' `to_s` is an address such as `#<Object:0x...>`, or, of a
        # file, not its content.
        def single?(value)
          case value
          when String, Symbol, Numeric, Time, true, false then true
          when nil, Hash, Array then false
          else !value.respond_to?(:read) && !value.to_s.start_with?("#<")
          end
        end

        def login?(value)
          pair?(value) && value.all?(String) && !value.first.b.include?(":") # RFC 7617, section 2
        end
      end
    end
  end
end
