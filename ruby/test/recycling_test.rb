# frozen_string_literal: true

require_relative "support"

# Workers that have served their number of requests are replaced.
class RecyclingTest < Support::Test
  def test_after_max_request_per_child
    server = serve(MaxRequestPerChild: 3)
    first = server.worker
    3.times { assert_equal first.to_s, get("/pid").body }
    server.wait_for(/worker 1 \(pid \d+\): started, to replace worker 0 \(pid #{first}\): 3 requests served/)
    server.wait_for(/worker 1 .*: ready/)
    server.wait_for(/worker 0 \(pid #{first}\): stopping: 3 requests served/)
    server.wait_for(/worker 0 \(pid #{first}\): ended$/)
    assert_equal server.worker(1).to_s, get("/pid").body
  end

  # While the successor starts, the old worker serves.
  def test_the_old_one_serves_until_its_successor_is_ready
    blocker = door("blocker")
    server = serve(MaxRequestPerChild: 1, config: <<~CONFIG)
      starts = 0
      before_fork { starts += 1 }
      after_fork { require "socket"; UNIXSocket.open("#{blocker.path}", &:read) if starts == 2 }
    CONFIG
    first = server.worker.to_s
    assert_equal first, get("/pid").body
    starting = within("the successor") { blocker.accept }
    assert_equal first, get("/pid").body
    starting.close
    server.wait_for(/worker 0 .*: ended$/)
    refute_equal first, get("/pid").body
  ensure
    blocker&.close
  end

  def test_never_two_at_once
    server = serve(MaxWorkers: 3, MaxRequestPerChild: 2)
    get("/") until server.said.scan(/: ended$/).size >= 3
    server.stop
    alive = 0
    # Counted as the manager saw it: from `started` to `ended`.
    before_the_stop = server.said[/\A.*?received TERM/m]
    events = before_the_stop.scan(/worker \d \(pid \d+\): (started|ended)/).flatten
    assert_equal 4, events.map { |event| alive += event == "started" ? 1 : -1 }.max
  end

  def test_zero_is_never
    server = serve(MaxRequestPerChild: 0)
    first = server.worker.to_s
    1100.times { assert_equal 200, get("/").status }
    assert_equal first, get("/pid").body
  end

  # MinRequestPerChild to MaxRequestPerChild: each worker has a random limit, so that they do not all end together.
  def test_jitter
    server = serve(MinRequestPerChild: 1, MaxRequestPerChild: 1000)
    limits = Array.new(4) do |n|
      get("/") until server.said.scan(/stopping: \d+ requests served/).size > n
      server.wait_for(/: ended$/, count: n + 1)
      server.said.scan(/stopping: (\d+) requests/).last.first.to_i
    end
    assert_operator limits.uniq.size, :>, 1, limits.inspect # the same four times: once in 10^9
  end
end
