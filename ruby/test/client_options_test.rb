# frozen_string_literal: true

require_relative "client_support"

# The options of Oroshi::Client: what is said about wrong ones, and that docs/client.md has each.
class ClientOptionsTest < ClientSupport::Test
  OPTIONS = Oroshi::Client.const_get(:Options) # private to others

  def test_unknown_options
    {
      { max_conections: 3 } => "max_conections: no such option; did you mean max_connections?",
      { xyz: 3 } => "xyz: no such option; docs/client.md has the list",
      { json: 3 } => "json: no such option; it is one of a request"
    }.each do |options, message|
      assert_equal message, assert_raises(ArgumentError) { client(**options) }.message
    end
    error = assert_raises(ArgumentError) { client.get("http://a/", max_connections: 3) }
    assert_equal "max_connections: no such option; it is one of a client", error.message
  end

  def test_wrong_values
    {
      { max_connections: 0 } => "max_connections: expected a whole number from 1, got 0",
      { max_waiting: 1.5 } => "max_waiting: expected a whole number from 0, got 1.5",
      { timeout: "3" } => 'timeout: expected seconds, a number from 0, or nil for no limit, got "3"',
      { timeout: -1 } => "timeout: expected seconds, a number from 0, or nil for no limit, got -1",
      { keep_alive: nil } => "keep_alive: expected true or false, got nil",
      { headers: "secret" } => "headers: expected a Hash, or an Array of pairs, got one of String",
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
      { basic_auth: "me:secret" } => "basic_auth: expected an Array of user name and password, got one of String",
      { basic_auth: %w[a b], bearer_auth: "c" } => "basic_auth and bearer_auth: a request has one of them",
      { headers: { "authorization" => "a" }, bearer_auth: "c" } => "bearer_auth and the header Authorization: a request has one of them"
    }.each do |options, message|
      error = assert_raises(ArgumentError, options.inspect) { client.get("http://127.0.0.1:1/", **options) }
      assert_equal message, error.message
    end
  end

  # Each is read by the native side, too.
  def test_every_option_is_taken
    values = { count: 1000, count_or_none: 0, seconds: 1.5, flag: true, path: "x.pem", paths: ["x.pem"], text: "x",
               pairs: { "A" => "b" } }
    of_client = OPTIONS::OF_CLIENT.transform_values { |option| values.fetch(option.kind) }
    client = client(**of_client, max_redirects: 1)
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
end
