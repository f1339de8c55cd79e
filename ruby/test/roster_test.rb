# frozen_string_literal: true

require_relative "support"
require "oroshi/manager/roster"

# The manager's decisions, without processes: time is a number.
class RosterTest < Minitest::Test
  Roster = Oroshi::Manager::Roster

  def roster(target: 2, **options)
    @pids = 100
    @roster = Roster.new(target: target, slots: 16, **options)
  end

  # Lets the roster decide, and starts the workers it wants. Returns the actions as text.
  def step(now = 0)
    @roster.decide(now).map do |action|
      case action
      when Roster::Start
        @roster.started(action.slot, @pids += 1)
        "start #{action.slot}#{" for #{action.replaces.slot}" if action.replaces}"
      when Roster::Tell then "#{action.signal} #{action.worker.slot}: #{action.why}"
      when Roster::Kill then "KILL #{action.worker.slot}: #{action.why}"
      end
    end
  end

  def worker(slot)
    @roster.workers.find { |one| one.slot == slot }
  end

  def ready(*slots)
    slots.each { |slot| @roster.ready(worker(slot)) }
  end

  def ended(slot, now = 0, good: true)
    @roster.ended(worker(slot), now, good: good)
  end

  def serving(**options)
    roster(**options)
    step
    ready(*@roster.workers.map(&:slot))
    assert_empty step
  end

  def stop(how, now = 0)
    @roster.stop(how, now, "TERM").map do |action|
      "#{action.is_a?(Roster::Kill) ? "KILL" : action.signal} #{action.worker.slot}"
    end
  end

  def test_starts_as_many_as_wanted
    roster
    assert_equal ["start 0", "start 1"], step
    refute @roster.complete?
    ready(0)
    assert @roster.any_ready?
    refute @roster.complete?
    ready(1)
    assert @roster.complete?
  end

  def test_spawn_interval_starts_one_at_a_time
    roster(target: 3, spawn_interval: 10)
    assert_equal ["start 0"], step(0)
    assert_empty step(9.9)
    assert_equal 10, @roster.next_decision
    assert_equal ["start 1"], step(10)
    assert_equal ["start 2"], step(20)
    assert_nil @roster.next_decision
  end

  def test_one_that_ends_well_is_replaced_at_once
    serving
    assert_equal 0, ended(1)
    assert_equal ["start 1"], step
  end

  def test_one_that_dies_is_replaced_after_err_respawn_interval
    serving(err_respawn_interval: 3)
    assert_equal 3, ended(1, 100, good: false)
    assert_empty step(102.9)
    assert_equal 103, @roster.next_decision
    assert_equal ["start 1"], step(103)
  end

  def test_back_off_grows_while_none_becomes_ready
    roster(target: 1, err_respawn_interval: 1)
    now = 0
    pauses = Array.new(7) do
      step(now)
      ended(0, now, good: false).tap { |pause| now += pause }
    end
    assert_equal [1, 2, 4, 8, 16, 30, 30], pauses
    step(now)
    ready(0)
    assert_equal 1, ended(0, now, good: false), "one that became ready ends the growth"
  end

  def test_back_off_of_a_long_interval_is_that
    roster(target: 1, err_respawn_interval: 60)
    step
    assert_equal 60, ended(0, 0, good: false)
    step(60)
    assert_equal 60, ended(0, 60, good: false)
  end

  # `exit` in a hook is no error, but restarting such workers without a pause would be.
  def test_one_that_ends_well_before_it_is_ready_backs_off
    roster(target: 1)
    step
    assert_equal 1, ended(0, 0, good: true)
  end

  def test_a_fork_that_fails_backs_off
    roster(target: 1)
    @roster.decide(0)
    @roster.not_started(0, 0)
    assert_empty step(0.5)
    assert_equal ["start 0"], step(1)
  end

  def test_a_replacement_is_ready_before_the_old_one_is_told
    serving
    @roster.enough(worker(0), "10 requests served")
    assert_equal ["start 2 for 0"], step
    assert_empty step
    ready(2)
    assert_equal ["TERM 0: 10 requests served"], step
    assert_empty step
    ended(0)
    assert_empty step
  end

  def test_never_two_at_once
    serving(target: 3)
    [0, 1, 2].each { |slot| @roster.enough(worker(slot), "enough") }
    [[3, 0], [0, 1], [1, 2]].each do |fresh, old|
      assert_equal ["start #{fresh} for #{old}"], step
      assert_equal 4, @roster.workers.size
      ready(fresh)
      assert_equal ["TERM #{old}: enough"], step
      assert_empty step, "the next waits until this one has ended"
      ended(old)
    end
    assert_empty step
  end

  def test_a_replacement_that_fails_leaves_the_old_one
    serving(target: 1)
    @roster.replace_all
    assert_equal ["start 1 for 0"], step(0)
    assert_equal 1, ended(1, 0, good: false)
    assert_empty step(0.5)
    assert_equal ["start 1 for 0"], step(1)
    ready(1)
    assert_equal ["TERM 0: HUP"], step(1)
  end

  def test_one_that_dies_while_it_is_being_replaced
    serving(target: 1)
    @roster.replace_all
    assert_equal ["start 1 for 0"], step
    ended(0, 0, good: false)
    assert_empty step(10), "its successor takes the place"
    ready(1)
    assert_empty step(10)
  end

  def test_hup_replaces_all_that_are_older
    serving
    @roster.replace_all
    assert_equal ["start 2 for 0"], step
    @roster.replace_all # again, meanwhile
    ready(2)
    assert_equal ["TERM 0: HUP"], step
    ended(0)
    assert_equal ["start 0 for 1"], step
    ready(0)
    assert_equal ["TERM 1: HUP"], step
    ended(1)
    assert_equal ["start 1 for 2"], step, "started before the second HUP"
    ready(1)
    assert_equal ["TERM 2: HUP"], step
    ended(2)
    assert_empty step
  end

  def test_one_more_and_one_less
    serving
    assert_equal 3, @roster.resize(1)
    assert_equal ["start 2"], step
    ready(2)
    assert_equal 2, @roster.resize(-1)
    assert_equal ["TERM 2: TTOU"], step
    ended(2)
    3.times { @roster.resize(-1) }
    assert_equal 1, @roster.target
    assert_equal ["TERM 1: TTOU"], step
    20.times { @roster.resize(1) }
    assert_equal 8, @roster.target, "half the scoreboard: each of them may have a successor"
  end

  # Workers that never end fill the scoreboard: only the end of one makes room.
  def test_without_a_free_slot_nothing_is_due
    @pids = 100
    @roster = Roster.new(target: 2, slots: 4, stop_timeout: 0)
    step
    ready(0, 1)
    [1, 2, 3].each do |slot|
      @roster.resize(-1)
      assert_equal ["TERM #{slot}: TTOU"], step
      @roster.resize(1)
      assert_equal slot < 3 ? ["start #{slot + 1}"] : [], step
    end
    assert_nil @roster.next_decision
    ended(2)
    refute_nil @roster.next_decision
    assert_equal ["start 2"], step
  end

  def test_graceful_stop_with_a_limit
    serving(stop_timeout: 30)
    assert_equal ["TERM 0", "TERM 1"], stop(:graceful_stop, 100)
    refute @roster.done?
    ended(0, 101)
    assert_empty step(129.9), "no other is started"
    assert_equal 130, @roster.next_decision
    assert_equal ["KILL 1: it has not ended in time"], step(130)
    assert_empty step(131), "killed once"
    ended(1, 131, good: false)
    assert @roster.done?
  end

  def test_graceful_stop_without_a_limit
    serving(stop_timeout: 0)
    stop(:graceful_stop)
    assert_nil @roster.next_decision
    assert_empty step(1e6)
  end

  def test_stops_only_get_quicker
    serving
    assert_equal ["TERM 0", "TERM 1"], stop(:graceful_stop)
    assert_empty stop(:graceful_stop), "each is told once"
    assert_equal ["INT 0", "INT 1"], stop(:quick_stop)
    assert_empty stop(:graceful_stop)
    assert_equal ["KILL 0", "KILL 1"], stop(:quick_stop)
  end

  def test_slow_stop
    roster(target: 3, spawn_interval: 5)
    [0, 5, 10].each { |now| step(now) }
    ready(0, 1, 2)
    assert_empty stop(:slow_stop, 100)
    assert_equal ["TERM 0: USR1"], step(100)
    ended(0, 100)
    assert_empty step(104.9), "nothing is started in its place"
    assert_equal 105, @roster.next_decision
    assert_equal ["TERM 1: USR1"], step(105)
    assert_equal ["TERM 2: USR1"], step(110)
    refute @roster.done?
    [1, 2].each { |slot| ended(slot, 111) }
    assert @roster.done?
  end

  def test_one_that_is_condemned_is_no_failure
    serving(target: 1)
    @roster.condemn(worker(0))
    assert_equal 0, ended(0, 0, good: false)
    assert_equal ["start 0"], step
  end
end
