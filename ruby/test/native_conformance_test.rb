# frozen_string_literal: true

require_relative "native_support"
require_relative "conformance_table"

# The conformance table of crates/http1, through a real worker. Refused requests get the table's status and a closed
# connection, and no bytes behind them count as a request; accepted ones arrive as the table says.
class NativeConformanceTest < Minitest::Test
  include NativeSupport

  def test_the_table_is_read_whole
    cases = ConformanceTable.cases
    assert_operator cases.size, :>, 80
    assert_empty(cases.reject { |found| found.name && found.verdict })
    assert_equal "a\r\n\xffbb".b, ConformanceTable.unescape('a\r\n\xff\{2:b}')
  end

  # With the usual limits one worker serves all cases; cases with their own limits get another.
  def test_every_request_is_taken_or_refused_as_the_table_says
    usual = nil
    ConformanceTable.cases.each do |found|
      server = if found.limits.empty? then usual ||= mirror({})
               else
                 limits = found.limits.dup
                 most = limits.delete(:body_bytes)
                 mirror({ limits: limits, max_body: most }.compact)
               end
      check(server, found)
      server.clean_up unless server.equal?(usual)
      @servers.delete(server) unless server.equal?(usual)
    end
  end

  def mirror(settings)
    serve(settings, lint: false) do |env|
      [200, {}, ["#{env["REQUEST_METHOD"]} #{env["REQUEST_URI"]} ".b + env["rack.input"].read]]
    end
  end

  def check(server, found)
    client = server.connect.send(found.bytes).half_close
    found.messages.each do |message|
      answer = client.answer(message.method)
      if message.method == "CONNECT" # no Rack application is a proxy
        assert_equal 405, answer.status, found.name
        break
      end
      # A client that waits for 100 gets it.
      answer = client.answer(message.method) if answer.status == 100
      assert_equal 200, answer.status, found.name
      said = message.method == "HEAD" ? "" : "#{message.method} #{message.target} ".b + message.body
      assert_equal said, answer.body, found.name
      assert_equal "close", answer["connection"], found.name if message.persistence == "close"
    end
    unless found.verdict == :accept
      answer = client.answer
      answer = client.answer if answer.status == 100
      assert_equal [found.verdict, "close"], [answer.status, answer["connection"]], found.name
    end
    assert client.closed?, "#{found.name}: the connection is still open"
  rescue EOFError => e
    flunk "#{found.name}: #{e.message}"
  ensure
    client&.close
  end
end
