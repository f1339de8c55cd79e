# frozen_string_literal: true

require_relative "support"
require "fileutils"
require "json"
require "shellwords"

# The files of examples/rack do what they say. systemd and Docker themselves do not run here: the tests do what these
# would do with the files.
class ExamplesTest < Support::Test
  EXAMPLE = File.expand_path("../../examples/rack", __dir__)

  # Returns the settings of a unit: names to lists of values.
  def unit(name)
    lines = File.readlines(File.join(EXAMPLE, name), chomp: true).grep(/\A\w+=/)
    lines.each_with_object(Hash.new { |all, key| all[key] = [] }) { |line, all| line.split("=", 2).then { |key, value| all[key] << value } }
  end

  # The application's folder, as the unit and the image have it.
  def installed
    FileUtils.cp_r(EXAMPLE, File.join(@dir, "app"))
    File.join(@dir, "app")
  end

  # Returns the next message of a service to systemd.
  def said(manager)
    within("a message to systemd") { manager.recv(4096) }
  end

  def test_the_units_are_valid
    program = "/usr/bin/systemd-analyze"
    leave_out("systemd units of the example", "systemd-analyze is not installed (Debian: systemd)") unless File.executable?(program)
    # The service's own program is another machine's.
    service = File.read(File.join(EXAMPLE, "app.service")).sub(%r{^ExecStart=/usr/bin/bundle}, "ExecStart=/bin/true")
    paths = [file("app.service", service), file("app.socket", File.read(File.join(EXAMPLE, "app.socket")))]
    verified = start(program, "verify", "--man=no", *paths)
    assert_equal 0, verified.wait.exitstatus, verified.said
    assert_empty verified.said.lines.grep(/\A#{@dir}|\Aapp\./), "no warnings"
  end

  # Type=notify, the socket, ExecReload, KillMode=mixed.
  def test_the_service_starts_reloads_and_stops_as_its_unit_says
    service, socket = unit("app.service"), unit("app.socket")
    path = File.join(@dir, File.basename(socket["ListenStream"].first))
    listener = UNIXServer.new(path)
    listener.listen(socket["Backlog"].first.to_i)
    manager = Socket.new(:UNIX, :DGRAM)
    manager.bind(Addrinfo.unix(File.join(@dir, "notify")))
    env = service["Environment"].flat_map { |line| Shellwords.split(line) }.to_h { |pair| pair.split("=", 2) }
    env["STATUS_SOCKET"] = File.join(@dir, "status")
    command = service["ExecStart"].first.sub(%r{\A/usr/bin/bundle exec oroshi-rack}, Support::COMMAND.shelljoin)
    # As systemd does it: descriptor 3, for this process alone.
    server = start("sh", "-c", "export LISTEN_FDS=1 LISTEN_PID=$$ NOTIFY_SOCKET=#{@dir}/notify; exec #{command}",
                   env: env, 3 => listener, chdir: installed)
    assert_equal "notify", service["Type"].first
    assert_match(/^READY=1$/, said(manager))
    assert_match(/with #{env["WEB_CONCURRENCY"]} workers/, server.said)
    assert_match(/\Ahello from oroshi/, Support::Client.unix(path) { |client| client.get("/").body })
    assert File.socket?(env["STATUS_SOCKET"])

    assert_equal "/bin/kill -HUP $MAINPID", service["ExecReload"].first
    server.signal("HUP")
    server.wait_for(/worker \d+ .*: ended/, count: env["WEB_CONCURRENCY"].to_i)
    assert_equal 200, Support::Client.unix(path) { |client| client.get("/").status }

    assert_equal "mixed", service["KillMode"].first, "TERM for the manager alone"
    server.signal("TERM")
    assert_match(/^STOPPING=1$/, said(manager))
    assert_equal 0, server.wait.exitstatus
    assert File.socket?(path), "the socket outlives the service"
  ensure
    [listener, manager].each { |one| one&.close }
  end

  # The image's command, in its folder, as its user's only process.
  def test_the_images_command_serves_in_the_foreground
    lines = File.readlines(File.join(EXAMPLE, "Dockerfile"), chomp: true)
    command = JSON.parse(lines.grep(/\ACMD /).last.delete_prefix("CMD "))
    port = lines.grep(/\AEXPOSE /).last.split.last
    assert_includes command.each_cons(2).to_a, ["-l", port]
    arguments = command.drop(1).map { |word| word == port ? "127.0.0.1:0" : word }
    server = start(*Support::COMMAND, *arguments, env: { "WEB_CONCURRENCY" => "2", "STATUS_SOCKET" => File.join(@dir, "status") },
                   chdir: installed)
    free = server.wait_for(/serving 127\.0\.0\.1:(\d+) with 2 workers/)[1]
    2.times { |n| server.wait_for(/: ready/, count: n + 1) }
    assert_match(/\Ahello/, Support::Client.tcp("127.0.0.1", free) { |client| client.get("/").body })
    server.signal("TERM")
    assert_equal 0, server.wait.exitstatus
  end
end
