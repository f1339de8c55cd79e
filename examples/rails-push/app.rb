# frozen_string_literal: true

# A Rails application in one file, whose pages get their messages over oroshi push. `serve` starts it with its hub.

require "rails"
require "action_controller/railtie"
require "action_view/railtie"
require "oroshi/push"

CLIENT = File.expand_path("../../clients/js/dist/index.js", __dir__)

# The hub, to publish. Any number of threads may use it.
HUB = Oroshi::Push.new(ENV.fetch("PUSH_ADMIN"), token: ENV.fetch("PUSH_TOKEN"))

# The hub asks here who a client is. It passes the client's cookies on, so the session of Rails answers that. A user may
# subscribe to the rooms, by the rule in the hub's configuration.
CALLBACKS = Oroshi::Push::Callbacks.new(secret: ENV.fetch("PUSH_SECRET")) do |on|
  on.connect do |client|
    user = client.request.session["user"]
    user ? client.accept(user: user) : client.refuse(401, "log in first")
  end
end

class RailsPush < Rails::Application
  config.root = __dir__
  config.eager_load = false
  config.secret_key_base = ENV.fetch("SECRET_KEY_BASE")
  config.session_store :cookie_store, key: "_rails_push", same_site: :lax
  config.hosts.clear # any host name may lead here, because this is an example
  config.logger = ActiveSupport::Logger.new($stderr)
  config.log_level = :warn
  config.consider_all_requests_local = false

  routes.append do
    root to: "rooms#show"
    post "/login", to: "sessions#create"
    post "/logout", to: "sessions#destroy"
    post "/messages", to: "messages#create"
    get "/push.js", to: "rooms#client"
    mount CALLBACKS => "/push"
  end
end

class ApplicationController < ActionController::Base
  protect_from_forgery with: :exception
  append_view_path "#{__dir__}/views"
  helper_method :user

  private

  def user = session["user"]
end

class SessionsController < ApplicationController
  # Replace this by your login: here anybody may have any name.
  def create
    name = params[:name].to_s.strip
    return redirect_to("/") unless name.match?(/\A[\p{L}\p{N} ]{1,30}\z/)

    reset_session
    session["user"] = name
    redirect_to "/"
  end

  def destroy
    HUB.disconnect_user(user) if user # its pages are no longer this user's
    reset_session
    redirect_to "/"
  end
end

class RoomsController < ApplicationController
  skip_forgery_protection only: :client # a script that is the same for everybody

  def show = render(user ? "room" : "login", formats: [:html])

  def client = send_file(CLIENT, type: "text/javascript", disposition: "inline")
end

class MessagesController < ApplicationController
  # Rails says who has written it; a page cannot claim another name.
  def create
    return head(:unauthorized) unless user

    text = params[:text].to_s
    return head(:bad_request) if text.empty? || text.bytesize > 2000

    receipt = HUB.publish({ from: user, text: text, at: Time.now.to_i }, group: "room:lobby")
    render json: { written: receipt.written }
  end
end

RailsPush.initialize!
