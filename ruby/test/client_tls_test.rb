# frozen_string_literal: true

require_relative "client_support"

# Oroshi::Client over TLS: trust, and its own certificate.
class ClientTlsTest < ClientSupport::Test
  # Accepts connections whose handshake the server makes when it serves them.
  class Listener
    def initialize(context)
      @context = context
      @tcp = Common.tcp_listener
    end

    def accept
      OpenSSL::SSL::SSLSocket.new(@tcp.accept, @context).tap { |socket| socket.sync_close = true }
    end

    def addr
      @tcp.addr
    end

    def close
      @tcp.close
    end
  end

  def setup
    super
    @authority_key = OpenSSL::PKey::EC.generate("prime256v1")
    @authority = certificate("an authority", @authority_key, "basicConstraints" => "critical,CA:TRUE")
    @ca = file("ca.pem", @authority.to_pem)
  end

  def certificate(name, key, extensions)
    OpenSSL::X509::Certificate.new.tap do |made|
      made.version = 2
      made.serial = Random.rand(1 << 64)
      made.subject = OpenSSL::X509::Name.new([["CN", name]])
      made.issuer = @authority ? @authority.subject : made.subject
      made.not_before = Time.now - 3600
      made.not_after = Time.now + 3600
      made.public_key = key
      factory = OpenSSL::X509::ExtensionFactory.new
      extensions.each { |field, value| made.add_extension(factory.create_extension("#{field}=#{value}")) }
      made.sign(@authority_key, "SHA256")
    end
  end

  def tls_server(name = "IP:127.0.0.1", verify: OpenSSL::SSL::VERIFY_NONE, &block)
    key = OpenSSL::PKey::EC.generate("prime256v1")
    context = OpenSSL::SSL::SSLContext.new
    context.add_certificate(certificate("a server", key, "subjectAltName" => name), key)
    context.verify_mode = verify
    context.ca_file = @ca
    server(Listener.new(context), &block)
  end

  def url(server)
    server.url("/path").sub("http:", "https:")
  end

  def test_an_authority_of_ones_own
    server = tls_server
    [{ ca_files: @ca }, { ca_files: [@ca], system_roots: false }].each do |options|
      response = client(**options).get(url(server))
      assert_equal "/path", response.body
      assert_kind_of Float, response.timings.tls
    end
    assert_equal "/path", client(verify: false).get(url(server)).body
  end

  # A proxy that answers itself, and says what it was asked for.
  def tls_proxy
    tls_server { |request| request.answer("#{request.method} #{request.target} #{request.headers["proxy-authorization"]}") }
  end

  def test_a_proxy_behind_tls
    proxy = tls_proxy
    at = "https://me:pass@127.0.0.1:#{proxy.port}"
    said = "GET http://server.invalid/a Basic #{["me:pass"].pack("m0")}"
    [{ proxy_ca_files: @ca }, { proxy_ca_files: [@ca], system_roots: false }, { proxy_verify: false }].each do |options|
      assert_equal said, client(proxy: at, **options).get("http://server.invalid/a").body, options
    end
    other = file("other.pem", certificate("a stranger", @authority_key, "basicConstraints" => "critical,CA:TRUE").to_pem)
    before = proxy.requests.size
    [{ proxy_ca_files: other }, { ca_files: @ca, proxy_ca_files: other }, { verify: false, proxy_ca_files: other }].each do |options|
      %w[http https].each do |scheme|
        error = assert_raises(Oroshi::Client::ConnectError, options.inspect) { client(proxy: at, **options).get("#{scheme}://server.invalid/") }
        assert_equal ["proxy-tls", :connect, true], [error.name, error.phase, error.retry_safe?]
        assert_match(%r{the proxy https://127\.0\.0\.1:#{proxy.port}}, error.message)
        refute_match(/pass/, error.message)
      end
    end
    assert_equal before, proxy.requests.size
  end

  def test_the_environment_names_a_proxy_behind_tls
    proxy = tls_proxy
    ask = 'require "oroshi/client"; print Oroshi::Client.new(proxy_ca_files: ARGV[0]).get("http://server.invalid/").body'
    clean = %w[https_proxy all_proxy no_proxy ALL_PROXY NO_PROXY].to_h { |name| [name, nil] }
    said = start(*Support::RUBY, "-e", ask, @ca, env: { **clean, "http_proxy" => "https://127.0.0.1:#{proxy.port}" }).tap(&:wait).said
    assert_equal "GET http://server.invalid/ ", said
  end

  # TLS within TLS.
  def test_a_tunnel_behind_tls
    body = Random.bytes(500_000)
    server = tls_server("DNS:localhost") { |request| request.answer(request.body.reverse) }
    asked = Queue.new
    proxy = tls_server do |request|
      asked << [request.method, request.target, request.headers["proxy-authorization"]]
      carry(request.socket, server.port)
    end
    client = client(proxy: "https://me:pass@127.0.0.1:#{proxy.port}", proxy_ca_files: @ca, ca_files: @ca)
    2.times { assert_equal body.reverse, client.post("https://localhost:#{server.port}/", body: body).body }
    assert_equal ["CONNECT", "localhost:#{server.port}", "Basic #{["me:pass"].pack("m0")}"], asked.pop
    assert_empty asked, "the tunnel is kept"
    # Who is trusted as a proxy is not trusted as a server.
    wrong = client(proxy: "https://127.0.0.1:#{proxy.port}", proxy_ca_files: @ca)
    assert_equal [:tls, "tls"], assert_raises(Oroshi::Client::TlsError) { wrong.get("https://localhost:#{server.port}/") }.then { |it| [it.phase, it.name] }
  end

  def carry(client, port)
    client.write("HTTP/1.1 200 Connected\r\n\r\n")
    server = TCPSocket.new("127.0.0.1", port)
    back = Thread.new do
      IO.copy_stream(server, client)
    rescue SystemCallError, IOError, OpenSSL::SSL::SSLError
      nil # the client has gone
    end
    IO.copy_stream(client, server)
  ensure
    back&.kill
    server&.close
  end

  def test_mistakes_of_proxies_files
    error = assert_raises(ArgumentError) { client(proxy_ca_files: "/nonexistent") }
    assert_match(/\Aproxy_ca_files: .*nonexistent/, error.message)
    error = assert_raises(ArgumentError) { client(proxy_ca_files: file("none.pem", "nothing")) }
    assert_match(/\Aproxy_ca_files: expected PEM files/, error.message)
  end

  def test_strangers_are_not_trusted
    server = tls_server
    other = file("other.pem", certificate("a stranger", @authority_key, "basicConstraints" => "critical,CA:TRUE").to_pem)
    error = assert_raises(Oroshi::Client::TlsError) { client(ca_files: other, system_roots: false).get(url(server)) }
    assert_equal [:tls, "tls"], [error.phase, error.name]
  end

  def test_the_name_counts
    server = tls_server("DNS:example.org")
    assert_raises(Oroshi::Client::TlsError) { client(ca_files: @ca).get(url(server)) }
    assert_equal "/path", client(ca_files: @ca, server_name: "example.org").get(url(server)).body
  end

  # Only the first request found them.
  def test_files_and_names_that_cannot_be_used
    other = OpenSSL::PKey::EC.generate("prime256v1")
    key, empty = file("key.pem", other.to_pem), file("empty.pem", "nothing")
    {
      { ca_files: "#{@dir}/none.pem" } => %r{\Aca_files: expected the path .*, got ".*/none.pem": No such file or directory\z},
      { ca_files: [@ca, @dir] } => /\Aca_files: .*: Is a directory\z/,
      { ca_files: [@ca, empty] } => %r{\Aca_files: expected PEM files .* certificate from .*/empty.pem: },
      { certificate: "#{@dir}/none.pem", private_key: key } => %r{\Acertificate: .*/none.pem": No such file or directory\z},
      { certificate: @ca, private_key: "#{@dir}/none.pem" } => /\Aprivate_key: .*got one of String: No such file or directory\z/,
      { certificate: @ca, private_key: empty } => %r{\Acertificate, private_key: .*private key from .*/empty.pem: },
      { certificate: @ca, private_key: key } => /\Acertificate, private_key: .*cannot be used together: /,
      { server_name: "a b" } => "server_name: expected a DNS name or an IP address, got \"a b\""
    }.each do |options, message|
      error = assert_raises(ArgumentError, options.inspect) { client(**options) }
      assert_operator message, :===, error.message, error.message
    end
  end

  # A key given as text instead of a file appeared in the first request's error.
  def test_a_private_key_is_never_shown
    key = @authority_key.to_pem
    content = key.lines[1].chomp
    [
      { certificate: @ca, private_key: key },
      { certificate: @ca, private_key: "\0#{key}" },
      { certificate: @ca, private_key: [key] },
      { certificate: @ca, private_key: "#{@dir}/#{content}" },
      { private_key: key },
      { certificate: key, private_key: @ca },
      { certificate: "\0#{key}", private_key: @ca },
      { ca_files: key },
      { ca_files: ["\0#{key}"] },
      { ca_files: [@ca, key] }
    ].each do |options|
      error = assert_raises(ArgumentError) { client(**options) }
      assert_match(/got one of (String|Array)|go together/, error.message)
      refute_includes error.full_message(highlight: false), content
    end
  end

  def test_a_file_that_has_gone_since
    copy = file("copy.pem", @authority.to_pem)
    trusting = client(ca_files: copy)
    File.delete(copy)
    error = assert_raises(Oroshi::Client::TlsError) { trusting.get(url(tls_server)) }
    assert_equal [:tls, "tls-setup"], [error.phase, error.name]
  end

  def test_a_certificate_of_ones_own
    key = OpenSSL::PKey::EC.generate("prime256v1")
    shown = { certificate: file("client.pem", certificate("a client", key, {}).to_pem), private_key: file("key.pem", key.to_pem) }
    server = tls_server(verify: OpenSSL::SSL::VERIFY_PEER | OpenSSL::SSL::VERIFY_FAIL_IF_NO_PEER_CERT) do |request|
      request.answer(request.socket.peer_cert.subject.to_s)
    end
    assert_equal "/CN=a client", client(ca_files: @ca, **shown).get(url(server)).body
    assert_raises(Oroshi::Client::Error) { client(ca_files: @ca).get(url(server)) }
  end
end
