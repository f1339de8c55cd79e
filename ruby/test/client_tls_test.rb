# frozen_string_literal: true

require_relative "client_support"

# Oroshi::Client over TLS: whom it trusts, and what it shows.
class ClientTlsTest < ClientSupport::Test
  # Hands out connections whose handshake the server makes when it serves them.
  class Listener
    def initialize(context)
      @context = context
      @tcp = TCPServer.new("127.0.0.1", 0)
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
