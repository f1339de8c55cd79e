# frozen_string_literal: true

require_relative "client_support"

# Oroshi::Client beside threads, fibers, interrupts, forks and the garbage collector.
class ClientWaitingTest < ClientSupport::Test
  C = Oroshi::Client

  def test_threads_share_a_client
    server = server()
    client = client()
    threads = Array.new(20) do |n|
      Thread.new { Array.new(10) { |m| client.get(server.url("/#{n}/#{m}")).body } }
    end
    bodies = threads.flat_map(&:value)
    assert_equal Array.new(20) { |n| Array.new(10) { |m| "/#{n}/#{m}" } }.flatten, bodies
    assert_equal 200, client.counts[:requests]
    assert_operator client.counts[:connects], :<=, 20
  end

  # Requests met the engine of a client that had just been closed: NoMethodError, or RuntimeError about a fork.
  def test_requests_while_others_close
    server = server()
    client = client()
    done = false
    closing = Array.new(2) { Thread.new { (client.close; client.close_idle; Thread.pass) until done } }
    threads = Array.new(8) do |n|
      Thread.new do
        100.times.flat_map { |m| [client.get(server.url("/#{n}/#{m}")).body, *client.fetch_all([server.url] * 2).map(&:body)] }
      end
    end
    bodies = within { threads.map(&:value) }
    assert_equal Array.new(8) { |n| Array.new(100) { |m| ["/#{n}/#{m}", "/", "/"] }.flatten }, bodies
  ensure
    done = true
    closing&.each(&:join)
  end

  # The answer depends on another thread of this process.
  def test_who_waits_lets_others_run
    gate = Queue.new
    server = server { |request| request.answer(gate.pop) }
    waiting = Thread.new { client.get(server.url).body }
    server.requests.pop
    gate << "let through"
    assert_equal "let through", within { waiting.value }
  end

  def test_thread_raise_cancels_the_request
    server = server { |request| sleep if request.target == "/slow" }
    client = client()
    waiting = Thread.new { client.get(server.url("/slow")) }
    waiting.report_on_exception = false
    server.requests.pop
    waiting.raise(Interrupt, "enough")
    assert_raises(Interrupt) { within { waiting.join } }
    assert_hung_up(server)
    assert_gone(client)
  end

  def test_thread_kill_cancels_all_requests
    server = server { sleep }
    client = client()
    waiting = Thread.new { client.fetch_all([server.url] * 10) { nil } }
    10.times { server.requests.pop }
    within { waiting.kill.join }
    assert_gone(client)
  end

  def test_timeout_cancels_the_request
    server = server { sleep }
    client = client()
    assert_raises(Timeout::Error) { Timeout.timeout(0.05) { client.get(server.url) } }
    assert_gone(client)
  end

  # In its own process, because Ctrl-C is for the main thread.
  def test_a_signal_ends_the_wait
    server = server { sleep }
    program = start(*Support::RUBY, "-roroshi/client", "-e", <<~RUBY)
      begin
        Oroshi::Client.new.get(#{server.url.inspect})
      rescue Interrupt
        puts "interrupted"
      end
    RUBY
    server.requests.pop
    program.signal("INT")
    assert_equal 0, within { program.wait }.exitstatus
    assert_equal "interrupted\n", program.said
  end

  # Waiting fibers let others run: the server answers only after all of them have asked.
  def test_fibers_wait_together
    both = Queue.new
    server = server do |request|
      both << true
      Thread.pass until both.size == 3
      request.answer(request.target)
    end
    client = client()
    bodies = []
    within("fibers") do
      Thread.new do
        Fiber.set_scheduler(Scheduler.new)
        Fiber.schedule { bodies << client.get(server.url("/a")).body }
        Fiber.schedule { bodies.concat(client.fetch_all([server.url("/b"), server.url("/c")]).map(&:body)) }
        Fiber.schedule { bodies << "a fiber that waits for nothing" }
      end.join
    end
    assert_equal "a fiber that waits for nothing", bodies.first
    assert_equal ["/a", "/b", "/c"], bodies.drop(1).sort
  end

  def test_a_fork_gets_connections_of_its_own
    server = server()
    client = client()
    client.get(server.url)
    used = server.connections.size
    child = in_a_child do
      first = client.get(server.url("/child")).body
      [first, client.counts[:requests], client.fetch_all([server.url] * 3).map(&:status)]
    end
    assert_equal ["/child", 1, [200] * 3], child
    assert_operator server.connections.size, :>, used
    # The parent continues with its connections.
    assert_equal "/parent", client.get(server.url("/parent")).body
    assert_equal [2, 1], client.counts.values_at(:requests, :connects)
  end

  def test_a_fork_in_the_midst_of_it
    gate = Queue.new
    server = server { |request| request.answer(request.target == "/slow" ? gate.pop : request.target) }
    client = client()
    waiting = Thread.new { client.get(server.url("/slow")).body }
    server.requests.pop
    assert_equal "/child", in_a_child { client.get(server.url("/child")).body }
    gate << "slow"
    assert_equal "slow", within { waiting.value }
  end

  # The child's copy of the parent's call cannot continue, and says so; leaving it harms nobody.
  def test_a_fork_within_fetch_all
    server = server()
    client = client()
    child = nil
    results = client.fetch_all([server.url, server.url], concurrency: 1) do
      child ||= in_a_child { client.get(server.url("/child")).body }
      next if child

      flunk
    end
    assert_equal ["/child", 2], [child, results]
    said = in_a_child do
      client.fetch_all([server.url("/1"), server.url("/2")], concurrency: 1) do
        reader, writer = IO.pipe
        unless fork
          begin
            # Ends the block, and continues the parent's call.
            next
          ensure
            reader.close
            $said = writer
          end
        end
        writer.close
        break reader.read
      end
    rescue C::Error => e
      $said.write(e.message)
      $said.close
      exit!
    end
    assert_match(/begun before a fork/, said)
  end

  # Every allocation runs the garbage collector: values that it does not see die. In its own process, because the server
  # need not suffer.
  def test_gc_stress
    server = server { |request| request.answer("b" * 100, X: "y", Content_Type: "text/plain; charset=utf-8") }
    program = start(*Support::RUBY, "-roroshi/client", "-rjson", "-e", <<~RUBY)
      url = #{server.url.inspect}
      client = Oroshi::Client.new(headers: { "A" => "b" })
      client.fetch_all([url, "nonsense"]) # everything that is loaded once
      GC.stress = true
      response = client.post(url, json: { a: 1 }, query: { b: 2 }, timeout: 100)
      all = client.fetch_all([url, "nonsense"], headers: { "C" => "d" })
      shown = [response.body, response.headers.to_h["x"], all[0].text, all[1].message]
      GC.stress = false
      puts shown
    RUBY
    assert_equal 0, within { program.wait }.exitstatus, program.said
    assert_match(/\Ab{100}\ny\nb{100}\n.*nonsense/, program.said)
  end

  # An unreachable client's thread and connections end.
  def test_collected_clients_end
    server = server()
    50.times { Oroshi::Client.new.get(server.url) }
    within("the threads' end") do
      until native_threads < 25
        Array.new(1000) { +"" }
        GC.start
      end
    end
  end

  # OROSHI_FETCHES: number of requests, 20,000 by default.
  def test_memory_stays_flat
    fetches = Integer(ENV.fetch("OROSHI_FETCHES", 20_000))
    answer = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n#{"x" * 1000}"
    server = server { |request| request.socket.write(answer) }
    # The server keeps no record of requests.
    forgetting = Thread.new { loop { server.requests.pop } }
    client = client(max_connections: 20)
    urls = ->(count) { Enumerator.new { |all| count.times { all << server.url } } }
    client.fetch_all(urls.call(fetches / 4)) { |result| raise result if result.failed? }
    before = resident_kib
    client.fetch_all(urls.call(fetches)) { |result| raise result if result.failed? }
    # A leak of 200 bytes per request would show; with 100,000 requests, of 40.
    assert_operator resident_kib - before, :<, 4_000
  ensure
    forgetting&.kill&.join
  end

  private

  def assert_gone(client)
    wait_until("the requests' end") { client.counts.values_at(:in_flight, :open) == [0, 0] }
  end

  # A cancelled request's connection has ended.
  def assert_hung_up(server)
    assert_equal "", within("the end of the connection") { server.connections.last.read }
  end

  # Returns the block's value in a child, in which the parent's threads are gone.
  def in_a_child
    reader, writer = IO.pipe.each(&:binmode) # an application that another test has loaded may have set Encoding.default_internal
    pid = fork do
      reader.close
      writer.write(Marshal.dump(yield))
      writer.close
    rescue Exception => e # rubocop:disable Lint/RescueException -- the parent raises it
      writer.write(Marshal.dump("in the child: #{e.full_message(highlight: false)}"))
    ensure
      exit! # neither minitest nor the servers' ends are the child's
    end
    writer.close
    Marshal.load(within("the child") { reader.read }) # rubocop:disable Security/MarshalLoad -- it is our own
  ensure
    reader.close
    Process.wait(pid)
  end

  def resident_kib
    GC.start
    File.read("/proc/self/status")[/^VmRSS:\s*(\d+)/, 1].to_i
  end

  # A minimal fiber scheduler: it waits for descriptors by IO.select.
  class Scheduler
    def initialize
      @readable = {}
      @writable = {}
      @ready = Queue.new
      @blocked = 0
    end

    def fiber(&block)
      Fiber.new(blocking: false, &block).tap(&:resume)
    end

    def io_wait(io, events, _timeout)
      @readable[io] = Fiber.current if events.anybits?(IO::READABLE)
      @writable[io] = Fiber.current if events.anybits?(IO::WRITABLE)
      Fiber.yield
      events
    end

    def close
      until @readable.empty? && @writable.empty? && @ready.empty? && @blocked.zero?
        @ready.pop.resume until @ready.empty?
        readable, writable = IO.select(@readable.keys, @writable.keys, [], 0.01)
        Array(readable).each { |io| @readable.delete(io).resume }
        Array(writable).each { |io| @writable.delete(io).resume }
      end
    end

    def block(_blocker, _timeout = nil)
      @blocked += 1
      Fiber.yield
    ensure
      @blocked -= 1
    end

    def unblock(_blocker, fiber)
      @ready << fiber
    end

    def kernel_sleep(_duration = nil)
      block(:sleep)
    end
  end
end
