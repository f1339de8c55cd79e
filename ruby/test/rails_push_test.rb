# frozen_string_literal: true

require_relative "support"
require "json"
require "net/http"

# examples/rails-push: a Rails application whose session admits clients to the hub, and which publishes.
class RailsPushTest < Support::Test
  SERVE = File.expand_path("../../examples/rails-push/serve", __dir__)

  def setup
    super
    folders = [ENV["CARGO_TARGET_DIR"]&.then { |path| File.dirname(path) }, "#{Support::ROOT}/../target"].compact
    found = [ENV["OROSHI"], *folders.map { |folder| "#{folder}/debug/oroshi" }].compact.find { |path| File.executable?(path) }
    @oroshi = found || leave_out("examples/rails-push", "there is no oroshi command; run: cargo build -p oroshi")
    rails = system("ruby", "-e", "require 'rails'; require 'action_view/railtie'", out: File::NULL, err: File::NULL)
    leave_out("examples/rails-push", "Rails is not installed (Debian: ruby-railties)") unless rails
  end

  # Starts the example at free ports; somebody else may be faster to take them, and then it tries others.
  def example
    3.times do
      free = Array.new(3) { TCPServer.new("127.0.0.1", 0) }
      @page, @hub, admin = free.map { |listener| listener.addr[1] }
      free.each(&:close)
      served = start(SERVE, @page.to_s, @hub.to_s, admin.to_s, env: { "OROSHI" => @oroshi })
      wait_until("the example") { served.said.include?("ready after") || served.said.match?(/in use/) }
      return served unless served.said.match?(/in use/)
    end
    flunk "no port stays free"
  end

  def page(request, cookie = nil)
    request["Cookie"] = cookie if cookie
    Net::HTTP.start("127.0.0.1", @page) { |http| http.request(request) }
  end

  def get(path, cookie = nil)
    page(Net::HTTP::Get.new(path), cookie)
  end

  def post(path, fields, cookie, token)
    request = Net::HTTP::Post.new(path)
    request.set_form_data({ **fields, "authenticity_token" => token })
    page(request, cookie)
  end

  def cookie_of(answer)
    answer["Set-Cookie"][/\A[^;]+/]
  end

  # Logs in, and returns the session's cookie.
  def log_in(name)
    form = get("/")
    token = form.body[/name="authenticity_token" value="([^"]+)"/, 1]
    answer = post("/login", { "name" => name }, cookie_of(form), token)
    assert_equal "302", answer.code
    # The first page puts the secret of its forms into the session.
    cookie_of(get("/", cookie_of(answer)))
  end

  def subscribe(cookie)
    socket = TCPSocket.new("127.0.0.1", @hub)
    socket.write("GET /connect?transport=sse&protocol=oroshi.v1&channel=room:lobby HTTP/1.1\r\nHost: 127.0.0.1:#{@hub}\r\n" \
                 "#{cookie && "Cookie: #{cookie}\r\n"}\r\n")
    socket
  end

  # Returns the next frame of the hub that has this member.
  def frame(socket, member)
    within("a frame with #{member}") do
      loop do
        data = socket.gets[/\Adata: (.*)$/, 1] or next
        frame = JSON.parse(data)
        return frame if frame.key?(member)
      end
    end
  end

  def test_a_session_of_rails_admits_to_the_hub_and_rails_publishes
    example
    assert_match(%r{\AHTTP/1.1 401 }, subscribe(nil).gets, "nobody has logged in")
    ann, bob = log_in("Ann"), log_in("Bob <b>".delete("<>"))
    assert_includes get("/", ann).body, "You are <b>Ann</b>"
    assert_equal "200", get("/push.js", ann).code
    listening = subscribe(bob)
    assert_equal "room:lobby", frame(listening, "subscribed")["subscribed"]["channel"]

    token = get("/", ann).body[/csrf-token" content="([^"]+)"/, 1]
    said = post("/messages", { "text" => "Tea? <img>", "from" => "Bob" }, ann, token)
    assert_equal({ "written" => 1 }, JSON.parse(said.body))
    message = JSON.parse(frame(listening, "text")["text"])
    assert_equal ["Ann", "Tea? <img>"], message.values_at("from", "text"), "a page cannot claim another name"
    assert_equal "422", post("/messages", { "text" => "forged" }, ann, "wrong").code

    # Who comes later may read what was said.
    later = subscribe(ann)
    assert_equal 1, frame(later, "subscribed")["subscribed"]["offset"]

    # Logging out ends the user's sessions at the hub, and admits nobody any more.
    token = get("/", bob).body[/name="authenticity_token" value="([^"]+)"/, 1]
    assert_equal "302", post("/logout", {}, bob, token).code
    within("the end of the session") { listening.read }
  end
end
