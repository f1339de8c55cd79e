# frozen_string_literal: true

require_relative "client_support"

# Oroshi::Client: each failure, its class, and its message. Tests of time limits use some milliseconds.
class ClientErrorsTest < ClientSupport::Test
  C = Oroshi::Client
  SHORT = 0.02

  # Opens a server's gate at the end of the test; requests without an answer wait for it.
  def silent
    server { |_request| sleep }
  end

  # Returns the block's error, and checks the properties common to all errors.
  def assert_failure(klass, name = nil, phase: nil, retry_safe: nil, &block)
    error = within("an error", &block)
    flunk "no error, but #{error.inspect}"
  rescue C::Error => e
    assert_instance_of klass, e
    assert_equal name, e.name if name
    assert_equal phase, e.phase if phase
    assert_equal retry_safe, e.retry_safe? unless retry_safe.nil?
    assert_equal e.is_a?(C::Timeout), e.timeout?
    assert_predicate e, :failed?
    refute_predicate e, :success?
    assert_equal e.timings.total, e.elapsed
    assert_predicate e.timings, :frozen?
    refute_empty e.message
    e
  end

  def test_requests_that_cannot_be_sent
    # They were not sent, so a retry is safe, if useless.
    {
      "example.org" => /did you mean http:\/\/example.org\/ \?/,
      "http://a/b c" => /space/,
      "ftp://a/" => /ftp/,
      "http://me:secret@a/" => /./,
      "http://bücher.example/" => /./,
      "http://\xFF/" => /./,
      "" => /./
    }.each do |url, message|
      error = assert_failure(C::RequestError, "request", phase: :request, retry_safe: true) { client.post(url) }
      assert_match message, error.message
      refute_includes error.message, "secret"
    end
    assert_failure(C::RequestError) { client.request("G T", "http://a/") }
    assert_failure(C::RequestError) { client.request("CONNECT", "http://a/") }
    assert_failure(C::RequestError) { client.get("http://a/", headers: { "A" => "b\r\nC: d" }) }
    assert_failure(C::RequestError) { client.get("http://a/", headers: { "A b" => "c" }) }
    assert_failure(C::RequestError) { client.get("http://a/", headers: { "Content-Length" => 3 }) }
  end

  def test_queue
    server = silent
    busy = client(max_connections: 1)
    waiting = Thread.new { busy.get(server.url) }
    waiting.report_on_exception = false
    server.requests.pop
    error = assert_failure(C::QueueTimeout, "queue-timeout", phase: :queue, retry_safe: true) do
      busy.get(server.url, queue_timeout: SHORT)
    end
    assert_operator error.elapsed, :>=, SHORT
    assert_kind_of C::QueueError, error
  ensure
    waiting&.kill&.join
  end

  def test_queue_full
    server = silent
    busy = client(max_connections: 1, max_waiting: 0)
    waiting = Thread.new { busy.get(server.url) }
    server.requests.pop
    assert_failure(C::QueueError, "queue-full", phase: :queue, retry_safe: true) { busy.get(server.url) }
  ensure
    waiting&.kill&.join
  end

  def test_dns
    # Nobody owns ".invalid" (RFC 2606).
    assert_failure(C::DnsError, "dns", phase: :dns, retry_safe: true) do
      client(dns_timeout: nil).get("http://oroshi.invalid/")
    end
  end

  def test_connect
    error = assert_failure(C::ConnectError, "connect-refused", phase: :connect, retry_safe: true) do
      client.post("http://127.0.0.1:#{closed_port}/", body: "x")
    end
    assert_match(/refused/, error.message)
    error = assert_failure(C::ConnectError, phase: :connect) { client.get("unix:#{@dir}/none:/") }
    assert_includes error.message, "#{@dir}/none"
  end

  # A unix socket with a full backlog.
  def test_connect_timeout
    listener = Socket.unix_server_socket(socket_path)
    listener.listen(0)
    held = []
    loop do
      socket = Socket.new(:UNIX, :STREAM)
      held << socket
      break if socket.connect_nonblock(Addrinfo.unix(socket_path), exception: false) == :wait_writable
    rescue Errno::EAGAIN
      break
    end
    assert_failure(C::ConnectTimeout, "connect-timeout", phase: :connect, retry_safe: true) do
      client.get("unix:#{socket_path}:/", connect_timeout: SHORT)
    end
  ensure
    [listener, *held].compact.each(&:close)
  end

  def test_tls
    mute = tcp_listener
    rude = tcp_listener
    closing = Thread.new { loop { rude.accept.close } }
    assert_failure(C::TlsError, phase: :tls) { client(verify: false).get("https://127.0.0.1:#{rude.addr[1]}/") }
    assert_failure(C::TlsTimeout, "tls-timeout", phase: :tls) do
      client(verify: false).get("https://127.0.0.1:#{mute.addr[1]}/", tls_timeout: SHORT)
    end
  ensure
    closing&.kill&.join
    [mute, rude].compact.each(&:close)
  end

  # More bytes than the sockets' buffers hold, to a server that does not read.
  def test_write_timeout
    deaf = tcp_listener
    assert_failure(C::WriteTimeout, "write-timeout", phase: :write, retry_safe: false) do
      client.post("http://127.0.0.1:#{deaf.addr[1]}/", body: "x" * 30_000_000, write_timeout: SHORT)
    end
  ensure
    deaf&.close
  end

  def test_first_byte
    impatient = client(first_byte_timeout: SHORT)
    url = silent.url
    assert_failure(C::FirstByteTimeout, "first-byte-timeout", phase: :first_byte, retry_safe: true) { impatient.get(url) }
    assert_failure(C::FirstByteTimeout, phase: :first_byte, retry_safe: false) { impatient.post(url) }
    assert_failure(C::FirstByteTimeout, retry_safe: true) { impatient.post(url, idempotent: true) }
    assert_failure(C::FirstByteTimeout) { client.get(url, first_byte_timeout: SHORT) }
  end

  def test_heads_that_do_not_come
    closing = server { |request| request.socket.close }
    assert_failure(C::FirstByteError, "read-eof", phase: :first_byte) { client.get(closing.url) }
    other = server { |request| request.socket.write("SMTP 220\r\n\r\n") }
    assert_failure(C::FirstByteError, "parse", phase: :first_byte) { client.get(other.url) }
    large = server { |request| request.answer(X: "x" * 2000) }
    assert_failure(C::FirstByteError, "parse", phase: :first_byte) { client(max_head_bytes: 1000).get(large.url) }
  end

  def test_between_bytes
    stalling = server do |request|
      request.socket.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
      sleep
    end
    assert_failure(C::BetweenBytesTimeout, "between-bytes-timeout", phase: :between_bytes, retry_safe: false) do
      client.get(stalling.url, between_bytes_timeout: SHORT)
    end
    cut = server do |request|
      request.socket.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
      request.socket.close
    end
    assert_failure(C::BetweenBytesError, "read-eof", phase: :between_bytes) { client.get(cut.url) }
    assert_failure(C::BetweenBytesError, "coding", phase: :between_bytes) do
      client.get(server { |request| request.answer("no gzip", Content_Encoding: "gzip") }.url)
    end
  end

  def test_a_body_that_is_too_large
    url = server { |request| request.answer("x" * 1001) }.url
    assert_failure(C::BetweenBytesError, "body-too-large") { client(max_body_bytes: 1000).get(url) }
    assert_equal 1001, client(max_body_bytes: 1001).get(url).body.bytesize
    # An announced size is refused at once: the client used to wait for the body, up to any time limit.
    announced = server { |request| request.socket.write("HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n") }.url
    assert_failure(C::BetweenBytesError, "body-too-large") { client(max_body_bytes: 1000).get(announced) }
    assert_equal "", client(max_body_bytes: 1000).head(announced).body
  end

  def test_total
    error = assert_failure(C::TotalTimeout, "total-timeout", phase: :total) { client(timeout: SHORT).get(silent.url) }
    assert_operator error.elapsed, :>=, SHORT
    assert_failure(C::TotalTimeout, phase: :total) { client.get(silent.url, timeout: SHORT) }
    assert_equal 200, client(timeout: 0).get(server.url, timeout: nil).status
  end

  def test_redirect
    circle = server { |request| request.answer(status: 302, Location: "/?x") }
    assert_failure(C::RedirectError, "too-many-redirects", phase: :redirect) { client.get(circle.url, max_redirects: 3) }
    assert_equal 4, circle.requests.size
    away = server { |request| request.answer(status: 301, Location: "unix:/x") }
    assert_failure(C::RedirectError, "location") { client.get(away.url) }
  end

  # Requests whose thread had ended: the error named neither the request nor its time, and called every retry unsafe.
  def test_a_request_that_a_defect_has_ended
    call = C.const_get(:Call).allocate # private to others
    error = call.send(:result, :lost, "GET http://a/: ", true, 0.25)
    assert_failure(C::Error, "ended", retry_safe: true) { raise error }
    assert_equal 0.25, error.elapsed
    assert_match(%r{\AGET http://a/: .*the next one is carried out\z}, error.message)
  end

  # The documentation has every class below Error, and no other.
  def test_the_documentation_names_each_class
    docs = File.read(File.join(Support::ROOT, "../docs/client.md"), encoding: "UTF-8")
    documented = docs.scan(/^\| `:\w+` \| `(\w+)`(?:, `(\w+)`)? \|/).flatten.compact
    classes = C.constants.map { |name| C.const_get(name) }.select { |value| value.is_a?(Class) && value < C::Error }
    assert_equal classes.map { |klass| klass.name[/\w+\z/] }.sort, documented.sort
  end
end
