# frozen_string_literal: true

require_relative "support"
require "oroshi/manager/watchdog"

# When the watchdog warns and kills workers, without processes: time is a number.
class WatchdogTest < Minitest::Test
  Watchdog = Oroshi::Manager::Watchdog

  def look(now, *overdue)
    @watchdog.look(overdue, now).map { |one| "#{one.is_a?(Watchdog::Kill) ? "kill" : "urge"} #{one.slot}" }
  end

  def setup
    @watchdog = Watchdog.new(10)
  end

  def test_urges_once_and_kills_once
    request = [3, 7, 11.0, "GET / HTTP/1.1"]
    assert_equal ["urge 3"], look(100, request)
    assert_empty look(101.9, request)
    assert_equal ["kill 3"], look(102, request)
    assert_empty look(103, request)
  end

  def test_another_request_in_the_same_slot_begins_anew
    assert_equal ["urge 3"], look(100, [3, 7, 11.0, "GET /a"])
    assert_equal ["urge 3"], look(102, [3, 8, 11.0, "GET /b"])
    assert_equal ["kill 3"], look(104, [3, 8, 13.0, "GET /b"])
  end

  def test_what_ended_in_time_is_forgotten
    look(100, [3, 7, 11.0, "GET /a"])
    assert_empty look(101)
    assert_equal ["urge 3"], look(200, [3, 7, 11.0, "GET /a"])
  end

  def test_a_successor_is_not_taken_for_its_predecessor
    look(100, [3, 1, 11.0, "GET /a"])
    @watchdog.forget(3)
    assert_equal ["urge 3"], look(111, [3, 1, 10.5, "GET /b"])
  end

  def test_looks_often_enough_for_short_limits
    assert_in_delta 0.25, Watchdog.new(1).interval_s
    assert_in_delta 1, Watchdog.new(60).interval_s
    assert_in_delta 0.02, Watchdog.new(0.001).interval_s
  end
end
