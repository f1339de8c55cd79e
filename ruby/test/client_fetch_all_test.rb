# frozen_string_literal: true

require_relative "client_support"
require "uri"

# Oroshi::Client#fetch_all: every request has one result, in every case and order.
class ClientFetchAllTest < ClientSupport::Test
  C = Oroshi::Client

  def test_all_results_in_the_order_of_the_requests
    server = server()
    urls = Array.new(50) { |n| server.url("/#{n}") }
    assert_equal urls.map { |url| URI(url).path }, client.fetch_all(urls).map(&:body)
    assert_empty client.fetch_all([])
  end

  # The first is answered only after the last has been received.
  def test_results_come_as_they_are_there
    seen = Queue.new
    server = server do |request|
      seen.pop if request.target == "/first"
      request.answer(request.target)
    end
    came = []
    count = within("all results") do
      client.fetch_all([server.url("/first"), server.url("/second")]) do |result, url|
        came << [result.body, url]
        seen << true
      end
    end
    assert_equal 2, count
    assert_equal [["/second", server.url("/second")], ["/first", server.url("/first")]], came
  end

  def test_failures_are_results_among_the_others
    server = server { |request| request.target == "/cut" ? request.socket.close : request.answer(request.target) }
    kinds = [server.url("/good"), server.url("/cut"), "http://127.0.0.1:#{closed_port}/", "nonsense"]
    urls = Array.new(100) { |n| kinds[n % kinds.size] }
    results = Hash.new { |all, kind| all[kind] = [] }
    assert_equal 100, client.fetch_all(urls) { |result, url| results[url] << result }
    assert_equal [25] * 4, results.values_at(*kinds).map(&:size)
    classes = results.transform_values { |all| all.map(&:class).uniq }
    assert_equal [[C::Response], [C::FirstByteError], [C::ConnectError], [C::RequestError]], classes.values_at(*kinds)
    assert_equal [[false], [true], [true], [true]], results.values_at(*kinds).map { |all| all.map(&:failed?).uniq }
    assert_equal client.fetch_all(urls).map(&:class), urls.map { |url| classes[url].first }
  end

  def test_requests_with_options
    server = server { |request| request.answer([*request.to_a[1, 2], request.headers["x"], request.body].join(" ")) }
    requests = [URI(server.url), { url: server.url, method: :post, json: [1], headers: { "X" => "own" } },
                { url: server.url, query: { a: 1 } }]
    bodies = client.fetch_all(requests, headers: { "X" => "all" }).map(&:body)
    assert_equal ["GET / all ", "POST / own [1]", "GET /?a=1 all "], bodies
  end

  def test_mistakes_are_raised
    assert_raises(ArgumentError) { client.fetch_all([{ method: "GET" }]) }
    assert_raises(ArgumentError) { client.fetch_all([server.url], tmieout: 1) }
    assert_raises(ArgumentError) { client.fetch_all([server.url], concurrency: 0) }
  end

  # No more connections than `concurrency`, however many requests.
  def test_concurrency
    lock = Mutex.new
    now = most = 0
    server = server do |request|
      lock.synchronize { most = [most, now += 1].max }
      Thread.pass
      lock.synchronize { now -= 1 }
      request.answer
    end
    client = client()
    assert_equal 60, client.fetch_all([server.url] * 60, concurrency: 3) { nil }
    assert_operator most, :<=, 3
    assert_operator client.counts[:connects], :<=, 3
    most = 0
    assert_equal 60, client(max_connections: 2).fetch_all([server.url] * 60) { nil }
    assert_operator most, :<=, 2
  end

  # More requests than may wait at the thread, and fewer connections than requests.
  def test_more_requests_than_room
    server = server()
    targets = Array.new(1000) { |n| "/#{n}" }
    results = client(max_connections: 7).fetch_all(targets.lazy.map { |target| server.url(target) })
    assert_equal targets, results.map(&:body)
  end

  def test_an_endless_source_is_read_as_far_as_there_is_room
    server = server()
    taken = 0
    endless = Enumerator.produce { server.url("/#{taken += 1}") }
    seen = 0
    client.fetch_all(endless, concurrency: 5) { break if (seen += 1) == 20 }
    assert_operator taken, :<=, 25
  end

  def test_a_block_that_breaks_cancels_the_rest
    server = server { |request| request.target == "/" ? request.answer : sleep }
    client = client()
    result = within { client.fetch_all([server.url("/slow")] * 9 + [server.url]) { |got| break got.status } }
    assert_equal 200, result
    assert_cancelled(client)
  end

  def test_a_block_that_raises_cancels_the_rest
    server = server { |request| request.target == "/" ? request.answer : sleep }
    client = client()
    urls = [server.url("/slow"), server.url]
    error = assert_raises(RuntimeError) { within { client.fetch_all(urls) { raise "enough" } } }
    assert_equal "enough", error.message
    assert_cancelled(client)
  end

  def test_a_source_that_raises_cancels_the_rest
    server = server { sleep }
    client = client()
    source = Enumerator.new do |all|
      all << server.url
      server.requests.pop
      raise IOError, "the list ends"
    end
    assert_raises(IOError) { within { client.fetch_all(source) { flunk } } }
    assert_cancelled(client)
  end

  def test_lambdas_take_what_they_name
    server = server()
    results = []
    client.fetch_all([server.url], &->(result) { results << result.status })
    client.fetch_all([server.url], &->(result, url) { results << [result.status, url] })
    client.fetch_all([server.url], &results.method(:push))
    assert_equal [200, [200, server.url], server.url], results.values_at(0, 1, 3)
    assert_instance_of C::Response, results[2]
  end

  def test_requests_within_the_block
    server = server()
    client = client()
    bodies = []
    client.fetch_all([server.url("/a"), server.url("/b")]) do |result|
      bodies << client.get(server.url("#{result.body}/more")).body
    end
    assert_equal %w[/a/more /b/more], bodies.sort
  end

  # Beyond the limit of descriptors requests wait; they do not fail.
  def test_fewer_descriptors_than_requests
    server = server()
    program = start(*Support::RUBY, "-roroshi/client", "-e", <<~RUBY)
      Process.setrlimit(:NOFILE, 120, 120)
      client = Oroshi::Client.new(keep_alive: false)
      puts client.fetch_all([#{server.url.inspect}] * 300).map { |result| result.failed? ? result.message : result.status }.tally
      puts client.counts[:max_connections] < 120
      puts client.inspect
    RUBY
    program.wait
    # The queue is not the limit either: `concurrency` is lowered, too.
    assert_match(/\A{200=>300}\ntrue\n#<Oroshi::Client max_connections=\d\d>\n\z/, program.said)
  end

  # Nor do threads fail, each of which needs a descriptor to wait with.
  def test_fewer_descriptors_than_threads
    server = server()
    program = start(*Support::RUBY, "-roroshi/client", "-e", <<~RUBY)
      Process.setrlimit(:NOFILE, 100, 100)
      client = Oroshi::Client.new
      puts Array.new(200) { Thread.new { client.get(#{server.url.inspect}).status rescue $!.message } }.map(&:value).tally
    RUBY
    program.wait
    assert_equal "{200=>200}\n", program.said
  end

  # Nor does the first request, which starts a thread: it raised a RuntimeError.
  def test_no_descriptor_for_the_thread
    server = server()
    program = start(*Support::RUBY, "-roroshi/client", "-e", <<~RUBY)
      Process.setrlimit(:NOFILE, 64, 64)
      url, client, taken = #{server.url.inspect}, Oroshi::Client.new, []
      take_all = lambda do
        loop { taken << File.open("/dev/null") }
      rescue Errno::EMFILE
        nil
      end
      3.times do
        take_all.call
        taken.pop.close # one is enough to wait with, but not for a thread
        begin
          client.get(url, queue_timeout: 0)
        rescue Oroshi::Client::QueueTimeout => e
          puts e.name, e.phase, e.retry_safe?, e.message
        end
        waiting = Thread.new { client.get(url).status }
        Thread.pass until waiting.status == "sleep"
        taken.each(&:close).clear
        puts waiting.value
        client.close
      end
    RUBY
    program.wait
    once = /descriptors\nqueue\ntrue\nno descriptor was free within .* s to wait with: .*\n200\n/
    assert_match(/\A(#{once}){3}\z/, program.said)
  end

  def test_a_symbol_as_block_and_a_single_request
    server = server()
    assert_equal 2, client.fetch_all([server.url] * 2, &:status)
    assert_equal [200], client.fetch_all({ url: server.url }).map(&:status)
    assert_equal [200], client.fetch_all(server.url).map(&:status)
    assert_raises(ArgumentError) { client.fetch_all(nil) }
  end

  # A real server, and the founding case's maximum number of connections.
  def test_a_thousand_at_once
    oroshi = [ENV["OROSHI"]].compact.find { |path| File.executable?(path) }
    leave_out("a thousand requests of Oroshi::Client", "OROSHI does not name the oroshi command") unless oroshi
    target = start(oroshi, "target", "--listen", "127.0.0.1:0", "--delay", "100ms")
    url = target.wait_for(%r{listening on (http://\S+)})[1]
    client = client(keep_alive: false)
    statuses = within { client.fetch_all([url] * 1000).map { |result| result.failed? ? result.message : result.status } }
    assert_equal({ 200 => 1000 }, statuses.tally)
    assert_equal [1000, 0], client.counts.values_at(:connects, :open)
  end

  private

  # The requests end when the thread gets to them, perhaps after the count.
  def assert_cancelled(client)
    wait_until("the requests' end") { client.counts[:in_flight].zero? }
    assert_equal 0, client.counts[:open] - client.counts[:idle]
  end
end
