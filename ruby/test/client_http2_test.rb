# frozen_string_literal: true

require_relative "client_support"

# Oroshi::Client speaks HTTP/2, with `oroshi target`, which counts connections.
class ClientHttp2Test < ClientSupport::Test
  # More than the requests that an HTTP/1.1 connection carries at a time.
  REQUESTS = 20

  # Writes a certificate for 127.0.0.1 that is its own authority, and its key.
  def certificate
    key = OpenSSL::PKey::EC.generate("prime256v1")
    made = OpenSSL::X509::Certificate.new
    made.version = 2
    made.serial = Random.rand(1 << 64)
    made.subject = made.issuer = OpenSSL::X509::Name.new([["CN", "127.0.0.1"]])
    made.not_before = Time.now - 3600
    made.not_after = Time.now + 3600
    made.public_key = key
    factory = OpenSSL::X509::ExtensionFactory.new
    made.add_extension(factory.create_extension("subjectAltName=IP:127.0.0.1"))
    made.sign(key, "SHA256")
    [file("cert.pem", made.to_pem), file("key.pem", key.to_pem)]
  end

  # Requests that last until all have arrived share connections only if the version allows it.
  def target(*options)
    server = start(oroshi_command("HTTP/2 of Oroshi::Client"), "target", "--listen", "127.0.0.1:0", "--delay", "300ms", *options)
    [server, server.wait_for(%r{listening on (https?://\S+)})[1]]
  end

  # Returns the versions of all responses, and the number of connections that the server has counted.
  def versions(server, url, **options)
    client = client(**options)
    client.get(url) # so that the others find a connection whose version is known
    results = within { client.fetch_all([url] * REQUESTS).to_a }
    assert_equal [false], results.map(&:failed?).uniq, results.find(&:failed?)&.message
    client.close
    server.stop("INT")
    served = server.said[/served (\d+) requests on (\d+) connections/] or flunk(server.said)
    requests, connections = served.scan(/\d+/).map(&:to_i)
    assert_equal REQUESTS + 1, requests
    [results.map(&:version).uniq, connections]
  end

  def test_over_tls_the_server_chooses_http2
    cert, key = certificate
    server, url = target("--cert", cert, "--key", key)
    assert_equal [["2.0"], 1], versions(server, url, ca_files: cert, system_roots: false)
  end

  def test_http2_is_not_offered_where_it_is_off
    cert, key = certificate
    server, url = target("--cert", cert, "--key", key)
    found, connections = versions(server, url, ca_files: cert, system_roots: false, http2: false)
    assert_equal ["1.1"], found
    assert_operator connections, :>, 1
  end

  def test_by_prior_knowledge
    server, url = target
    assert_equal [["2.0"], 1], versions(server, url, http2_prior_knowledge: true)
  end

  def test_without_tls_http11_is_the_rule
    server, url = target
    found, connections = versions(server, url)
    assert_equal ["1.1"], found
    assert_operator connections, :>, 1
  end
end
