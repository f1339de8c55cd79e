# frozen_string_literal: true

require_relative "client_support"

# The options of Oroshi::Client: messages about wrong ones; docs/client.md has each.
class ClientOptionsTest < ClientSupport::Test
  OPTIONS = Oroshi::Client.const_get(:Options) # private to others

  def test_unknown_options
    {
      { max_conections: 3 } => "max_conections: no such option; did you mean max_connections?",
      { xyz: 3 } => "xyz: no such option; docs/client.md has the list",
      { json: 3 } => "json: no such option; it is one of a request",
      { "timeout" => 3 } => '"timeout": options are named by Symbols'
    }.each do |options, message|
      assert_equal message, assert_raises(ArgumentError) { client(**options) }.message
    end
    error = assert_raises(ArgumentError) { client.get("http://a/", max_connections: 3) }
    assert_equal "max_connections: no such option; it is one of a client", error.message
  end

  def test_wrong_values
    {
      { max_connections: 0 } => "max_connections: expected a whole number from 1 to 2**62, got 0",
      { max_waiting: 1.5 } => "max_waiting: expected a whole number from 0 to 2**62, got 1.5",
      { timeout: "3" } => 'timeout: expected seconds, a number from 0, or nil for no limit, got "3"',
      { timeout: -1 } => "timeout: expected seconds, a number from 0, or nil for no limit, got -1",
      { keep_alive: nil } => "keep_alive: expected true or false, got nil",
      { headers: "secret" } => /\Aheaders: expected a Hash, or an Array of pairs, .*, got one of String\z/,
      { headers: { "Content-Length" => 1 } } => /Content-Length.*the client's to write/i,
      { headers: { "a b" => "1" } } => /`a b`/,
      { ca_files: 7 } => "ca_files: expected the path of a file, or an Array of them, got 7",
      { certificate: "a.pem" } => "certificate and private_key go together: name both files, or neither"
    }.each do |options, message|
      assert_operator message, :===, assert_raises(ArgumentError, options.inspect) { client(**options) }.message
    end
    {
      { body: 7 } => "body: expected a String, or something with `read`, got one of Integer",
      { body: "a", json: 1 } => "body and json: a request has one body",
      { basic_auth: "me:secret" } => /\Abasic_auth: expected an Array of user name and password, .*, got one of String\z/,
      { basic_auth: ["me", nil] } => /\Abasic_auth: /,
      { basic_auth: ["me:you", "secret"] } => /\Abasic_auth: .*without a colon/,
      { json: Float::NAN } => /\Ajson: expected what JSON can say, got one of Float: .*NaN/,
      { json: "\xFF" } => /\Ajson: /,
      { query: { a: { b: 1 } } } => /\Aquery: /,
      { body: Struct.new(:read).new(7) } => /\Abody: expected `read` to give a String, got one of Integer\z/,
      { max_redirects: 2**64 } => "max_redirects: expected a whole number from 0 to 2**62, got #{2**64}",
      { basic_auth: %w[a b], bearer_auth: "c" } => "basic_auth and bearer_auth: a request has one of them",
      { headers: { "authorization" => "a" }, bearer_auth: "c" } => "bearer_auth and the header Authorization: a request has one of them"
    }.each do |options, message|
      error = assert_raises(ArgumentError, options.inspect) { client.get("http://127.0.0.1:1/", **options) }
      assert_operator message, :===, error.message
    end
  end

  def test_objects_without_a_text_of_their_own_are_no_values
    file = File.open(__FILE__)
    { query: [file, Object.new, proc {}], form: [Object.new, proc {}], headers: [file, Object.new] }.each do |name, values|
      values.each do |value|
        error = assert_raises(ArgumentError, "#{name} #{value.class}") { client.get("http://127.0.0.1:1/", name => { a: value }) }
        assert_match(/\A#{name}: expected .*plain values \(a String, a number, a Time, or what else has a text of its own\)/, error.message)
      end
    end
  ensure
    file&.close
  end

  def test_names_of_other_clients_lead_to_ours
    {
      read_timeout: /first_byte_timeout .*between_bytes_timeout/, open_timeout: /connect_timeout/,
      user_agent: /headers: { "User-Agent"/, params: /query/, verify_ssl: /verify/, multipart: /form/
    }.each do |name, hint|
      error = assert_raises(ArgumentError) { client(name => 1) }
      assert_match(/\A#{name}: no such option; /, error.message)
      assert_match(hint, error.message)
    end
  end

  # Values that once raised TypeError, RangeError, EncodingError or NoMethodError.
  NASTY = [
    nil, false, true, 0, -1, 1, 2**40, 2**63, 2**64, 2**70, 0.5, Float::NAN, Float::INFINITY, 3r, 1i, Complex(1, 0),
    "", "x", "\0", "a\0b", "\xFF", "\xFF".b, "x".encode("UTF-16LE"), "\u{FC}".encode("ISO-8859-1"), "a: b\r\n", :symbol,
    [], [nil], [[]], ["a"], %w[a b], [["a"]], [%w[a b]], [["\xFF", "\xFF".b]], ["\xFF".b, "\u{FC}"], [1, 2], [[nil, 1]],
    {}, { nil => 1 }, { a: nil }, { a: [1, nil] }, { a: [[1]] }, { a: { b: 1 } }, { "\xFF".b => "\u{FC}" },
    { "x".encode("UTF-16LE") => "\u{FC}".encode("UTF-16LE") }, { a: Time.at(0) }, Object.new, Class, 1..2, Time.at(0),
    Struct.new(:read).new(7), Struct.new(:read).new(nil), Struct.new(:to_path).new(7), Struct.new(:to_path).new("a\0b")
  ].freeze

  def test_no_value_raises_anything_but_what_is_documented
    server = server()
    sending = client
    OPTIONS::ALL.product(NASTY) do |option, value|
      complaint = [option.name, value.class, value.inspect]
      if option.of_client?
        begin
          Oroshi::Client.new(option.name => value)
        rescue ArgumentError => e
          # A file that belongs to a pair, or a header, has its own message.
          assert_match(/\A#{option.name}: |\Athe default field |go together/, e.message, complaint)
        end
      end
      next unless option.of_request?

      begin
        sending.post(server.url, **{ option.name => value })
      rescue ArgumentError => e
        assert_match(/\A#{option.name}: /, e.message, complaint)
      rescue Oroshi::Client::Error
        nil # it cannot be sent, or its time is over
      end
    end
    [nil, "\xFF", "\0", "x".encode("UTF-16LE"), Object.new].each do |nasty|
      assert_raises(Oroshi::Client::RequestError, nasty.inspect) { sending.get(nasty) }
      assert_raises(Oroshi::Client::RequestError, nasty.inspect) { sending.request(nasty, server.url) }
    end
    assert_equal 200, sending.get(server.url).status, "and it works as before"
  end

  def test_bytes_and_encodings
    server = server { |request| request.answer([request.target, request.headers["authorization"], request.body].join(" ")) }
    query = client.get(server.url, query: { l: "\u{FC}".encode("ISO-8859-1"), u: "\u{FC}", at: Time.at(0).utc }).body
    assert_equal "/?l=%C3%BC&u=%C3%BC&at=1970-01-01+00%3A00%3A00+UTC  ", query
    error = assert_raises(ArgumentError) { client.get(server.url, query: { l: "\xFF".b }) }
    assert_match(/\Aquery: expected .* all of them text, got one of Hash\z/, error.message)
    form = client.post(server.url, form: { "\xFF".b => "\u{FC}".encode("ISO-8859-1") }).body
    assert_equal "/  %FF=%FC", form
    mixed = client.get(server.url, basic_auth: ["\u{FC}".encode("ISO-8859-1"), "\u{FC}"]).body
    assert_equal "/ Basic #{["\xFC:\xC3\xBC"].pack("m0")} ", mixed
  end

  # The native side reads each option, too.
  def test_every_option_is_taken
    pem = file("both.pem", certificate_and_key)
    values = { count: 1000, count_or_none: 0, seconds: 1.5, flag: true, path: pem, paths: [pem], host: "x", text: "x",
               names: "x", wait: 0.5, url: "http://x/", proxy: false, pairs: { "A" => "b" }, query: { "A" => "b" } }
    of_client = OPTIONS::OF_CLIENT.transform_values { |option| values.fetch(option.kind) }
    # The server here speaks HTTP/1.1 alone, so the client of the requests may not begin with HTTP/2.
    client(**of_client)
    client = client(**of_client, max_redirects: 1, http2_prior_knowledge: false)
    server = server()
    assert_equal 200, client.get(server.url).status
    (OPTIONS::OF_REQUEST.keys - %i[body json form basic_auth bearer_auth]).each do |name|
      assert_equal 200, client.post(server.url, name => values.fetch(OPTIONS::OF_REQUEST[name].kind)).status, name
    end
    OPTIONS::OF_CLIENT.each_value { |option| client(option.name => nil) if option.kind == :seconds }
  end

  def test_settings_reach_the_client
    assert_equal 5, client(max_connections: 5).tap { |client| client.get(server.url) }.counts[:max_connections]
    server = server()
    short = client(idle_timeout: 0)
    2.times { short.get(server.url) }
    assert_equal [2, 0], short.counts.values_at(:connects, :idle)
    old = client(max_age: 0)
    2.times { old.get(server.url) }
    assert_equal 2, old.counts[:connects]
  end

  def test_the_documentation_has_each_option
    docs = File.read(File.join(Support::ROOT, "../docs/client.md"), encoding: "UTF-8")
    table = docs[/^\| option \| of \| default \| meaning \|\n\|---\|---\|---\|---\|\n(.*?)\n\n/m, 1]
    rows = OPTIONS::ALL.map { |option| "| `#{option.name}` | #{option.where} | #{option.default} | #{option.doc} |" }
    assert_equal rows, table.to_s.lines(chomp: true)
  end

  private

  def certificate_and_key
    key = OpenSSL::PKey::EC.generate("prime256v1")
    made = OpenSSL::X509::Certificate.new
    made.version = 2
    made.subject = made.issuer = OpenSSL::X509::Name.new([%w[CN x]])
    made.not_before = Time.now - 3600
    made.not_after = Time.now + 3600
    made.public_key = key
    made.sign(key, "SHA256").to_pem + key.to_pem
  end
end
